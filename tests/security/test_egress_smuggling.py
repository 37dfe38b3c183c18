"""Table D over the wire: behind a good request on one connection, so that a second reading of the bytes would be a request.

The pre-parser's own table is in tests/unit/egress/test_head.py, with what h11 alone would take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.egress import head
from tests.support.egress_rig import Rig, reply, request, rig, rule
from tests.unit.egress.test_head import TABLE

INNER = b"GET /admin HTTP/1.1\r\nHost: api.test\r\n\r\n"


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, rules=(rule(paths=("/",), methods=frozenset({"GET", "POST"})),)) as made:
        yield made


@pytest.mark.parametrize(("row", "raw", "status"), [row[:3] for row in TABLE], ids=[row[0] for row in TABLE])
async def test_table_d(way: Rig, row: str, raw: bytes, status: int) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/"))
    assert (await reply(reader)).status == 200
    writer.write(raw + INNER)
    answered = await reply(reader)
    assert answered.status == status
    assert answered.reason in ("malformed", "too_large")
    assert await reader.read() == b""  # closed: what came behind is nobody's request
    assert len(way.upstream.arrived) == 1


async def test_control_without_the_pre_parser(way: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """CL and TE together: what h11 takes would be relayed."""
    monkeypatch.setattr(head, "_framing", lambda fields, minor: None)
    answered = await way.asked(
        request("POST", "/", "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + INNER
    )
    assert answered.status in (200, 403)
    assert len(way.upstream.arrived) == 1


CHUNKS = [
    b"Z\r\nabc\r\n0\r\n\r\n",
    b"3\nabc\r\n0\r\n\r\n",
    b"3\r\nabcd\r\n0\r\n\r\n",
    b"-3\r\nabc\r\n0\r\n\r\n",
    b"+3\r\nabc\r\n0\r\n\r\n",
    b"0x3\r\nabc\r\n0\r\n\r\n",
    b" 3\r\nabc\r\n0\r\n\r\n",
    b"3 \r\nabcx\r\n0\r\n\r\n",
    b"3\r\nabc\n\n0\r\n\r\n",
    b"3\r\nabc\r\n0\r\nbad footer\r\n\r\n",
    b"f" * 17 + b"\r\nabc\r\n0\r\n\r\n",
    b"0" * 25 + b"3\r\nabc\r\n0\r\n\r\n",
    b"3\r\nabc\r\n0\r\n\n",
    b"3\r\nabc\r\n0\r\nX-A: b\n\r\n",
]


@pytest.mark.parametrize("body", CHUNKS, ids=range(len(CHUNKS)))
async def test_d10_chunks_that_are_none(way: Rig, body: bytes) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("POST", "/", "Transfer-Encoding: chunked") + body + INNER)
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (400, "malformed")
    assert await reader.read() == b""
    assert way.upstream.arrived == []


async def test_d10_extensions_are_dropped(way: Rig) -> None:
    body = b'3;a=b;c="d"\r\nabc\r\n0\r\n\r\n'
    assert (await way.asked(request("POST", "/", "Transfer-Encoding: chunked") + body)).status == 200
    assert way.upstream.arrived[0].body == b"abc"


async def test_a_body_s_bytes_are_never_a_request(way: Rig) -> None:
    """What is denied stays denied behind a body, inside of one and in its trailers."""
    reader, writer = await way.tunnel()
    writer.write(request("POST", "/", body=INNER) + INNER)
    assert [(await reply(reader)).status for _ in range(2)] == [200, 403]
    assert [each.line for each in way.upstream.arrived] == [b"POST / HTTP/1.1"]
    assert way.upstream.arrived[0].body == INNER


async def test_a_denied_request_s_body_is_no_request(way: Rig) -> None:
    reader, writer = await way.tunnel()
    writer.write(request("PUT", "/", body=INNER.replace(b"/admin", b"/")))
    assert (await reply(reader)).status == 403
    assert await reader.read() == b""
    assert way.upstream.arrived == []


async def test_get_with_a_body_is_framed_anew(way: Rig) -> None:
    """D17."""
    assert (await way.asked(request("GET", "/", body=b"abc"))).status == 200
    assert way.upstream.arrived[0].values("content-length") == [b"3"]
    assert way.upstream.arrived[0].body == b"abc"


PATHS = [
    "/../x",
    "/a/../x",
    "/./",
    "/%2e%2e/x",
    "/a%2fb",
    "/a%5cb",
    "/a%00b",
    "/a\\b",
    "//x",
    "/a;b",
    "/%zz",
    "/%ff",
    "/a#b",
]


@pytest.mark.parametrize("path", PATHS)
async def test_d23_paths_with_two_readings(way: Rig, path: str) -> None:
    way.configure(rules=(rule(),))
    answered = await way.asked(request("GET", path))
    assert answered.status == 400, answered
    assert way.upstream.arrived == []


async def test_d24_a_query_is_sent_as_it_came(way: Rig) -> None:
    query = "a=1&a=2;b=%41%2f+c&&=&%"
    assert (await way.asked(request("GET", f"/?{query}"))).status == 200
    assert way.upstream.arrived[0].line == f"GET /?{query} HTTP/1.1".encode()


async def test_requests_in_pieces_of_one_byte(way: Rig) -> None:
    reader, writer = await way.tunnel()
    for byte in request("POST", "/", body=b"abc"):
        writer.write(bytes([byte]))
        await writer.drain()
    assert (await reply(reader)).status == 200
    assert way.upstream.arrived[0].body == b"abc"
