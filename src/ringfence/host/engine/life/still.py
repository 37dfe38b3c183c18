"""What PID 1 of a box is told of a pause: how long it was, so that time-outs count the time that the box is awake.

It is written before the box goes on, where there is a wire, and lies in its socket when PID 1 wakes; else over the first wire
that there is. Said twice it counts once. A server that dies before it has said so leaves time-outs that are over early: by what
nobody told of the pause, never a command that runs longer than it may.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.links import Slot
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, Rest
from ringfence.host.kernel.errors import RingfenceError, Unavailable
from ringfence.host.kernel.ports import Link


class Still:
    def __init__(self, parts: Parts, crew: Crew, slot: Slot, box: Box | None = None) -> None:
        """Just before the box goes on. `box`: its row, which names the pause for every server that tells of it."""
        self._crew, self._slot = crew, slot
        rested = box.rested_at if box is not None and box.rest is Rest.PAUSED else None
        self._pause = rested.isoformat() if rested is not None else f"{slot.paused_at}"
        since = slot.paused_at
        self._seconds = max(0.0, parts.clock.monotonic() - since) if since is not None else 0.0
        self._told: tuple[Link, asyncio.Future[None]] | None = None
        self._log = logging.getLogger("ringfence.engine")

    async def write(self) -> None:
        """Before the thaw: waits for nothing. What finds no room on the wire now goes out when PID 1 reads on."""
        link = self._slot.link
        if link is None or not link.alive or self._slot.paused_at is None:
            return
        with suppress(Unavailable):  # the server ends: the next one's to say
            self._told = (link, self._crew.begin(link.resumed(self._pause, self._seconds), f"resumed {self._slot.box}"))
            await asyncio.sleep(0)  # its first step is the write

    async def heard(self) -> None:
        """After the thaw, and again after a wire was made: PID 1 has it, or there is no wire. Never raises for that."""
        link = self._slot.link
        if link is None or not link.alive or self._slot.paused_at is None:
            return
        if self._told is None or self._told[0] is not link:
            await self.write()
        try:
            if self._told is not None:
                await asyncio.shield(self._told[1])
        except RingfenceError as error:
            self._log.info("box %s was not told of its pause: %s", self._slot.box, error)
