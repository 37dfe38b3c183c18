"""Dialling the PID 1 of a box that runs: how often, and how long apart. Whoever dials has the slot's lock; starts and stops nothing."""

from __future__ import annotations

import asyncio
import logging

from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Observed
from ringfence.host.kernel.errors import BoxLost
from ringfence.host.kernel.ports import Link

REDIALS = 3  # of a lost wire, at once, while the driver still sees the box running
_REDIAL_PAUSE = 0.05  # seconds, times the number of failures so far
STEADY_SECONDS = 10.0  # a wire that lived this long was a good one
# Wires in a row that did not: 0 + 0 + 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 2 s of pauses, then the box is lost. A guest that
# breaks a rule with each hello would otherwise be dialled 400 times a second, for ever.
MOST_BREAKS = 8


class Dialling:
    def __init__(self, parts: Parts, links: Links) -> None:
        self._parts, self._links = parts, links
        self._log = logging.getLogger("ringfence.engine")

    async def calm(self, slot: Slot) -> None:
        """Counts wires that end as soon as they are made, and waits before the next one. Without the lock: a stop is
        not to wait for this."""
        lived = self._parts.clock.monotonic() - slot.dialled_at
        slot.breaks = slot.breaks + 1 if lived < STEADY_SECONDS else 1
        if 2 < slot.breaks <= MOST_BREAKS:
            await asyncio.sleep(min(2.0, 0.1 * 2 ** (slot.breaks - 3)))
        elif slot.breaks > MOST_BREAKS:
            self._log.warning("box %s: %d wires in a row were broken at once: given up", slot.box, slot.breaks)

    async def dialled(self, slot: Slot) -> Link | None:
        """None: it does not run, or does not answer."""
        for failures in range(1, REDIALS + 1):
            sight = await self._parts.driver.observe(slot.box)
            if sight.state is not Observed.RUNNING or sight.identity is None:
                return None
            try:
                return await self._links.connect(slot, sight.identity)
            except BoxLost as error:
                self._log.warning("box %s runs and does not answer (%d): %s", slot.box, failures, error)
                await asyncio.sleep(_REDIAL_PAUSE * failures)
        return None
