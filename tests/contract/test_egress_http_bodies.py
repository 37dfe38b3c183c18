"""Bodies both ways: byte for byte, streamed, bounded, and never cut in silence."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.egress.configuration import Bounds
from tests.support.egress_rig import Rig, reply, request, rig, rule
from tests.support.egress_upstream import Arrived, answer

BOUNDS = Bounds(head=0.6, idle=1.0, quiet=3.0, slow_after=0.3, slow_rate=10_000)
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, bounds=BOUNDS) as made:
        yield made


def chunked(*pieces: bytes, trailer: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailer + b"\r\n"


async def digests(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(answer("200 OK", hashlib.sha256(arrived.body).hexdigest().encode()))
    return True


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_twenty_mib_over_one_connection_twice(way: Rig, framing: str) -> None:
    """D61."""
    way.upstream.handler = digests
    body = os.urandom(20 << 20)
    reader, writer = await way.tunnel()
    for _ in range(2):
        if framing == "length":
            writer.write(request("POST", "/", body=body))
        else:
            writer.write(
                request("POST", "/", CHUNKED) + chunked(*(body[at : at + 70_000] for at in range(0, 20 << 20, 70_000)))
            )
        await writer.drain()
        assert (await reply(reader, seconds=60)).body == hashlib.sha256(body).hexdigest().encode()
    assert way.upstream.connections == 1
    writer.close()


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_a_large_answer(way: Rig, framing: str) -> None:
    body = os.urandom(5 << 20)

    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if framing == "length":
            writer.write(answer("200 OK", body))
            return True
        if framing == "chunked":
            writer.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, trailer=b"X-T: 1\r\n")
            )
            return True
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)
        await writer.drain()
        return False

    way.upstream.handler = handler
    answered = await way.asked(request("GET", "/"))
    assert answered.body == body
    assert (b"content-length" in answered.head.lower()) is (framing == "length")


async def test_request_trailers_are_dropped(way: Rig) -> None:
    """D11: the recorder fails on a trailer."""
    sent = request("POST", "/", CHUNKED, "Trailer: Authorization")
    trailer = b"Authorization: Bearer x\r\nHost: evil.test\r\nContent-Length: 9\r\n"
    answered = await way.asked(sent + chunked(b"abc", trailer=trailer))
    assert json.loads(answered.body)["body"] == "abc"
    assert b"Bearer x" not in way.upstream.arrived[0].head


async def test_events_come_as_they_are_said(way: Rig) -> None:
    """Cases 3, 52, 54; D68."""

    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            said = b"data: %f\n\n" % time.monotonic()
            writer.write(b"%x\r\n%s\r\n" % (len(said), said))
            await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n")
        return True

    way.upstream.handler = handler
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/events"))
    await reader.readuntil(b"\r\n\r\n")
    late = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        data = await reader.readexactly(size + 2)
        late.append(time.monotonic() - float(data.split()[1]))
    assert len(late) == 20
    assert sorted(late)[10] < 0.05, late
    writer.close()


async def test_an_early_answer_ends_the_upload(way: Rig) -> None:
    """A server that says 413 after the head is heard, though the body is still coming."""

    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer("413 Too Much", b"no", "Connection: close"))
        await writer.drain()
        return False

    way.upstream.handler, way.upstream.early = handler, True
    reader, writer = await way.tunnel()
    writer.write(request("POST", "/", "Content-Length: 50000000") + bytes(1 << 20))
    answered = await reply(reader)
    assert (answered.status, answered.body) == (413, b"no")
    writer.transport.abort()


async def test_expect_is_the_server_s_to_answer(way: Rig) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("POST", "/", "Expect: 100-continue", "Content-Length: 3"))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    writer.write(b"abc")
    assert json.loads((await reply(reader)).body)["body"] == "abc"
    writer.close()


async def test_expect_at_a_denied_host_is_refused_without_the_body(way: Rig) -> None:
    """D16: the final answer, then the end."""
    reader, writer = await way.tunnel("evil.test")
    writer.write(request("POST", "/", "Expect: 100-continue", "Content-Length: 3", host="evil.test"))
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (403, "denied")
    assert b"connection: close" in answered.head.lower()
    assert b" 100 " not in answered.head
    writer.transport.abort()


async def test_a_body_over_its_cap_is_refused_and_the_server_sees_no_end(way: Rig) -> None:
    way.configure(rules=(rule(up_bytes=100_000),))
    answered = await way.asked(request("POST", "/", body=bytes(150_000)))
    assert (answered.status, answered.reason) == (413, "too_large")
    assert [each.body for each in way.upstream.arrived] in ([], [b""])  # its head may have gone out


async def test_an_answer_over_its_cap_is_cut_with_a_reset(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(*[bytes(60_000)] * 10))
        return True

    way.upstream.handler = handler
    way.configure(rules=(rule(down_bytes=200_000),))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await way.asked(request("GET", "/"))


@pytest.mark.parametrize("cap", [1000, 1 << 30], ids=["over", "control"])
async def test_in_clear_too_an_answer_that_is_cut_is_no_whole_one(way: Rig, cap: int) -> None:
    """An answer to HTTP/1.0 ends with its connection: an end in order would say that this was all."""

    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (5000, bytes(5000)))
        return True

    way.plain.handler = handler
    way.configure(rules=(rule(ports=(80, 443), plain=True, down_bytes=cap),))
    reader, _ = await way.raw(b"GET http://api.test/ HTTP/1.0\r\nHost: api.test\r\n\r\n")
    async with asyncio.timeout(30):
        if cap > 5003:
            assert (await reader.read()).endswith(b"\r\n\r\nabc" + bytes(5000))
        else:
            with pytest.raises(ConnectionResetError):
                await reader.read()


async def test_a_declared_answer_over_its_cap_is_not_begun(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer("200 OK", bytes(1000)))
        return True

    way.upstream.handler = handler
    way.configure(rules=(rule(down_bytes=999),))
    answered = await way.asked(request("GET", "/"))
    assert (answered.status, answered.reason) == (502, "too_large")


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_a_server_that_stops_early_is_not_taken_for_complete(way: Rig, framing: bytes) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n5\r\nabcde\r\n")
        await writer.drain()
        return False

    way.upstream.handler = handler
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await way.asked(request("GET", "/"))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
    ],
)
async def test_answers_that_cannot_be_read_are_502(way: Rig, said: bytes) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(said)
        await writer.drain()
        return False

    way.upstream.handler = handler
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/"))
    answered = await reply(reader)
    while answered.status == 100:
        answered = await reply(reader)
    assert (answered.status, answered.reason) == (502, "upstream_failed")
    writer.transport.abort()


async def test_bytes_behind_an_answer_are_no_answer_to_the_next_request(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        forged = answer("200 OK", b"forged") if arrived.line.startswith(b"GET /1") else b""
        writer.write(answer("200 OK", arrived.line) + forged)
        return True

    way.upstream.handler = handler
    reader, writer = await way.tunnel()
    for path in ("/1", "/2"):
        writer.write(request("GET", path))
        assert (await reply(reader)).body == f"GET {path} HTTP/1.1".encode()
    assert way.upstream.connections == 2
    writer.close()


async def test_interim_answers_are_passed_on(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + answer("200 OK", b"ok"))
        return True

    way.upstream.handler = handler
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/"))
    assert (await reader.readuntil(b"\r\n\r\n")).lower() == b"http/1.1 103 \r\nlink: </a>\r\n\r\n"
    assert (await reply(reader)).body == b"ok"
    writer.close()


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_answers_without_a_body(way: Rig, status: str) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(f"HTTP/1.1 {status}\r\nETag: x\r\n\r\n".encode())
        return True

    way.upstream.handler = handler
    reader, writer = await way.tunnel()
    for _ in range(2):
        writer.write(request("GET", "/"))
        assert (await reply(reader)).head.startswith(f"HTTP/1.1 {status[:3]}".encode())
    writer.close()


async def test_a_box_that_leaves_ends_the_request_at_the_server(way: Rig) -> None:
    """A model's answer that nobody reads must end within a second."""
    began = asyncio.Event()

    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        began.set()
        await reader.read()  # until the worker closes
        return False

    way.upstream.handler = handler
    _, writer = await way.tunnel()
    writer.write(request("GET", "/slow"))
    await began.wait()
    assert way.upstream.ended == 0
    writer.close()
    async with asyncio.timeout(1):
        while way.upstream.ended == 0:
            await asyncio.sleep(0.01)


async def test_a_server_that_says_nothing_ends_in_502(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await reader.read()
        return False

    way.upstream.handler = handler
    async with asyncio.timeout(30):
        answered = await way.asked(request("GET", "/"))
    assert (answered.status, answered.reason) == (502, "upstream_failed")


async def test_a_slow_reader_costs_little_memory(way: Rig) -> None:
    """G7: 200 MB wait at the server, not here."""
    sent = 0

    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n")
        while sent < 200_000_000:
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000
        return False

    way.upstream.handler = handler
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/"))
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(0.8)
    # sockets' own buffers on loopback: up to 6 MiB each way and leg
    assert sent < 40_000_000
    writer.transport.abort()
