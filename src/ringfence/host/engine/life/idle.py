"""The look at all boxes that brings them to rest: idle, too old, out of their time, or in the way of the host.

What is due is a pure function of facts (kernel.life.rests); since when a box runs, is idle or is stopped is in its row, so that a
server that was killed in between goes on counting (E80). Each box is for itself: one that cannot be brought to rest is logged once
and looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.homes import is_here
from ringfence.host.engine.life.presence import Presence
from ringfence.host.engine.life.resting import Resting
from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, BoxKind, Desired
from ringfence.host.kernel.errors import Conflict, NotFound, RingfenceError
from ringfence.host.kernel.life.drift import drift
from ringfence.host.kernel.life.logs import Source
from ringfence.host.kernel.life.rests import Due, Facts, due
from ringfence.host.kernel.life.states import State, Verb, freezes, state_of

_AT_ONCE = 8  # brought to rest at the same time
_ROWS_SECONDS = 60.0  # between two looks at rows: at what stopped boxes are, and at what the host has become

Archive = Callable[[Box], Awaitable[None]]


class Idle:
    def __init__(
        self,
        parts: Parts,
        links: Links,
        bringup: BringUp,
        presence: Presence,
        resting: Resting,
        archive: Archive | None = None,
    ) -> None:
        """`archive`: packs the tree of a stopped box; None: nothing is archived."""
        self._parts, self._links, self._bringup = parts, links, bringup
        self._presence, self._resting, self._archive = presence, resting, archive
        self._looked_at_rows = 0.0
        self._rows_due = asyncio.Event()
        self._trouble: dict[str, str] = {}
        self._log = logging.getLogger("ringfence.engine")

    async def loop(self) -> None:
        while True:
            await asyncio.sleep(self._parts.config.rest_seconds)
            try:
                await self.look()
            except RingfenceError as error:
                self._log.error("boxes are not looked at: %s", error)

    async def archiving(self) -> None:
        """A loop of its own, one box at a time: to pack a tree takes minutes, and what else is due does not wait for that."""
        while True:
            await self._rows_due.wait()
            self._rows_due.clear()
            try:
                await self.put_away()
            except RingfenceError as error:
                self._log.error("boxes are not archived: %s", error)

    async def look(self) -> None:
        try:
            await self._bringup.admission.relieve()
        except RingfenceError as error:
            self._log.error("no box was stopped for the host's memory: %s", error)
        slots = [slot for slot in self._links if slot.paused or slot.wire() is not None]
        found = [(slot, what) for slot in slots if (what := self._due(slot)) is not None]
        for at in range(0, len(found), _AT_ONCE):
            await asyncio.gather(*(self._done(slot, what) for slot, what in found[at : at + _AT_ONCE]))
        now = self._parts.clock.monotonic()
        if now - self._looked_at_rows >= _ROWS_SECONDS:
            self._looked_at_rows = now
            await self._look_at_rows()

    def _due(self, slot: Slot) -> Due | None:
        """Of one that is up, by what is remembered of it. One that is being started, stopped or dialled: not now."""
        if slot.lock.locked() or slot.flight is not None:
            return None
        return self._due_of(slot, State.PAUSED if slot.paused else State.RUNNING)

    def _due_of(self, slot: Slot, state: State) -> Due | None:
        facts = Facts(
            state=state,
            idle=self._presence.idle(slot),
            age=max(0.0, self._parts.clock.monotonic() - slot.started_at),
            can_pause=freezes(self._parts.facts),
            drifted=slot.drifted,
            quarantined=slot.quarantined,
        )
        return due(facts, self._parts.config.rests)

    async def _done(self, slot: Slot, what: Due) -> None:
        try:
            row = await self._parts.store.boxes.get(slot.box)
            if row.kind is not BoxKind.HOME or row.desired is Desired.REMOVED:
                return
            now = self._due(slot)  # it waited for others, and for its row
            if now is not None and (now.verb, now.force) == (what.verb, what.force):
                await self._do(slot, row, now, State.PAUSED if slot.paused else State.RUNNING)
        except (Conflict, NotFound) as error:
            self._log.debug("box %s does not rest: %s", slot.box, error)
        except RingfenceError as error:
            if self._trouble.get(slot.box) != error.message:
                self._log.error("box %s cannot be brought to rest: %s", slot.box, error)
            self._trouble[slot.box] = error.message
        else:
            self._trouble.pop(slot.box, None)

    async def _do(self, slot: Slot, row: Box, what: Due, state: State) -> None:
        def still() -> bool:
            """Once nobody else has the box: it may have been used, and come to rest again, since it was looked at."""
            now = self._due_of(slot, state)
            up = slot.paused or slot.link is not None
            return up and now is not None and (now.verb, now.force) == (what.verb, what.force)

        if what.verb is Verb.PAUSE:
            await self._resting.pause(slot.box, generation=row.generation, due=still)
            self._log.info("box %s is paused: %s", slot.box, what.why)
            self._parts.logs.tell(slot.box, Source.LIFE, f"paused: {what.why}")
        elif await self._bringup.evict(slot.box, what.why, still):
            self._parts.logs.tell(slot.box, Source.LIFE, f"stopped: {what.why}")

    async def _look_at_rows(self) -> None:
        self._parts.facts.update(await self._parts.driver.facts())  # the host's packages may be others by now
        for row in await self._parts.store.boxes.all():
            if row.kind is not BoxKind.HOME or not is_here(self._parts, row):
                continue
            if (slot := self._links.find(row.id)) is not None:
                slot.drifted = tuple(drift(row, self._parts.facts))
        self._rows_due.set()

    async def put_away(self) -> None:
        """Boxes that were stopped, and unused, for so long. Each is looked at again right before: the one before took its time."""
        if self._archive is None or not self._parts.config.rests.archive_after:
            return
        for known in await self._parts.store.boxes.all():
            if not is_here(self._parts, known) or not self._archive_due(known):
                continue
            try:
                row = await self._parts.store.boxes.get(known.id)
                if self._archive_due(row):
                    await self._archive(row)
            except (Conflict, NotFound) as error:
                self._log.debug("box %s is not archived: %s", known.id, error)
            except RingfenceError as error:
                self._log.error("box %s cannot be archived: %s", known.id, error)

    def _archive_due(self, row: Box) -> bool:
        if row.kind is not BoxKind.HOME or row.desired is Desired.REMOVED or state_of(row) is not State.STOPPED:
            return False
        down, slot = max(0.0, (self._parts.clock.now() - _unused_since(row)).total_seconds()), self._links.find(row.id)
        if slot is not None:
            if slot.lock.locked() or slot.using_files:
                return False
            if slot.active_at:  # what the row has of it is written lazily
                down = min(down, max(0.0, self._parts.clock.monotonic() - slot.active_at))
        facts = Facts(State.STOPPED, down=down, quarantined=row.quarantined_at is not None)
        return due(facts, self._parts.config.rests) is not None


def _unused_since(row: Box) -> datetime:
    """When it stopped, or its files were last used. Rows of former releases have no first."""
    known = [at for at in (row.rested_at, row.last_active_at) if at is not None]
    return max(known, default=row.started_at or row.created_at)
