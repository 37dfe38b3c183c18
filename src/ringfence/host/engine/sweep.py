"""What loops left behind: hellos with runs in them, lost boxes, ended loops, expired leases of former kernels.

A run whose loop shows itself with the right token is adopted (epoch + 1); every other run without an executor is
redriven. It never trusts a guest's word further than the token proves: a run that is not named in a hello, or named with
a wrong token, is not adopted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.leaving import Leaving
from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.oom import SIGKILL
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redrive import Redriver
from ringfence.host.engine.shell import run_of
from ringfence.host.kernel.errors import NotFound, RingfenceError, StaleEpoch
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.ports import Link
from ringfence.host.kernel.runs import RUN_FINAL, Run, RunState


class Sweep:
    def __init__(
        self,
        parts: Parts,
        crew: Crew,
        live: LiveRuns,
        links: Links,
        redriver: Redriver,
        leaving: Leaving,
        again: Callable[[Held], None],
        over: Callable[[RunId, BoxId], None],
    ) -> None:
        """`again`: a run at work has a new wire, or a new kernel: its loop may have missed something. `over`: what the
        box keeps for a run is of no use any more."""
        self._parts, self._crew, self._live, self._links = parts, crew, live, links
        self._redriver, self._leaving = redriver, leaving
        self._again, self._over = again, over
        self._began = parts.clock.monotonic()
        self._log = logging.getLogger("ringfence.engine")
        self.runs_adopted = 0

    def start(self) -> None:
        self._crew.go(self._loop(), "sweep")

    async def _loop(self) -> None:
        while True:
            try:
                await self.once()
            except RingfenceError as error:
                self._log.error("sweep: %s", error)
            await asyncio.sleep(self._parts.config.sweep_seconds)

    async def once(self) -> None:
        for held in self._live:
            if held.gone:
                await self._redriver.lost(held, held.gone)
        for run in await self._parts.store.runs.expired(self._parts.worker):
            if self._live.get(run.id) is None and not self._may_still_show(run):
                try:
                    await self._redriver.decide(run, "executor_lost")
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

    # --- what boxes say ------------------------------------------------------------------------------------------

    async def greet(self, slot: Slot, link: Link) -> None:
        """A new wire: its runs are adopted, known or stopped; ours that it does not name have lost their loop."""
        for run, token in link.hello.runs.items():
            held = self._live.get(run)
            if held is not None and held.box == slot.box and held.guest == link.hello.guest:
                self._again(held)
            elif not await self._adopt(slot, link, run, token):
                self._log.warning("box %s runs a loop of %.80s that is not wanted", slot.box, run)
                self._crew.go(self._unwanted(link, run), f"unwanted {run[:80]}")
        for held in self._live.on(slot.box):
            if held.id not in link.hello.runs:
                self._crew.go(self._redriver.lost(held, "loop_lost"), f"redrive {held.id}")
        self._crew.go(self._orphans(slot), f"orphans of {slot.box}")

    async def _orphans(self, slot: Slot) -> None:
        """Commands of runs that ended while their box could not be reached."""
        for run in {run_of(key) for key in slot.keys}:
            if run is None or self._live.get(run) is not None:
                continue
            try:
                final = (await self._parts.store.runs.get(run)).state in RUN_FINAL
            except NotFound:
                final = True
            if final:
                self._over(run, slot.box)

    async def _unwanted(self, link: Link, run: RunId) -> None:
        """Never waited for: a guest that does not answer would hold up its box's stop, and the server's start."""
        if self._live.get(run) is not None:  # given out anew meanwhile
            return
        try:
            await link.cancel_run(run, 0.0)
        except RingfenceError as error:  # it has ended meanwhile, or the wire has: the next hello names it again
            self._log.info("loop of run %.80s: %s", run, error)

    async def _adopt(self, slot: Slot, link: Link, run: RunId, token: str) -> bool:
        try:
            row = await self._parts.store.runs.get(run)
            shown = hashlib.sha256(token.encode()).hexdigest()
            if row.state is not RunState.RUNNING or row.box != slot.box:
                return False
            if not hmac.compare_digest(shown, row.token_hash) or self._live.get(run) is not None:
                return False
            row = await self._parts.store.runs.adopt(run, self._parts.worker, row.epoch)
        except (NotFound, StaleEpoch):
            return False
        now = self._parts.clock.monotonic()
        held = Held(row, now, box=slot.box, guest=link.hello.guest, started=True)
        held.cancelled = now if row.cancel_requested else None
        self._live.add(held)
        self._again(held)
        self.runs_adopted += 1
        self._log.info("run %s adopted at epoch %d", run, row.epoch)
        return True

    async def loop_ended(self, box: BoxId, run: RunId, words: str, signal: int | None = None) -> None:
        """`words`: how it did, for the run's actor."""
        held = self._live.get(run)
        if held is not None and held.box == box and held.started:
            oom = await self._out_of_memory(box) if signal == SIGKILL else ""
            await self._redriver.lost(held, "oom" if oom else "loop_ended", oom or words)
        if self._live.get(run) is None:
            self._leaving.gone(run)

    async def _out_of_memory(self, box: BoxId) -> str:
        """What to say when the kernel has killed for memory since anybody looked last; empty when it has not."""
        now = self._parts.clock.monotonic()
        try:
            sight = await self._parts.driver.observe(box)
            limit = (await self._parts.store.boxes.get(box)).limits.memory
        except RingfenceError:
            return ""
        if not self._links.slot(box).kills.grew(now, now, sight.oom_kills):
            return ""
        return f"the box was out of memory: it used {sight.memory_peak_bytes} bytes at most, the limit is {limit}"

    async def box_lost(self, box: BoxId) -> None:
        slot = self._links.find(box)
        full = slot.full if slot is not None else None
        for held in self._live.on(box):
            if full is not None:
                await self._redriver.lost(held, full.code, f"its box was stopped: {full.message}")
            else:
                await self._redriver.lost(held, "box_lost")
