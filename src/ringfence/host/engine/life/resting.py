"""Pausing: every process of a box stands still and keeps its memory, until the next use or `resume`.

Whoever needs the box resumes it (bringup). A pause never meets a command that is being begun: those are waited for, and whoever
comes after waits for the lock. Whatever goes wrong on the way, the box goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.crew import uncut
from ringfence.host.engine.life.presence import Presence
from ringfence.host.engine.life.standing import entered
from ringfence.host.engine.links import Slot
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.outward import Outward
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redrive import Redriver
from ringfence.host.kernel.boxes import Box, Rest
from ringfence.host.kernel.errors import Conflict, Refused, RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.states import State, Verb, state_of, step

ENTERED_SECONDS = 10.0  # for commands that are being begun; one takes a ms
PARKED_SECONDS = 10.0  # for runs that are put back; each is a commit
BUSY = "busy"  # of Box.made_of: whether a command was at work in it when it was paused
AT_WORK = "a run is at work in the box: {what}"


class Resting:
    def __init__(
        self, parts: Parts, bringup: BringUp, presence: Presence, live: LiveRuns, redriver: Redriver, outward: Outward
    ) -> None:
        self._parts, self._bringup, self._presence, self._live = parts, bringup, presence, live
        self._redriver, self._outward = redriver, outward
        self._log = logging.getLogger("ringfence.engine")

    async def pause(
        self, box: BoxId, *, generation: int | None = None, due: Callable[[], bool] | None = None, force: bool = False
    ) -> Box:
        """`due`: only if that is so, also when nothing can begin in it any more. `force`: runs at work go back to the queue, and wait
        there until the box is resumed. Commands stand still with the box, and so do their time-outs. Conflict, Refused (quarantine), Unavailable."""
        slot = self._bringup.slot(box)
        async with slot.hold("it is being paused"):
            return await self.pause_locked(slot, generation=generation, due=due, force=force)

    async def pause_locked(
        self, slot: Slot, *, generation: int | None = None, due: Callable[[], bool] | None = None, force: bool = False
    ) -> Box:
        """`pause` for who has the slot's lock."""
        row = await self._parts.store.boxes.get(slot.box)
        step(row, Verb.PAUSE, generation=generation)
        if state_of(row) is State.PAUSED and slot.paused:
            await self._freeze(slot.box)  # it may have been let go on by hand
            return row
        _check_due(due)
        slot.paused, slot.paused_at = True, None  # from here on whoever needs it waits for the lock
        try:
            return await self._paused(slot, row, due, force)
        except BaseException:
            await uncut(self._goes_on(slot, row))
            raise

    async def _paused(self, slot: Slot, row: Box, due: Callable[[], bool] | None, force: bool) -> Box:
        await entered(slot, ENTERED_SECONDS)
        _check_due(due)
        runs = self._live.on(slot.box)
        if runs and not force:
            raise Conflict(AT_WORK.format(what=runs[0].id), remedy="wait for it, or park it: --force", run=runs[0].id)
        boxes = self._parts.store.boxes
        if runs:
            await boxes.hold(slot.box)  # before they are put back: else they were claimed again
            await self._put_back(slot)
        await self._bringup.leaving(slot.box)
        slot.paused_at = self._parts.clock.monotonic()  # before: also when nobody can say whether it stands still
        if slot.link is not None:
            slot.link.paused()
        await self._outward.paused(slot.box)
        await self._freeze(slot.box)
        made_of = {**(row.made_of or {}), BUSY: bool(slot.uses)}
        return await boxes.update(slot.box, rest=Rest.PAUSED, made_of=made_of)

    async def _freeze(self, box: BoxId) -> None:
        try:
            await self._parts.driver.freeze(box)
        except Refused as error:  # it was stopped, or ended, meanwhile
            raise Conflict(f"the box ended while it was to be paused: {error.message}", remedy="look again") from error

    async def _put_back(self, slot: Slot) -> None:
        try:
            async with asyncio.timeout(PARKED_SECONDS):
                for held in self._live.on(slot.box):
                    await self._redriver.lost(held, "box_paused", "its box was paused by hand")
        except TimeoutError:
            raise Conflict("a run of the box cannot be put back now", remedy="try again, or stop the box") from None

    async def _goes_on(self, slot: Slot, row: Box) -> None:
        """As if nothing had been asked. Its runs are held back no more, whatever becomes of the box."""
        try:
            await self._parts.store.boxes.update(slot.box, rest=Rest.NONE)
        except RingfenceError as error:
            self._log.error("box %s: that it goes on is not written: %s", slot.box, error)
        await self._bringup.goes_on(slot, row)


def _check_due(due: Callable[[], bool] | None) -> None:
    if due is not None and not due():
        raise Conflict("the box is at work again")
