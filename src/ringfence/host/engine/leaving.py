"""Loops whose run is over, or is to be worked on anew: they end themselves, and those that do not are ended.

Each holds one of the 64 places that its box's PID 1 has. Nothing is kept of one that has left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.ports import Link


class Leaving:
    def __init__(self, parts: Parts, crew: Crew, live: LiveRuns) -> None:
        self._parts, self._crew, self._live = parts, crew, live
        self._until: dict[RunId, tuple[BoxId, str, float]] = {}  # box, its PID 1, monotonic
        self._log = logging.getLogger("ringfence.engine")

    def __len__(self) -> int:
        return len(self._until)

    def left(self, held: Held) -> None:
        """Its loop may stay for `leave_seconds` from now."""
        if held.started and held.box is not None:
            until = self._parts.clock.monotonic() + self._parts.config.leave_seconds
            self._until[held.id] = (held.box, held.guest, until)

    def gone(self, run: RunId) -> None:
        """Its loop has ended, or a new one takes its place."""
        self._until.pop(run, None)

    def look(self, reachable: Callable[[BoxId], Link | None]) -> None:
        """Has those ended that have stayed for too long. A box that cannot be reached names them in its next hello."""
        now = self._parts.clock.monotonic()
        for run, (box, guest, until) in list(self._until.items()):
            if until > now:
                continue
            del self._until[run]
            held, link = self._live.get(run), reachable(box)
            if link is not None and link.hello.guest == guest and (held is None or not held.started):
                self._crew.go(self._end(link, run), f"end the loop of {run}")

    async def _end(self, link: Link, run: RunId) -> None:
        try:
            await link.cancel_run(run, 0.0)
            self._log.warning("the loop of run %s stayed when the run was over: ended", run)
        except RingfenceError as error:  # it has ended meanwhile
            self._log.debug("loop of run %s: %s", run, error)
