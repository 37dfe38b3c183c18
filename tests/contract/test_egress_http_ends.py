"""How a connection of the box ends: with the answer that its client wanted for the last, and with one to a body that was cut short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.outward.rules import Verdict
from tests.support.egress_rig import Reply, Rig, placeholder, reply, request, rig, rule
from tests.support.egress_upstream import Arrived

KEY = placeholder(7, "openai")
WAYS = ["tls", "tunnel", "absolute", "gateway"]
LAST = ["Connection: close", "Connection: Foo, CLOSE", "HTTP/1.0"]
MORE = ["", "Connection: keep-alive", "Connection: foo", "Proxy-Connection: close"]


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, rules=(rule(), rule(ports=(80,), plain=True, paths=("/a",)))) as made:
        made.kernel.gateway_port = made.plain.port
        yield made


def named(how: str) -> tuple[str, str]:
    """Target and Host of what is refused."""
    others = {"absolute": ("http://evil.test/", "evil.test"), "gateway": ("/model/x", "127.0.0.1")}
    return others.get(how, ("/", "evil.test"))


async def asked(way: Rig, how: str, *fields: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request that is refused, on a connection that could carry another."""
    path, host = named(how)
    minor = b"HTTP/1.0" if "HTTP/1.0" in fields else b"HTTP/1.1"
    words = [each for each in fields if each and ":" in each]
    said = request("GET", path, *words, host=host).replace(b"HTTP/1.1", minor, 1)
    if how in ("tls", "tunnel"):
        reader, writer = await way.tunnel("evil.test", 443 if how == "tls" else 80, tls=how == "tls")
        writer.write(said)
        return reader, writer
    return await way.raw(said)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("last", LAST)
async def test_a_refusal_ends_the_connection_of_whoever_asked_for_that(way: Rig, how: str, last: str) -> None:
    """Clients that read to the end would wait for it."""
    reader, writer = await asked(way, how, last)
    answered = await reply(reader)
    assert answered.status == (401 if how == "gateway" else 403)
    assert b"\r\nConnection: close\r\n" in answered.head
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("more", MORE)
async def test_and_of_nobody_else(way: Rig, how: str, more: str) -> None:
    """The control."""
    reader, writer = await asked(way, how, more)
    answered = await reply(reader)
    assert answered.status == (401 if how == "gateway" else 403)
    assert b"\r\nConnection: keep-alive\r\n" in answered.head
    path, host = named(how)
    writer.write(request("GET", path, host=host))
    assert (await reply(reader)).status == answered.status
    writer.close()


async def test_what_failed_upstream_ends_it_too(way: Rig) -> None:
    way.dialler.failing = "resolve_failed"
    for last, kept in (("Connection: close", b"close"), ("X: close", b"keep-alive")):
        reader, writer = await way.tunnel()
        writer.write(request("GET", "/", last))
        answered = await reply(reader)
        assert (answered.status, b"\r\nConnection: %b\r\n" % kept in answered.head) == (502, True)
        if kept == b"close":
            async with asyncio.timeout(10):
                assert await reader.read() == b""
        writer.close()


# --- bodies ------------------------------------------------------------------------------------------------------------


SHORT = [b"Content-Length: 9\r\n\r\nshort", b"Content-Length: 9\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\nsho"]


async def silent(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    await reader.read()
    return False


async def posted(way: Rig, how: str, rest: bytes, *, at_once: bool = True) -> Reply | None:
    """A request whose client closes its own side behind `rest`. None: nothing was answered."""
    target, host = (b"/model/x", b"127.0.0.1") if how == "gateway" else (b"http://api.test/a", b"api.test")
    head = b"POST %b HTTP/1.1\r\nHost: %b\r\nx-api-key: %b\r\n" % (
        target,
        host,
        b"k" if how != "gateway" else KEY.encode(),
    )
    reader, writer = await way.raw(head + rest)
    if not at_once:
        async with asyncio.timeout(10):
            while not way.dialler.look_ups and not way.kernel.gateways:
                await asyncio.sleep(0.01)
    writer.write_eof()
    try:
        answered = await reply(reader)
    except ConnectionError:
        return None
    async with asyncio.timeout(10):
        assert await reader.read() == b"", "an end, and no reset"
    return answered


@pytest.mark.parametrize("how", ["absolute", "gateway"])
@pytest.mark.parametrize("rest", SHORT)
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_body_that_is_cut_short_is_answered(way: Rig, how: str, rest: bytes, *, at_once: bool) -> None:
    answered = await posted(way, how, rest, at_once=at_once)
    assert answered is not None and (answered.status, answered.reason) == (400, "malformed")
    assert "ended before its length" in answered.error["message"] and b"\r\nConnection: close\r\n" in answered.head
    assert [each.body for each in way.plain.arrived] in ([], [b""])  # its head may have gone out


@pytest.mark.parametrize("how", ["absolute", "gateway"])
async def test_a_whole_one_whose_client_has_closed_his_side_is_given_up(way: Rig, how: str) -> None:
    """The control: no upstream works for nobody, and nothing of the request was wrong."""
    way.plain.handler = silent
    assert await posted(way, how, b"Content-Length: 5\r\n\r\nwhole", at_once=False) is None


async def test_a_hold_ends_with_the_body_that_was_cut_short(way: Rig) -> None:
    """Nobody waits for an owner's answer for a request that will not come."""
    held = asyncio.Event()

    async def hold(*_: object) -> str:
        held.set()
        await asyncio.Event().wait()
        raise AssertionError

    way.kernel.hold = hold  # type: ignore[assignment,method-assign]
    way.configure(rules=(rule(answer=Verdict.ASK, ports=(80,), plain=True),))
    reader, writer = await way.raw(b"POST http://api.test/ HTTP/1.1\r\nHost: api.test\r\n" + SHORT[0])
    async with asyncio.timeout(10):
        await held.wait()
    writer.write_eof()
    assert (await reply(reader)).status == 400
    assert way.dialler.look_ups == []


async def test_what_has_lost_permission_within_its_body_is_cut_without_a_word(way: Rig) -> None:
    """The box has not left: it is not told that its body was."""
    reader, writer = await way.raw(b"POST http://api.test/a HTTP/1.1\r\nHost: api.test\r\n" + SHORT[0])
    async with asyncio.timeout(10):
        while not way.dialler.look_ups:
            await asyncio.sleep(0.01)
    way.configure(rules=())
    with pytest.raises(ConnectionError):
        await reply(reader)
    writer.close()
