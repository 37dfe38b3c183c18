"""What is taken back while a request is on its way: the binding, the stand-in, the grant. Nothing of it leaves, nothing lives on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.egress.judging import Policy
from ringfence.host.egress.tickets import Ticket
from ringfence.host.egress.works import Works
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Use
from ringfence.host.kernel.outward.ports import HoldAnswer
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from tests.support.egress_rig import (
    INVOCATION,
    SECRET,
    TRANSPARENT,
    Rig,
    binding,
    placeholder,
    reply,
    request,
    rig,
    rule,
)
from tests.support.egress_upstream import Arrived

PH = placeholder()
BEARER = f"Authorization: Bearer {PH}"


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        made.ticket(PH)
        yield made


class Gate:
    """Stops each dial until it is opened."""

    def __init__(self, way: Rig) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._real, self._way = way.dialler.connect, way
        way.dialler.connect = self.connect  # type: ignore[method-assign]

    async def connect(
        self, host: str, port: int, tls: bool = True
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.reached.set()
        await self.open.wait()
        return await self._real(host, port, tls)


async def events(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"5\r\ntick\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def goes_on(reader: asyncio.StreamReader) -> bool:
    """Whether more events come after those that were under way."""
    try:
        async with asyncio.timeout(2):
            for _ in range(20):
                if not await reader.readuntil(b"tick"):
                    return False
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    return True


def secrets_seen(way: Rig) -> int:
    return sum(SECRET in value for each in way.upstream.arrived for value in each.values("authorization"))


@pytest.mark.parametrize("use", [Use.INJECT, Use.PLACEHOLDER])
@pytest.mark.parametrize("taken", [True, False])
async def test_an_unbind_while_it_dials(way: Rig, use: Use, *, taken: bool) -> None:
    way.configure(bindings=(binding(use=use),))
    gate = Gate(way)
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/", *([BEARER] if use is Use.PLACEHOLDER else [])))
    await gate.reached.wait()
    way.configure(bindings=() if taken else (binding(use=use, environment=("TOKEN",)),))
    gate.open.set()
    if taken:
        with pytest.raises(ConnectionError):
            await reply(reader)
        assert secrets_seen(way) == 0 and way.kernel.asked == []
    else:  # the control: what is bound still goes on
        assert (await reply(reader)).status == 200
        assert secrets_seen(way) == 1


@pytest.mark.parametrize("changed", ["unbound", "another path", "control"])
async def test_a_stream_ends_with_its_binding(way: Rig, changed: str) -> None:
    way.upstream.handler = events
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/a", BEARER))
    await reader.readuntil(b"tick")
    now = {"unbound": (), "another path": (binding(paths=("/b",)),), "control": (binding(paths=("/a",)),)}
    way.configure(bindings=now[changed])
    assert await goes_on(reader) is (changed == "control")


@pytest.mark.parametrize("ended", [True, False])
async def test_a_stream_of_a_transparent_connection_ends_with_its_command(way: Rig, *, ended: bool) -> None:
    way.upstream.handler = events
    reader, writer = await way.raw(b"", TRANSPARENT)
    await way.greet(writer, "api.test")
    writer.write(request("GET", "/", BEARER))
    await reader.readuntil(b"tick")
    way.serving.ticketed(INVOCATION if ended else "inv_other", [])
    assert await goes_on(reader) is not ended


async def test_a_held_request_whose_stand_in_is_for_another_host_by_now(tmp_path: Path) -> None:
    """The stand-in lives on for a recipe's other binding; the one that the request was judged by is gone."""
    bindings = (binding(id="bnd_1"), binding("git.test", id="bnd_2"))
    async with rig(tmp_path, bindings=bindings, rules=(rule(answer=Verdict.ASK), rule("git.test"))) as way:
        ticket = Ticket(placeholders.digest(PH), "crd_1", "bnd_1", 5000.0, None, more=("bnd_2",))
        way.desk.tickets.replace(INVOCATION, [ticket])
        go, holding = asyncio.Event(), asyncio.Event()

        async def hold(invocation: str, rule: EgressRule, query: str = "") -> HoldAnswer:
            holding.set()
            await go.wait()
            return "allow"

        way.kernel.hold = hold  # type: ignore[method-assign]
        reader, writer = await way.tunnel()
        writer.write(request("GET", "/", BEARER))
        await holding.wait()
        way.serving.ticketed(INVOCATION, [replace(ticket, binding="bnd_2", more=())])
        go.set()
        with pytest.raises(ConnectionError):
            await reply(reader)
        assert secrets_seen(way) == 0


async def test_the_policy_in_force_is_asked_right_before_the_value(way: Rig) -> None:
    """Also without the cut of a reload: the second wall."""
    gate = Gate(way)
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/", BEARER))
    await gate.reached.wait()
    before = way.serving._now()
    configuration = replace(way.configuration, bindings=())
    way.serving._works = Works(
        configuration, Policy(configuration), before.minter, before.dialler, before.names, before.peek
    )
    gate.open.set()
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (502, "credential_unavailable")
    assert secrets_seen(way) == 0 and way.kernel.asked == []


async def test_a_revocation_while_the_value_is_asked_for(way: Rig) -> None:
    asked, go = asyncio.Event(), asyncio.Event()
    real = way.kernel.secret

    async def slow(*what: str) -> object:
        asked.set()
        await go.wait()
        return await real(*what)

    way.kernel.secret = slow  # type: ignore[method-assign, assignment]
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/", BEARER))
    await asked.wait()
    way.serving.revoke("crd_1")
    go.set()
    with pytest.raises(ConnectionError):
        await reply(reader)
    assert secrets_seen(way) == 0
