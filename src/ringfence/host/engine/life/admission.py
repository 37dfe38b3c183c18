"""Room for one more box: caps, and what the host has left. Who waits for room is served in turn.

A box that is idle makes room, the longest idle first; one that is at work never does. Must be left again (`done`) by whoever was let in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ringfence.host.engine.crew import uncut
from ringfence.host.engine.life.presence import Presence
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId, TenantId
from ringfence.host.kernel.life.caps import Caps, Room, Up, longest_idle, pressed, room
from ringfence.host.kernel.life.logs import Source

_PRESSED_SECONDS = 5.0  # between two boxes that are stopped for one that waits, while the host is short of memory
_LOOK_SECONDS = 0.25  # between two looks for room, when nobody says that there is some

Evict = Callable[[BoxId, str], Coroutine[Any, Any, bool]]


@dataclass(eq=False, slots=True)
class _Ticket:
    box: Box


class Admission:
    def __init__(self, parts: Parts, presence: Presence, evict: Evict) -> None:
        """`evict`: stops that box if it is idle still; False: it was not."""
        self._parts, self._presence, self._evict = parts, presence, evict
        self._tenants: dict[BoxId, TenantId] = {}  # of boxes that were let in
        self._starting: dict[BoxId, TenantId] = {}
        self._waiting: deque[_Ticket] = deque()
        self._relieved = float("-inf")
        self._changed = asyncio.Event()
        self._log = logging.getLogger("ringfence.engine")

    @property
    def _caps(self) -> Caps:
        return self._parts.config.caps

    def know(self, box: Box) -> None:
        """It runs since before this server."""
        self._tenants[box.id] = box.tenant

    async def admit(self, box: Box) -> None:
        """Returns when the box may start. Unavailable: there was no room in time."""
        if not self._waiting and self._room(box).free:
            self._begin(box)
            return
        ticket = _Ticket(box)
        self._waiting.append(ticket)
        try:
            if not await self._next(ticket):
                async with asyncio.timeout(self._caps.wait_seconds):
                    await self._change()
                    while not await self._next(ticket):
                        await self._change()
            self._begin(box)
        except TimeoutError:
            raise Unavailable(
                f"no room for another box: {self._room(box).why or 'others wait before it'}",
                remedy="try again when a box is idle; an operator: ringfence box ls, boxes.most in ringfence.toml",
            ) from None
        finally:
            self._waiting.remove(ticket)
            self._changed.set()

    async def _next(self, ticket: _Ticket) -> bool:
        """Whether it is its turn, and there is room. Who waits for room of its own tenant holds up nobody of another."""
        for earlier in self._waiting:
            if earlier is ticket:
                return await self._made(ticket.box)
            own = self._room(earlier.box).own
            if not own or earlier.box.tenant == ticket.box.tenant:
                return False
        return False

    def done(self, box: BoxId) -> None:
        """It is up, or did not come up."""
        self._starting.pop(box, None)
        self._changed.set()

    def gone(self, box: BoxId) -> None:
        self._tenants.pop(box, None)
        self._presence.forget(box)
        self._changed.set()

    async def relieve(self) -> None:
        """While the host is short of memory: the longest idle box is stopped, one at each look."""
        if not (why := pressed(self._parts.load(), self._caps)):
            return
        up = self._up()
        while (idle := longest_idle(up)) is not None:
            self._log.warning("%s: box %s, the longest idle one, is stopped", why, idle)
            if await self._gone(idle, why):
                return
            up = [each for each in up if each.box != idle]  # that one cannot be stopped: another one then

    def _begin(self, box: Box) -> None:
        self._starting[box.id] = self._tenants[box.id] = box.tenant

    def _up(self) -> list[Up]:
        """But for those that are counted as starting."""
        return [each for each in self._presence.up(self._tenants) if each.box not in self._starting]

    def _room(self, box: Box) -> Room:
        up = self._up()
        if why := pressed(self._parts.load(), self._caps):
            gone = longest_idle(up)
            return Room(False, gone, "" if gone is not None else why, pressed=True)
        return room(up, box.tenant, self._caps, self._starting.values())

    async def _made(self, box: Box) -> bool:
        """Room, by stopping an idle one if need be."""
        found = self._room(box)
        if found.free or found.go is None:
            return found.free
        now = self._parts.clock.monotonic()
        if found.pressed:
            if now - self._relieved < _PRESSED_SECONDS:  # what was stopped a moment ago does not show yet
                return False
            self._relieved = now
        self._log.info("box %s makes room for box %s", found.go, box.id)
        return await self._gone(found.go, "another box needed the room") and self._room(box).free

    async def _gone(self, box: BoxId, why: str) -> bool:
        """To its end, whoever waits: half of a stop would leave a box that nobody sees."""
        try:
            gone = await uncut(self._evict(box, why))
        except RingfenceError as error:
            self._log.error("box %s could not be stopped: %s", box, error)
            return False
        if gone:
            self._parts.logs.tell(box, Source.LIFE, f"stopped: {why}")
        return gone

    async def _change(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            pass
