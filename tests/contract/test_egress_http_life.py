"""What ends connections: a reload, a listener that goes, a revocation, the worker's end, too many of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.egress.configuration import Bounds
from ringfence.host.kernel.outward.rules import Mode
from tests.support.egress_rig import EXPLICIT, Rig, placeholder, reply, request, rig, rule
from tests.support.egress_upstream import Arrived

PH = placeholder()


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, rules=(rule(), rule("git.test"))) as made:
        yield made


async def waiting(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    await reader.read()
    return False


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(2):
            return await reader.read() == b""
    except ConnectionError:
        return True


async def arrived(way: Rig) -> None:
    async with asyncio.timeout(30):
        while not way.upstream.arrived:
            await asyncio.sleep(0.01)


async def test_a_reload_closes_what_lost_permission_and_nothing_else(way: Rig) -> None:
    kept, kept_writer = await way.tunnel("api.test")
    lost, lost_writer = await way.tunnel("git.test")
    kept_writer.write(request("GET", "/"))
    assert (await reply(kept)).status == 200
    way.configure(rules=(rule(),))
    assert await ended(lost)
    kept_writer.write(request("GET", "/"))
    assert (await reply(kept)).status == 200
    kept_writer.close()
    lost_writer.close()


async def test_a_request_in_flight_that_lost_permission_is_cut(way: Rig) -> None:
    way.upstream.handler = waiting
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/a"))
    await arrived(way)
    way.configure(rules=(rule(paths=("/a",)),))
    await asyncio.sleep(0.1)
    assert not reader.at_eof()
    way.configure(rules=(rule(paths=("/b",)),))
    assert await ended(reader)
    writer.close()


async def test_the_next_request_of_a_kept_connection_is_judged_by_the_new_rules(way: Rig) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/a"))
    assert (await reply(reader)).status == 200
    way.configure(rules=(rule(paths=("/b",)),))
    writer.write(request("GET", "/a"))
    assert (await reply(reader)).status == 403
    writer.close()


async def test_a_passed_through_connection_ends_when_its_host_is_to_be_read(way: Rig) -> None:
    way.configure(rules=(rule(mode=Mode.PASSTHROUGH),))
    reader, writer = await way.tunnel(tls=False)
    await writer.start_tls(way.upstream_ca.trusting(), server_hostname="api.test")
    way.configure(rules=(rule(),))
    assert await ended(reader)
    writer.close()


async def test_unlisten_closes_what_came_by_it(way: Rig) -> None:
    reader, writer = await way.tunnel()
    way.serving.unlisten(EXPLICIT)
    assert await ended(reader)
    with pytest.raises(ConnectionError):
        await way.tunnel()
    writer.close()


async def test_a_revocation_cuts_what_uses_the_secret(way: Rig) -> None:
    way.upstream.handler = waiting
    way.ticket(PH)
    using, one = await way.tunnel()
    without, two = await way.tunnel()
    one.write(request("GET", "/", f"Authorization: Bearer {PH}"))
    two.write(request("GET", "/"))
    async with asyncio.timeout(5):
        while len(way.upstream.arrived) < 2:
            await asyncio.sleep(0.01)
    way.serving.revoke("crd_1")
    assert await ended(using)
    assert not without.at_eof()
    one.close()
    two.close()


async def test_without_a_configuration_nothing_passes(tmp_path: Path) -> None:
    async with rig(tmp_path) as way:
        way.serving._works = None  # as before the first `configure` packet
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await way.tunnel()


async def test_the_end_gives_requests_their_time_and_idle_connections_none(way: Rig) -> None:
    async def later(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        return True

    way.upstream.handler = later
    busy, one = await way.tunnel()
    idle, two = await way.tunnel()
    one.write(request("GET", "/"))
    await arrived(way)
    ending = asyncio.ensure_future(way.serving.end(2.0))
    assert await ended(idle)
    assert (await reply(busy)).body == b"ok"
    await ending
    one.close()
    two.close()


async def test_a_connection_too_many_takes_the_place_of_an_idle_one(tmp_path: Path) -> None:
    """G3: all 4 are idle; the fifth comes in at the cost of the one that waited longest."""
    async with rig(tmp_path, bounds=Bounds(connections=4)) as way:
        held = [await way.tunnel() for _ in range(4)]
        for reader, writer in held:
            writer.write(request("GET", "/"))
            assert (await reply(reader)).status == 200
        await asyncio.sleep(1.1)
        async with asyncio.timeout(5):
            fifth, writer = await way.tunnel()
            writer.write(request("GET", "/"))
            assert (await reply(fifth)).status == 200
        assert await ended(held[0][0])
        for _, each in [*held, (fifth, writer)]:
            each.close()


async def test_busy_connections_keep_their_place(tmp_path: Path) -> None:
    async with rig(tmp_path, bounds=Bounds(connections=2)) as way:
        way.upstream.handler = waiting
        held = [await way.tunnel() for _ in range(2)]
        for _, writer in held:
            writer.write(request("GET", "/"))
        await asyncio.sleep(1.2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await way.tunnel()
        assert way.serving.connections == 2
        for _, writer in held:
            writer.close()


async def test_requests_in_flight_beyond_the_bound_are_429_with_a_time(tmp_path: Path) -> None:
    async with rig(tmp_path, bounds=Bounds(in_flight=2)) as way:
        way.upstream.handler = waiting
        held = [await way.tunnel() for _ in range(2)]
        for _, writer in held:
            writer.write(request("GET", "/"))
        async with asyncio.timeout(5):
            while len(way.upstream.arrived) < 2:
                await asyncio.sleep(0.01)
        answered = await way.asked(request("GET", "/"))
        assert (answered.status, answered.reason) == (429, "too_many")
        assert b"retry-after: 1" in answered.head.lower()
        for _, writer in held:
            writer.close()
