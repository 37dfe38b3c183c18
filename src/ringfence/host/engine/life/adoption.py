"""Adopting: a box that ran before this server did is served on, as it was left. Starts nothing."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import datetime

from ringfence.host.engine.bringup import UNKNOWN_USE, BringUp
from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, Desired, Observed, Rest
from ringfence.host.kernel.errors import BoxLost, RingfenceError
from ringfence.host.kernel.life.drift import UNKNOWN, drift
from ringfence.host.kernel.ports import Sight


class Adoption:
    def __init__(self, parts: Parts, links: Links, bringup: BringUp) -> None:
        self._parts, self._links, self._bringup = parts, links, bringup
        self._log = logging.getLogger("ringfence.engine")

    async def adopt(self, box: Box, sight: Sight) -> bool:
        """A box that ran before this server did: its wire, without starting anything. False: it does not answer."""
        slot = self._links.slot(box.id)
        async with slot.lock:
            if slot.wire() is not None:
                return True
            if sight.identity is None:
                return False
            self._remember(slot, box)
            self._bringup.admission.know(box)
            if sight.frozen and box.rest is Rest.PAUSED and box.identity == sight.identity:
                slot.paused = True  # as it was left
                if (box.made_of or {}).get("busy"):
                    slot.uses.add(UNKNOWN_USE)
                return True
            if box.quarantined_at is not None:  # a server ended between its row and its standing still
                await self._isolated(slot)
                return True
            if sight.frozen:  # a server ended between the freeze and its row
                await self._parts.driver.thaw(box.id)
            slot.kills.reset(self._parts.clock.monotonic(), sight.oom_kills)
            try:
                await self._links.connect(slot, sight.identity)
            except BoxLost as error:
                self._log.warning("box %s was not adopted: %s", box.id, error)
                await self._bringup.fell(slot)
                with suppress(RingfenceError):
                    await self._parts.driver.stop(box.id)
                return False
            lost = box.identity != sight.identity  # with the row of its start
            row = await self._parts.store.boxes.update(
                box.id,
                observed=Observed.RUNNING,
                uid=sight.uid,
                identity=sight.identity,
                started=lost,
                rest=Rest.NONE,  # also what a pause that was cut short has held back
                made_of=UNKNOWN if lost else None,
            )
            slot.drifted = tuple(drift(row, self._parts.facts))
            if (link := slot.wire()) is not None:
                await self._bringup.listening(slot, box, link)
            return True

    async def _isolated(self, slot: Slot) -> None:
        slot.paused = True
        try:
            await self._parts.driver.freeze(slot.box)
            await self._parts.store.boxes.update(slot.box, rest=Rest.PAUSED)
        except RingfenceError as error:
            self._log.warning("box %s is in quarantine, cannot stand still and is stopped: %s", slot.box, error)
            await self._bringup.down_locked(slot, Desired.STOPPED)

    def _remember(self, slot: Slot, box: Box) -> None:
        """Since when it runs, and is idle, by its row."""
        now, wall = self._parts.clock.monotonic(), self._parts.clock.now()

        def ago(at: datetime | None) -> float:
            return now - max(0.0, (wall - at).total_seconds()) if at is not None else now

        slot.drifted = tuple(drift(box, self._parts.facts))
        slot.paused_at = ago(box.rested_at)
        slot.started_at, slot.quarantined = ago(box.started_at), box.quarantined_at is not None
        slot.active_at = slot.saved_at = max(ago(box.last_active_at or box.started_at), slot.started_at)
