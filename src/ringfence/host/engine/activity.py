"""When each box was last at work, written lazily: at most one write each `active_seconds` for a box, never in a command's
way."""

from __future__ import annotations

import asyncio
import logging

from ringfence.host.engine.links import Links
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import NotFound, RingfenceError


class Activity:
    def __init__(self, parts: Parts, links: Links) -> None:
        self._parts, self._links = parts, links
        self._log = logging.getLogger("ringfence.engine")

    async def loop(self) -> None:
        while True:
            await asyncio.sleep(self._parts.config.active_seconds)
            await self.write()

    async def write(self) -> None:
        for slot in self._links:
            seen = slot.active_at
            if seen <= slot.saved_at:
                continue
            try:
                await self._parts.store.boxes.update(slot.box, active=True)
            except NotFound:  # removed, also by another server: nothing of it is at work
                self._links.drop(slot)
            except RingfenceError as error:
                self._log.warning("box %s: last activity was not written: %s", slot.box, error)
            else:
                slot.saved_at = seen
