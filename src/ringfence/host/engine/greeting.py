"""What a box says of its loops when its wire is new: runs are adopted, known, or stopped.

A run whose loop shows itself with the right token is adopted (epoch + 1). It never trusts a guest's word further than
the token proves: a run that is not named in a hello, or named with a wrong token, is not adopted.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.links import Slot
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redrive import Over, Redriver
from ringfence.host.engine.shell import run_of
from ringfence.host.kernel.errors import NotFound, RingfenceError, StaleEpoch
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.ports import Link
from ringfence.host.kernel.runs import RUN_FINAL, RunState


class Greeting:
    def __init__(
        self, parts: Parts, crew: Crew, live: LiveRuns, redriver: Redriver, again: Callable[[Held], None], over: Over
    ) -> None:
        """`again`: a run at work has a new wire, or a new kernel: its loop may have missed something. `over`: what the
        box keeps for a run is of no use any more."""
        self._parts, self._crew, self._live, self._redriver = parts, crew, live, redriver
        self._again, self._over = again, over
        self._log = logging.getLogger("ringfence.engine")
        self.runs_adopted = 0

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
                self._redriver.lost_soon(held, "loop_lost")
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
