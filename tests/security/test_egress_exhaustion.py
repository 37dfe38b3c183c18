"""Table G: heads, bodies and handshakes that never end, floods. Bounds are short here; their order is that of production."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.egress.configuration import Bounds
from tests.support.egress_rig import TRANSPARENT, Rig, reply, request, rig
from tests.support.egress_upstream import Arrived

BOUNDS = Bounds(hello=0.4, head=0.6, idle=1.3, quiet=2.0, total=4.0, slow_after=0.5, slow_rate=1000)


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, bounds=BOUNDS) as made:
        yield made


async def ends_within(reader: asyncio.StreamReader, least: float, most: float) -> bytes:
    began = time.monotonic()
    async with asyncio.timeout(most):
        try:
            said = await reader.read()
        except ConnectionError:
            said = b""
    assert time.monotonic() - began >= least
    return said


async def drip(writer: asyncio.StreamWriter, data: bytes, pause: float = 0.05) -> None:
    try:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(pause)
    except OSError:
        return


async def test_a_slow_hello(way: Rig) -> None:
    reader, writer = await way.tunnel(tls=False)
    writer.write(b"\x16\x03\x01\x02\x00\x01")
    await ends_within(reader, 0.2, 3.0)
    reader, writer = await way.raw(b"\x16", TRANSPARENT)
    await ends_within(reader, 0.2, 3.0)


async def test_a_slow_head_is_408(way: Rig) -> None:
    reader, writer = await way.tunnel()
    dripping = asyncio.ensure_future(drip(writer, b"GET / HTTP/1.1\r\nHost: api.test\r\nX-A: " + b"a" * 200))
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (408, "too_slow")
    await dripping
    assert way.upstream.connections == 0


async def test_a_slow_connect(way: Rig) -> None:
    reader, writer = await way.raw(b"")
    dripping = asyncio.ensure_future(drip(writer, b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n" * 5))
    await ends_within(reader, 0.4, 3.0)
    await dripping


async def test_control_a_head_in_time(way: Rig) -> None:
    reader, writer = await way.tunnel()
    await drip(writer, request("GET", "/"), 0.002)
    assert (await reply(reader)).status == 200


async def test_a_slow_body_is_408_and_never_a_request(way: Rig) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("POST", "/", "Content-Length: 1000"))
    dripping = asyncio.ensure_future(drip(writer, b"a" * 100))
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (408, "too_slow")
    await dripping
    assert [each.body for each in way.upstream.arrived] in ([], [b""])


async def test_control_a_body_at_the_rate(way: Rig) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("POST", "/", "Content-Length: 3000"))
    for _ in range(10):
        writer.write(b"a" * 300)
        await asyncio.sleep(0.1)
    assert (await reply(reader)).status == 200


async def test_an_idle_connection_ends_without_a_word(way: Rig) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/"))
    await reply(reader)
    assert await ends_within(reader, 0.7, 3.0) == b""


async def test_a_body_that_never_comes(way: Rig) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("POST", "/", "Content-Length: 1000"))
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (408, "too_slow")


async def test_an_event_stream_without_end_ends_at_the_total(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not reader.at_eof():
            writer.write(b"3\r\n:\n\n\r\n")
            await writer.drain()
            await asyncio.sleep(1.5)  # longer than `idle`, shorter than `quiet`
        return False

    way.upstream.handler = handler
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/"))
    said = await ends_within(reader, 3.0, 6.0)
    assert said.count(b":\n\n") >= 2


async def test_a_flood_of_requests_is_429_and_not_a_queue(tmp_path: Path) -> None:
    async with rig(tmp_path, bounds=Bounds(requests_second=1, burst=5)) as way:
        reader, writer = await way.tunnel()
        writer.write(request("GET", "/") * 20)
        statuses = [(await reply(reader)).status for _ in range(20)]
        assert statuses[:5] == [200] * 5
        assert statuses.count(429) >= 14
        assert len(way.upstream.arrived) <= 6


async def test_five_hundred_connections(tmp_path: Path) -> None:
    """D67: 128 are served, the rest wait in the queue, and all that leave make room."""
    async with rig(tmp_path, bounds=Bounds(connections=16)) as way:
        clients = [await way.raw(b"") for _ in range(100)]
        await asyncio.sleep(0.1)
        assert way.serving.connections <= 16
        for _, writer in clients:
            writer.transport.abort()
        async with asyncio.timeout(10):
            assert (await way.asked(request("GET", "/"))).status == 200
