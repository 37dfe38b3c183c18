"""What a kernel process does for the store while it runs: says that it is there, takes away what is too old, keeps room.

Each by itself: one that fails is logged, and tried again at the next turn. It must never hold up work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.kernels import HELLO_EVERY_SECONDS

BATCHES = 20  # of retention at one turn, as long as there is something to take away: at most 0.2 s of the writer's time
PAUSE_SECONDS = 0.05  # between two of them, for everybody else's writes


class Upkeep:
    def __init__(self, parts: Parts, crew: Crew) -> None:
        self._parts, self._crew = parts, crew
        self._log = logging.getLogger("ringfence.engine")

    async def start(self) -> None:
        """The first hello is durable when it returns: a contraction of the schema waits for us from now on."""
        await self._hello()
        self._crew.keep(self._loop(), "upkeep")

    async def stop(self) -> None:
        with suppress(RingfenceError):  # then it counts as killed
            await self._parts.store.kernels.bye(self._parts.worker)

    async def _loop(self) -> None:
        hello = self._parts.clock.monotonic() + HELLO_EVERY_SECONDS
        while True:
            await asyncio.sleep(self._parts.config.upkeep_seconds)
            store, now = self._parts.store, self._parts.clock.monotonic()
            await self._by_itself(store.reserve.keep)
            if now >= hello:
                hello = now + HELLO_EVERY_SECONDS
                for duty in (self._hello, self._end_calls, store.tokens.note_uses, store.log.look, self._retain):
                    await self._by_itself(duty)

    async def _by_itself(self, duty: Callable[[], Awaitable[object]]) -> None:
        """On a full volume nobody can say hello; what makes room comes after that."""
        try:
            await duty()
        except RingfenceError as error:
            self._log.error("upkeep: %s", error)

    async def _hello(self) -> None:
        config = self._parts.config
        await self._parts.store.kernels.hello(self._parts.worker, config.version, config.installation)

    async def _end_calls(self) -> None:
        """Of models, whose kernel is gone."""
        if self._parts.spending is not None:
            await self._parts.spending.sweep()

    async def _retain(self) -> None:
        for _ in range(BATCHES):
            if not await self._parts.store.retention.sweep(self._parts.config.keep):
                return
            await asyncio.sleep(PAUSE_SECONDS)
