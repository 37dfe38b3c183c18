"""What a restarted server does about boxes: every one that still runs is adopted by its identity, in parallel (E81).

Intent and observation are brought together. A box that the driver runs and the store does not know is reported, never
touched: it may belong to a store that is about to be restored.
"""

from __future__ import annotations

import asyncio
import logging

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, Desired, Observed
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId

AT_ONCE = 32  # adoptions under way: each is one question to the driver and one dial


class Reconcile:
    def __init__(self, parts: Parts, bringup: BringUp) -> None:
        self._parts, self._bringup = parts, bringup
        self._log = logging.getLogger("ringfence.engine")
        self.adopted: list[BoxId] = []
        self.unknown: list[BoxId] = []  # run by the driver, in no row of the store

    async def run(self) -> None:
        running = set(await self._parts.driver.running())
        rows = await self._parts.store.boxes.all()
        self.unknown = sorted(running - {row.id for row in rows})
        gate = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for row in rows:
                group.create_task(self._one(row, row.id in running, gate))
        if self.unknown:
            self._log.warning("boxes run that the store does not know: %s", ", ".join(self.unknown))

    async def _one(self, box: Box, running: bool, gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                await self._settle(box, running)
            except RingfenceError as error:
                self._log.error("box %s could not be looked after: %s", box.id, error)

    async def _settle(self, box: Box, running: bool) -> None:
        if not running:
            if box.observed in (Observed.RUNNING, Observed.STARTING):
                await self._parts.store.boxes.update(box.id, observed=Observed.LOST)
            return
        if box.desired is not Desired.RUNNING:  # stopping it was asked and not finished
            await self._bringup.down(box.id, box.desired)
            return
        sight = await self._parts.driver.observe(box.id)
        if sight.state is Observed.RUNNING and await self._bringup.adopt(box, sight):
            self.adopted.append(box.id)
