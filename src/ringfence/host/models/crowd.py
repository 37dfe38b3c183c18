"""Who is at the gateway, and how many large requests are there at once.

A body of 20 MiB is 100 MiB while it is parsed. A few of a user are there at a time, from their first byte until a
provider has taken them, and fewer of all are parsed; the others wait with their bytes in their own sockets. Small ones
are let go once they are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from ringfence.host.kernel.ids import UserId

_LARGE = 3  # of all users together, parsed at once: 300 MiB
_BODIES = 4  # of one user, in memory at once: 80 MiB


class Turn:
    """One body's."""

    def __init__(self, large: asyncio.Semaphore, bodies: asyncio.Semaphore) -> None:
        self._large, self._bodies, self._over = large, bodies, False

    def over(self) -> None:
        """The body is no longer held, or is too small to matter. Idempotent."""
        if not self._over:
            self._over = True
            self._bodies.release()

    @asynccontextmanager
    async def large(self) -> AsyncIterator[None]:
        async with self._large:
            yield


class _Place:
    def __init__(self) -> None:
        self.bodies = asyncio.Semaphore(_BODIES)
        self.waiting = 0


class Crowd:
    def __init__(self) -> None:
        self._large = asyncio.Semaphore(_LARGE)
        self._places: dict[UserId, _Place] = {}
        self.connections = 0

    @contextmanager
    def joined(self) -> Iterator[None]:
        """While a connection is there."""
        self.connections += 1
        try:
            yield
        finally:
            self.connections -= 1

    @asynccontextmanager
    async def body(self, user: UserId) -> AsyncIterator[Turn]:
        """For a body of the user's: until it is `over`."""
        place = self._places.setdefault(user, _Place())
        place.waiting += 1
        try:
            await place.bodies.acquire()
            turn = Turn(self._large, place.bodies)
            try:
                yield turn
            finally:
                turn.over()
        finally:
            place.waiting -= 1
            if not place.waiting:
                self._places.pop(user, None)
