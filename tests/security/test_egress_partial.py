"""Getting the secret past the scrubber by the frame of the answer: ranges, second codings, names of fields.

Each with its control: the same server and the same wish without a credential in the request, or with that wall taken away."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.egress import fields, scrub
from ringfence.host.kernel.outward.credentials import Position, Scheme, Use
from tests.support.egress_rig import SECRET, Rig, binding, placeholder, request, rig
from tests.support.egress_upstream import Arrived, answer

PH = placeholder()
BEARER = f"Authorization: Bearer {PH}"
NAME = b"abcdef0123456789abcdef"  # a secret that a field's name can hold


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        made.ticket(PH)
        yield made


async def ranged(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """An honest server that reflects behind a range filter."""
    body = b"token: " + arrived.value("authorization") if arrived.values("authorization") else b"x" * 64
    asked = re.match(rb"bytes=(\d+)-(\d+)", b"".join(arrived.values("range")))
    if asked is None:
        writer.write(answer("200 OK", body))
        return True
    first, last = map(int, asked.groups())
    part = body[first : last + 1]
    writer.write(answer("206 Partial Content", part, f"Content-Range: bytes {first}-{last}/{len(body)}"))
    return True


async def by_ranges(way: Rig) -> bytes:
    way.upstream.handler = ranged
    start, got = len(b"token: Bearer "), b""
    for at in range(start, start + len(SECRET), 8):
        last = min(at + 7, start + len(SECRET) - 1)
        got += (await way.asked(request("GET", "/", BEARER, f"Range: bytes={at}-{last}", 'If-Range: "a"'))).body
    return got


async def test_the_secret_by_ranges(way: Rig) -> None:
    got = await by_ranges(way)
    assert not any(SECRET[at : at + 8] in got for at in range(len(SECRET) - 7))
    for each in way.upstream.arrived:
        assert each.values("range") == [] and each.values("if-range") == []


async def test_control_ranges_that_go_through(way: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "PARTIAL", ())
    monkeypatch.setattr("ringfence.host.egress.answering._PARTIAL", 0)
    assert await by_ranges(way) == SECRET


async def test_ranges_by_the_owners_word(way: Rig) -> None:
    way.configure(bindings=(binding(ranges=True),))
    assert await by_ranges(way) == SECRET


async def test_one_binding_without_them_is_enough(way: Rig) -> None:
    inject = binding(id="bnd_2", use=Use.INJECT, positions=(Position("x-key", Scheme.RAW),))
    way.configure(bindings=(binding(ranges=True), inject))
    assert SECRET[:8] not in await by_ranges(way)


async def test_ranges_without_a_credential_are_the_clients_affair(way: Rig) -> None:
    way.upstream.handler = ranged
    answered = await way.asked(request("GET", "/", "Range: bytes=1-4"))
    assert (answered.status, answered.body) == (206, b"xxxx")


async def test_a_part_that_nobody_asked_for_is_refused(way: Rig) -> None:
    async def part(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer("206 Partial Content", SECRET[3:8], "Content-Range: bytes 3-7/23"))
        return True

    way.upstream.handler = part
    answered = await way.asked(request("GET", "/", BEARER))
    assert (answered.status, answered.reason) == (502, "upstream_failed")
    assert (await way.asked(request("GET", "/"))).status == 206


@pytest.mark.parametrize(
    "coding",
    [
        ("Content-Encoding: identity", "Content-Encoding: gzip"),
        ("Content-Encoding: identity, gzip",),
        ("Content-Encoding:", "Content-Encoding: GZIP"),
    ],
)
async def test_a_coding_behind_another(way: Rig, coding: tuple[str, ...]) -> None:
    async def twice(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer("200 OK", gzip.compress(b"".join(arrived.values("authorization"))), *coding))
        return True

    way.upstream.handler = twice
    answered = await way.asked(request("GET", "/", BEARER))
    assert (answered.status, answered.reason) == (502, "upstream_failed")
    assert (await way.asked(request("GET", "/"))).status == 200  # the control: nothing is looked for


@pytest.mark.parametrize("walled", [True, False])
async def test_a_name_of_a_field(way: Rig, monkeypatch: pytest.MonkeyPatch, *, walled: bool) -> None:
    async def named(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        token = arrived.value("authorization").split()[1].decode().upper()
        writer.write(answer("200 OK", b"x", f"X-Debug-{token}: 1", "X-Else: 2"))
        return True

    if not walled:
        monkeypatch.setattr(scrub.Scrubber, "named", lambda self, name: False)
    way.kernel.secrets["crd_1"] = NAME
    way.upstream.handler = named
    answered = await way.asked(request("GET", "/", BEARER))
    assert (NAME in answered.head.lower()) is not walled
    assert b"x-else: 2" in answered.head.lower() and answered.body == b"x"
    assert len(way.kernel.findings) == walled


async def test_a_secret_that_is_the_name_of_the_length_ends_no_framing(way: Rig) -> None:
    way.kernel.secrets["crd_1"] = b"length"
    assert (await way.asked(request("GET", "/", BEARER))).status == 200
