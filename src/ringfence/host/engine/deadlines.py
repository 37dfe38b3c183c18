"""How long a run may work: past the soft deadline its loop is told to come to an end, past the hard one it is ended.

Counted are the seconds under a lease of all its attempts, never those in which it waited. What the loop does or does not
ask plays no part in it. Carried out by one task that looks about once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.endings import Endings
from ringfence.host.engine.leaving import Leaving
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import NotFound, RingfenceError, StaleEpoch
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import Link

_TELL_SECONDS = 10.0  # for a guest that does not answer
_UNBOUNDED = 3600  # seconds that a loop is told when no hard deadline is set: it is to come to an end all the same


class Deadlines:
    def __init__(
        self,
        parts: Parts,
        crew: Crew,
        live: LiveRuns,
        endings: Endings,
        leaving: Leaving,
        reachable: Callable[[BoxId], Link | None],
        stop_loop: Callable[[Held], Awaitable[None]],
    ) -> None:
        self._parts, self._crew, self._live = parts, crew, live
        self._endings, self._leaving = endings, leaving
        self._reachable, self._stop_loop = reachable, stop_loop
        self._log = logging.getLogger("ringfence.engine")

    def start(self) -> None:
        self._crew.keep(self._loop(), "deadlines")

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(self._parts.config.watch_seconds)
            self.look()

    def look(self) -> None:
        for held in self._live:
            self.look_at(held)
        self._leaving.look(self._reachable)

    def look_at(self, held: Held) -> None:
        config, now = self._parts.config, self._parts.clock.monotonic()
        worked = held.worked(now)
        if config.hard_seconds and worked >= config.hard_seconds:
            if not held.ending:
                held.ending = True
                self._crew.go(self._end(held), f"deadline of {held.id}")
        elif held.past_soft(config.soft_seconds, now) and held.started and not (held.starting or held.wound):
            held.wound = True
            left = round(config.hard_seconds - worked) if config.hard_seconds else _UNBOUNDED
            self._crew.go(self._wind_down(held, max(1, left)), f"wind down {held.id}")

    async def _wind_down(self, held: Held, seconds: int) -> None:
        """The loop first, then the call of the model that it waits for: who is refused has heard why already."""
        link = self._reachable(held.box) if held.box is not None else None
        try:
            if link is None:
                held.wound = False
                return
            async with asyncio.timeout(_TELL_SECONDS):
                await link.wind_down(held.id, seconds)
            held.hurried.set()
        except (RingfenceError, TimeoutError) as error:
            held.wound = False  # once more at the next look
            self._log.info("run %s is not told of its soft deadline: %s", held.id, error or "no answer")

    async def _end(self, held: Held) -> None:
        seconds = self._parts.config.hard_seconds
        body = {"code": "deadline", "message": f"it worked for {seconds:g} s, the most that a run may"}
        try:
            await self._endings.fail(held.run, "deadline", body)
        except (StaleEpoch, NotFound) as error:
            self._log.info("run %s has ended otherwise: %s", held.id, error)
            self._live.drop(held)
        except RingfenceError as error:
            held.ending = False  # once more at the next look
            self._log.error("run %s cannot be ended at its deadline yet: %s", held.id, error)
            return
        await self._stop_loop(held)
