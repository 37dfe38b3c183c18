"""Getting the secret out again by the answer (E4, E5, case 28): every form that the scrubber promises, in body, head and status.

The control is the same server with the scrubber's forms taken away."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ringfence.host.egress import scrub
from ringfence.host.kernel.outward.credentials import Position, Scheme
from tests.support.egress_rig import SECRET, Rig, binding, placeholder, reply, request, rig
from tests.support.egress_upstream import Arrived, answer

PH = placeholder()
BEARER = f"Authorization: Bearer {PH}"
FORMS = {
    "raw": SECRET,
    "percent": quote(SECRET, safe="").encode(),
    "percent, lower": quote(SECRET, safe="").lower().encode().replace(b"value", b"Value"),
    "JSON": json.dumps(SECRET.decode()).encode().replace(b"/", b"\\/"),
    "hex": SECRET.hex().encode(),
    "HEX": SECRET.hex().upper().encode(),
    **{f"base64 after {n}": base64.b64encode(b"u" * n + b":" + SECRET) for n in range(4)},
    "base64 inside": base64.b64encode(b'{"token":"' + SECRET + b'","more":1}'),
    "base64url": base64.urlsafe_b64encode(SECRET),
}


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        made.ticket(PH)
        yield made


def saying(
    way: Rig, *pieces: bytes, status: str = "200 OK", fields: tuple[str, ...] = (), chunked: bool = False
) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if not chunked:
            writer.write(answer(status, b"".join(pieces), *fields))
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        return True

    way.upstream.handler = handler


def leaks(data: bytes) -> bool:
    """Whether six bytes of the secret together can be read from what the box got, in any form, at any alignment."""
    lower = data.lower()
    parts = [SECRET[at : at + 6] for at in range(len(SECRET) - 5)]
    found = any(part in data or part.hex().encode() in lower or quote(part, safe="").encode() in data for part in parts)
    runs = re.findall(rb"[A-Za-z0-9+/]{8,}", data.translate(bytes.maketrans(b"-_", b"+/")))
    decoded = [base64.b64decode(run[at : at + (len(run) - at) // 4 * 4]) for run in runs for at in range(4)]
    return found or any(part in text for part in parts for text in decoded)


@pytest.mark.parametrize("form", sorted(FORMS))
async def test_in_the_body_in_a_field_and_in_the_status(way: Rig, form: str) -> None:
    text = FORMS[form]
    saying(way, text, fields=(f"X-Debug: {text.decode()}",), status=f"401 bad {text.decode()}")
    answered = await way.asked(request("GET", "/", BEARER))
    assert answered.status == 401
    assert len(answered.body) == len(text)
    assert not leaks(answered.body)
    assert SECRET not in answered.head and text not in answered.head
    assert [each[0] for each in way.kernel.findings] == ["secret_reflected"]


@pytest.mark.parametrize("form", sorted(FORMS))
async def test_control(way: Rig, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "needles", lambda secret: frozenset())
    saying(way, FORMS[form])
    answered = await way.asked(request("GET", "/", BEARER))
    assert leaks(answered.body)


async def test_cut_by_chunks_at_every_place(way: Rig) -> None:
    text = b"before " + SECRET + b" after"
    saying(way, *(text[at : at + 1] for at in range(len(text))), chunked=True)
    answered = await way.asked(request("GET", "/", BEARER))
    assert answered.body == b"before " + b"*" * len(SECRET) + b" after"


async def test_the_pair_of_basic(way: Rig) -> None:
    way.configure(bindings=(binding(positions=(Position(scheme=Scheme.BASIC_PASSWORD),)),))
    pair = base64.b64encode(f"user:{PH}".encode()).decode()
    answered = await way.asked(request("GET", "/", f"Authorization: Basic {pair}"))  # the upstream echoes its head
    sent = way.upstream.arrived[0].value("authorization").removeprefix(b"Basic ")
    assert base64.b64decode(sent) == b"user:" + SECRET
    assert sent not in answered.body
    echoed = answered.body.partition(b"Basic ")[2].partition(b"\\r")[0]
    assert b"*" in echoed and SECRET[:6] not in base64.b64decode(echoed.replace(b"*", b"A") + b"==")


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate", "x"])
async def test_compressed_reflection(way: Rig, coding: str) -> None:
    """E5: asked for identity, and refused when the server does not care."""
    saying(way, gzip.compress(SECRET), fields=(f"Content-Encoding: {coding}",))
    answered = await way.asked(request("GET", "/", BEARER, "Accept-Encoding: gzip"))
    assert (answered.status, answered.reason) == (502, "upstream_failed")
    assert way.upstream.arrived[0].value("accept-encoding") == b"identity"


async def test_control_compressed_without_a_secret(way: Rig) -> None:
    """Nothing was put in: nothing is looked for, and the coding is the client's and the server's affair."""
    saying(way, gzip.compress(SECRET), fields=("Content-Encoding: gzip",))
    answered = await way.asked(request("GET", "/", "Accept-Encoding: gzip"))
    assert gzip.decompress(answered.body) == SECRET


async def test_in_interim_answers_and_trailers(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        secret = arrived.value("authorization")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: " + secret + b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-T: " + secret + b"\r\n\r\n"
        )
        return True

    way.upstream.handler = handler
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/", BEARER))
    interim = await reader.readuntil(b"\r\n\r\n")
    assert b"link: Bearer ***" in interim
    answered = await reply(reader)
    assert answered.body == b"x"
    writer.write(request("GET", "/", BEARER))
    assert SECRET not in interim + answered.head + await reader.readuntil(b"\r\n\r\n")


async def test_no_refusal_has_it(way: Rig) -> None:
    """E13: texts are constant."""
    saying(way, b"", status="200 " + SECRET.decode(), fields=("Content-Length: 7",))
    answered = await way.asked(request("GET", "/", BEARER))
    assert answered.status == 502
    assert SECRET not in answered.head + answered.body
    assert SECRET.decode() not in repr(way.kernel.findings) + repr(way.kernel.counted)
