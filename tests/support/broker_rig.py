"""What the tests of the broker share: a broker, a host and an audit that remember, and an attached scripted guest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar

from ringfence.host.broker.bounds import Bounds
from ringfence.host.broker.broker import WireBroker
from ringfence.host.broker.link import WireLink
from ringfence.host.kernel.ports import CommandSpec
from ringfence.wire.messages import ThreadMessage
from tests.support.scripted_guest import BOX, SECONDS, AuditLog, RecordingHost, ScriptedGuest

Result = TypeVar("Result")
RUN_START: dict[str, Any] = {
    "run": "run_a",
    "token": "t" * 52,
    "thread": "thr_a",
    "actor": "alice",
    "epoch": 1,
    "summary": None,
    "messages": [ThreadMessage("user", "alice", "$ true", 1)],
    "earlier": 0,
    "steers": [],
    "checkpoint": None,
    "next_step": 1,
    "model": "scripted",
    "window": 100_000,
    "tools": [],
    "posture": "a box",
}


class Rig:
    def __init__(self, bounds: Bounds, redials: bool) -> None:
        self.host = RecordingHost()
        self.host.redials = redials
        self.audit = AuditLog()
        self.broker = WireBroker("kernel-1", self.audit, bounds)
        self.guests: list[ScriptedGuest] = []

    async def attach(self, **hello: Any) -> tuple[WireLink, ScriptedGuest]:
        """One more wire to the box, greeted."""
        guest = ScriptedGuest()
        self.guests.append(guest)
        link, _ = await within(both(self.broker.attach(BOX, guest.take_fd(), self.host), guest.greet(**hello)))
        return link, guest


@asynccontextmanager
async def rig(*, redials: bool = False, **bounds: Any) -> AsyncIterator[Rig]:
    """`bounds`: other than those of the product. `redials`: the engine is busy dialling until told to give up."""
    made = Rig(replace(Bounds(), **bounds), redials)
    try:
        yield made
    finally:
        await made.broker.close()
        for guest in made.guests:
            guest.close()


async def within(work: Awaitable[Result]) -> Result:
    return await asyncio.wait_for(work, SECONDS)


async def both(first: Awaitable[Any], second: Awaitable[Any]) -> tuple[Any, Any]:
    return await asyncio.gather(first, second)


async def until(true: Callable[[], bool]) -> None:
    """Waits until it is, or fails."""
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.002)


def spec(output: Literal["stream", "keep"] = "stream", stdin: Literal["null", "pipe"] = "null") -> CommandSpec:
    return CommandSpec([b"true"], {"LANG": b"C"}, "/home/user", stdin, output, None)


async def answer(guest: ScriptedGuest, method: str, **ok: Any) -> dict[str, Any]:
    """Hears the host's request and answers it; its parameters."""
    frame = await guest.hear(method)
    await guest.say(re=frame["id"], ok=ok)
    params: dict[str, Any] = frame["p"]
    return params


async def asked(guest: ScriptedGuest, number: int, method: str, run: str = "run_a", **params: Any) -> dict[str, Any]:
    """A loop asks with the token `tok`, unless it is given another one; the reply."""
    await guest.loop_says(run, id=number, m=method, p={"token": "tok", **params})
    heard, reply = await guest.loop_hears()
    assert (heard, reply["re"]) == (run, number)
    return reply
