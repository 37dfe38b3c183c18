"""What becomes of a run whose executor is gone: the table of kernel.runs, carried out and fenced.

Never runs anything: it ends the run or puts it back into the queue. When it gives up, the run's actor is told the last
cause in words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ringfence.host.engine.details import DETAIL_CHARS, tell
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.parts import Parts, guest_digest
from ringfence.host.kernel.errors import NotFound, RingfenceError, StaleEpoch
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.runs import MAX_ATTEMPTS, Redrive, Run, RunState, redrive

Over = Callable[[RunId, BoxId], None]

CAUSES = {
    "box_lost": "the box ended under it",
    "cancelled": "it was to be cancelled",
    "executor_lost": "the server that worked on it was gone",
    "loop_ended": "the agent loop ended",
    "loop_lost": "the box had no agent loop for it any more",
}


class Redriver:
    def __init__(
        self,
        parts: Parts,
        live: LiveRuns,
        wake: Callable[[], None],
        freed: Callable[[], None],
        over: Over,
        left: Callable[[Held], None],
    ) -> None:
        """`wake`: there is work to claim. `freed`: there may be, since a run has ended. `over`: a run of that box is final,
        whatever was kept for it may go. `left`: its loop, if it is still there, works for nobody."""
        self._parts, self._live, self._over, self._left = parts, live, over, left
        self._wake, self._freed = wake, freed
        self._log = logging.getLogger("ringfence.engine")

    async def lost(self, held: Held, reason: str, words: str = "") -> None:
        """The loop of a run that we hold is gone. A store that does not answer now is asked again by the sweep.
        `words`: how that came, for the run's actor."""
        held.gone, held.words = held.gone or reason, held.words or words
        async with held.deciding:
            if not held.over.is_set():
                await self._lost(held)

    async def _lost(self, held: Held) -> None:
        try:
            await self.decide(held.run, held.gone, held.words)
        except (StaleEpoch, NotFound):
            self._log.info("run %s is another's by now", held.id)
        except RingfenceError as error:
            self._log.error("run %s cannot be redriven yet: %s", held.id, error)
            return
        self._live.drop(held)
        self._left(held)
        self._wake()

    async def decide(self, run: Run, reason: str, words: str = "") -> None:
        """`run`: a row as it was claimed, adopted or found expired; its epoch fences. StaleEpoch."""
        store = self._parts.store
        row = await store.runs.get(run.id)
        if row.state is not RunState.RUNNING:
            return
        if row.epoch != run.epoch:
            raise StaleEpoch(f"run {run.id} is at epoch {row.epoch}, not {run.epoch}")
        choice = redrive(
            row,
            guest_digest=guest_digest(self._parts),
            recorded_after_checkpoint=await self._recorded_after_checkpoint(run),
        )
        self._log.info("run %s (%s): %s", run.id, reason, choice.value)
        if choice is Redrive.CANCEL:
            await self.end(row, RunState.CANCELLED, "cancelled")
        elif choice is Redrive.GIVE_UP:
            await self._tell_why(row, reason, words or CAUSES.get(reason, reason))
            await self.end(row, RunState.FAILED, "retries_exhausted")
        elif choice is Redrive.INCOMPATIBLE:
            await self.end(row, RunState.FAILED, "incompatible")
        else:
            await store.runs.requeue(run.id, run.epoch, reason)

    async def _tell_why(self, run: Run, cause: str, words: str) -> None:
        said = f"tried {max(run.attempts, MAX_ATTEMPTS)} times; the last time {words}"
        body = {"code": "retries_exhausted", "cause": cause, "message": said[:DETAIL_CHARS]}
        await tell(self._parts, run, body)

    async def end(
        self, run: Run, state: RunState, reason: str, reply: str | None = None, seen: int | None = None
    ) -> None:
        """The run's final state, once; whoever waits for the lane is woken. Steered: see ports.Runs.end."""
        await self._parts.store.runs.end(run.id, run.epoch, state, reason, reply, seen)
        held, box = self._live.get(run.id), run.box
        if held is not None and held.epoch == run.epoch:
            box = held.box or box
            self._live.drop(held)
            self._left(held)
        if box is not None:
            self._over(run.id, box)
        self._freed()

    async def _recorded_after_checkpoint(self, run: Run) -> bool:
        checkpoint = await self._parts.store.steps.checkpoint(run.id)
        after = checkpoint.step if checkpoint is not None else 0
        return await self._parts.store.steps.count(run.id) > after
