"""What a restarted server does about boxes: every one that still runs is adopted by its identity, in parallel (E81).

Intent and observation are brought together. A box that the driver runs and the store does not know is reported, never
touched: it may belong to a store that is about to be restored. A skill's jail without a row is removed: nothing in it
outlives the call that it was made for, and nobody is left who waits for that.
"""

from __future__ import annotations

import asyncio
import logging

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.homes import is_here
from ringfence.host.engine.life.adoption import Adoption
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, Desired, Observed
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId

AT_ONCE = 32  # adoptions under way: each is one question to the driver and one dial


class Reconcile:
    def __init__(self, parts: Parts, bringup: BringUp, adoption: Adoption) -> None:
        self._parts, self._bringup, self._adoption = parts, bringup, adoption
        self._log = logging.getLogger("ringfence.engine")
        self.adopted: list[BoxId] = []
        self.unknown: list[BoxId] = []  # run by the driver, in no row of the store

    async def run(self) -> None:
        everywhere = await self._parts.store.boxes.all()
        rows = [row for row in everywhere if is_here(self._parts, row)]
        known = {row.id for row in rows}
        for jail in set(await self._parts.driver.jails()) - known:
            await self._remove(jail)
        running = set(await self._parts.driver.running())
        self.unknown = sorted(running - known)
        gate = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for row in rows:
                group.create_task(self._one(row, row.id in running, gate))
        if self.unknown:
            self._log.warning("boxes run that the store does not know: %s", ", ".join(self.unknown))

    async def _remove(self, jail: BoxId) -> None:
        self._log.warning("jail %s was left by an earlier server: removed", jail)
        try:
            await self._parts.driver.remove(jail)
        except RingfenceError as error:
            self._log.error("jail %s could not be removed: %s", jail, error)

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
        if sight.state is Observed.RUNNING and await self._adoption.adopt(box, sight):
            self.adopted.append(box.id)
