"""Ending a run at work because somebody said so.

The store has the wish already (`cancel_requested`); here its loop is asked to end, and the run is over when it has, or
when that takes too long: a guest that does not answer, or a box that cannot be reached, must not hold its lane. It must
never end a run that another attempt has taken up: the epoch says which one is meant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.redrive import Redriver
from ringfence.host.engine.shell import STOP_GRACE
from ringfence.host.kernel.errors import NotFound, RingfenceError, StaleEpoch
from ringfence.host.kernel.ports import Clock
from ringfence.host.kernel.runs import RUN_FINAL, Run, RunState

# PID 1 gives the loop STOP_GRACE to end by itself, then kills it and says so at once; a second for that on a busy host.
PATIENCE = STOP_GRACE + 1.0


class Cancels:
    def __init__(
        self,
        clock: Clock,
        crew: Crew,
        live: LiveRuns,
        redriver: Redriver,
        stop_loop: Callable[[Held, float], Awaitable[None]],
    ) -> None:
        """`stop_loop`: tells PID 1 to end the loop, with so many seconds of grace."""
        self._clock, self._crew, self._live = clock, crew, live
        self._redriver, self._stop_loop = redriver, stop_loop
        self._log = logging.getLogger("ringfence.engine")

    async def cancelled(self, run: Run) -> None:
        """`run`: its row after the wish was written. Returns when it is over, within some PATIENCE; whoever asked may go
        away meanwhile. One that this process does not hold is the sweep's."""
        held = self._live.get(run.id)
        if held is None or run.state in RUN_FINAL:
            return
        if held.cancelled is None:
            held.cancelled = self._clock.monotonic()
        await asyncio.shield(self._crew.begin(self._end(held), f"cancel {run.id}"))

    async def _end(self, held: Held) -> None:
        if held.started:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._stop_loop(held, STOP_GRACE)
                    await held.over.wait()  # PID 1 reports the end of the loop, and the run is ended for that
                return
            except TimeoutError:
                self._log.warning("run %s: its loop did not end within %s s of a cancel", held.id, PATIENCE)
        if held.over.is_set():
            return
        try:
            await self._redriver.end(held.run, RunState.CANCELLED, "cancelled")
        except (StaleEpoch, NotFound):
            self._log.info("run %s is another's by now", held.id)
        except RingfenceError as error:  # a store that does not answer now is asked again by the sweep
            self._log.error("run %s cannot be cancelled yet: %s", held.id, error)
            held.gone = held.gone or "cancelled"
