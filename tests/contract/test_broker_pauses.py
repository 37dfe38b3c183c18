"""The wire of a box that stands still by our own doing: what it does not read, say or answer meanwhile is no fault of its."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ringfence.host.broker.link import WireLink
from ringfence.host.kernel.errors import BoxLost
from ringfence.host.kernel.ids import RunId
from tests.support.broker_rig import answer, rig, until, within
from tests.support.scripted_guest import ScriptedGuest

SHORT = 0.05  # each bound; the box stands still for six of them
BOUNDS: dict[str, Any] = {"reply_seconds": SHORT, "frame_seconds": SHORT, "write_seconds": SHORT}
Owing = Callable[[WireLink, ScriptedGuest], Awaitable[Any]]


async def _answer(link: WireLink, guest: ScriptedGuest) -> asyncio.Future[None]:
    return asyncio.ensure_future(link.cancel_run(RunId("run_a"), 1.0))


async def _frame(link: WireLink, guest: ScriptedGuest) -> None:
    await guest.send(b'{"m": "cmd.cre')


async def _reading(link: WireLink, guest: ScriptedGuest) -> None:
    for _ in range(15):  # 1.5 MB: more than a socket holds
        link.exchange.say("bye", {"reason": "x" * 100_000})


OWING = [(_answer, "silent"), (_frame, "slow_frame"), (_reading, "slow_reader")]


@pytest.mark.parametrize(("owing", "kind"), OWING)
async def test_nothing_is_overdue_while_it_stands_still(owing: Owing, kind: str) -> None:
    async with rig(**BOUNDS) as r:
        link, _ = await r.attach()
        link.paused()
        owed = await owing(link, r.guests[0])
        await asyncio.sleep(6 * SHORT)
        assert link.alive and r.audit.kinds == []
        telling = asyncio.ensure_future(link.resumed("p", 0.3))  # from here on it is, if it goes on so
        with pytest.raises(BoxLost):
            await within(telling)
        if owed is not None:
            with pytest.raises(BoxLost):
                await within(owed)
        assert len(r.audit.kinds) == 1


@pytest.mark.parametrize(("owing", "kind"), OWING)
async def test_control_one_that_does_not_stand_still_is_given_up(owing: Owing, kind: str) -> None:
    async with rig(**BOUNDS) as r:
        link, guest = await r.attach()
        owed = await owing(link, guest)
        await until(lambda: r.audit.kinds == [kind])
        assert not link.alive
        if owed is not None:
            with pytest.raises(BoxLost):
                await within(owed)


async def test_an_answer_that_comes_after_it_is_taken() -> None:
    async with rig(reply_seconds=1.0) as r:
        link, guest = await r.attach()
        link.paused()
        cancelling = asyncio.ensure_future(link.cancel_run(RunId("run_a"), 1.0))
        await asyncio.sleep(1.5)
        telling = asyncio.ensure_future(link.resumed("p", 1.5))
        await within(answer(guest, "run.cancel"))
        assert await within(answer(guest, "box.resumed")) == {"pause": "p", "seconds": 1.5}
        await within(cancelling)
        await within(telling)
        assert link.alive and r.audit.kinds == []
