"""What is left behind by time or by former kernels: gates whose time is over, runs whose executor is gone.

Each gate and each run is taken for itself: one that cannot be read, or about which something breaks, is logged and
tried again at the next sweep, and is in nobody's way. It must never decide what becomes of a run (redrive.py does).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.links import Links
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redrive import Redriver
from ringfence.host.kernel.errors import NotFound, RingfenceError, StaleEpoch
from ringfence.host.kernel.gates import GateId
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.reads import Standing
from ringfence.host.kernel.runs import Run

_GATES = 1000  # looked at in one sweep: so many that cannot be read hold the others up
# Gates and expired runs that are taken at once: they share a read and a commit. One by one 500 took 5 s on two busy cores.
_AT_ONCE = 64


class Sweep:
    def __init__(
        self, parts: Parts, crew: Crew, live: LiveRuns, links: Links, redriver: Redriver, wake: Callable[[], None]
    ) -> None:
        """`wake`: there may be work to claim."""
        self._parts, self._crew, self._live, self._links = parts, crew, live, links
        self._redriver, self._wake = redriver, wake
        self._began = parts.clock.monotonic()
        self._trouble: dict[str, str] = {}  # of this sweep: what could not be done, and why
        self._log = logging.getLogger("ringfence.engine")

    def start(self) -> None:
        self._crew.keep(self._loop(), "sweep")

    async def _loop(self) -> None:
        while True:
            try:
                await self.once()
            except RingfenceError as error:
                self._log.error("sweep: %s", error)
            await asyncio.sleep(self._parts.config.sweep_seconds)

    async def once(self) -> None:
        before, self._trouble = self._trouble, {}
        await self._expire_gates()
        self._redrive_lost()
        expired = await self._parts.store.runs.expired(self._parts.worker)
        await self._all_of([run for run in expired if self._nobody_has(run)])
        await self._end_abandoned()
        for what, why in self._trouble.items():
            if before.get(what) != why:  # once, and not at each sweep
                self._log.error("sweep: %s: %s", what, why)

    def _redrive_lost(self) -> None:
        """Ours, about which the store took nothing before. Not waited for, nor asked twice: a receiver that does not
        answer is in the way of that run alone."""
        for held in self._live:
            if held.gone and not held.deciding.locked():
                self._redriver.lost_soon(held, held.gone)

    async def _end_abandoned(self) -> None:
        """To be cancelled, and its server is gone: so that it does not hold its lane until that is back."""
        left = [one.run for one in await self._parts.store.runs.abandoned() if one.run.cancel_requested]
        await self._each((f"run {run.id}", self._end(run)) for run in left)
        if left:
            self._wake()

    async def _end(self, run: Run) -> None:
        row = await self._parts.store.runs.cancel(run.id)
        self._log.info("run %s is %s: its server is gone", run.id, row.state.value)

    async def _each(self, tasks: Iterable[tuple[str, Awaitable[None]]]) -> None:
        """Some at once; what goes wrong with one goes wrong with that one."""
        todo = iter(tasks)  # each is made when its turn comes: a sweep that is cancelled leaves none behind unawaited
        while some := list(islice(todo, _AT_ONCE)):
            done = await asyncio.gather(*(work for _, work in some), return_exceptions=True)
            for (what, _), error in zip(some, done, strict=True):
                if isinstance(error, Exception):
                    self._trouble[what] = f"{type(error).__name__}: {error}"
                elif error is not None:
                    raise error

    async def _expire_gates(self) -> None:
        due = await self._parts.store.gates.due(_GATES)
        await self._each((f"gate {gate}", self._expire(gate)) for gate in due)
        if due:
            self._wake()

    async def _expire(self, gate: GateId) -> None:
        closed = await self._parts.store.gates.expire(gate)
        self._log.info("gate %s of run %s is %s: its time is over", gate, closed.run, closed.state.value)

    def _nobody_has(self, run: Run) -> bool:
        return self._live.get(run.id) is None and not self._may_still_show(run)

    async def _all_of(self, runs: list[Run]) -> None:
        for at in range(0, len(runs), _AT_ONCE):
            some = runs[at : at + _AT_ONCE]
            known = await self._standings(some)
            await self._each((f"run {run.id}", self._decide(run, known.get(run.id))) for run in some)

    async def _standings(self, runs: list[Run]) -> dict[RunId, Standing]:
        """One question for all of them; none when one cannot be read, and then each is asked for by itself."""
        try:
            return await self._parts.store.reads.standings([run.id for run in runs])
        except RingfenceError:
            return {}

    async def _decide(self, run: Run, known: Standing | None) -> None:
        at = known or (await self._parts.store.reads.standings([run.id])).get(run.id)
        if at is None:
            return
        try:
            await self._redriver.decide_soon(run, "executor_lost", at)
        except (StaleEpoch, NotFound) as error:
            self._log.info("run %s: %s", run.id, error)

    def _may_still_show(self, run: Run) -> bool:
        """Whether its loop could yet say hello. Every box that runs is dialled before the first sweep, so only one
        whose dial or start is under way now may have something to say; and not for ever."""
        if run.box is None:
            return False
        slot = self._links.slot(run.box)
        under_way = slot.flight is not None or slot.lock.locked() or not slot.settled.is_set()
        return under_way and self._parts.clock.monotonic() - self._began < self._parts.config.adopt_seconds
