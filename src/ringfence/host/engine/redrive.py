"""What becomes of a run whose executor is gone: the table of kernel.redrive, carried out and fenced.

Never runs anything of a run itself: it ends the run, parks it, or puts it back into the queue; for a `once` that may have
happened it first looks for evidence. When it gives up, the run's actor is told the last cause in words.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.details import DETAIL_CHARS, tell
from ringfence.host.engine.doubts import Doubts
from ringfence.host.engine.findings import Finding
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import Conflict, Exhausted, Failed, NotFound, RingfenceError, StaleEpoch, Unavailable
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.reads import Standing
from ringfence.host.kernel.redrive import Action, Found, Plan, redrive
from ringfence.host.kernel.runs import MAX_ATTEMPTS, Run, RunState

Over = Callable[[RunId, BoxId], None]
LOOKS = 4  # at a run that moves under them: a step is sent three times in an attempt, and then stands
SEEKERS = 16  # at once, when a server finds the runs of another: no storm for those who are asked

CAUSES = {
    "box_lost": "the box ended under it",
    "cancelled": "it was to be cancelled",
    "executor_lost": "the server that worked on it was gone",
    "loop_ended": "the agent loop ended",
    "loop_lost": "the box had no agent loop for it any more",
    "renewed": "its agent loop was renewed while it waited",
}
_CHANGED = {
    "guest": "the agent loop is another one",
    "harness": "the harness is another one",
    "tree": "the store or the tree of its box was restored, and the two may not belong together",
}


class Redriver:
    def __init__(
        self,
        parts: Parts,
        crew: Crew,
        live: LiveRuns,
        doubts: Doubts,
        wake: Callable[[], None],
        freed: Callable[[], None],
        over: Over,
        left: Callable[[Held], None],
    ) -> None:
        """`wake`: there is work to claim. `freed`: there may be, since a run has ended. `over`: a run of that box is final,
        whatever was kept for it may go. `left`: its loop, if it is still there, works for nobody."""
        self._parts, self._crew, self._live, self._doubts = parts, crew, live, doubts
        self._wake, self._freed, self._over, self._left = wake, freed, over, left
        self._seeking: set[RunId] = set()  # former kernels' runs whose evidence is being looked for
        self._seekers = asyncio.Semaphore(SEEKERS)
        self._log = logging.getLogger("ringfence.engine")

    async def lost(self, held: Held, reason: str, words: str = "") -> None:
        """The loop of a run that we hold is gone. A store that does not answer now is asked again by the sweep.
        `words`: how that came, for the run's actor."""
        held.gone, held.words = held.gone or reason, held.words or words
        async with held.deciding:
            if not held.over.is_set():
                await self._lost(held)

    def lost_soon(self, held: Held, reason: str, words: str = "") -> None:
        """`lost`, waited for by nobody: it may look for evidence outside for EVIDENCE_SECONDS a look. What was lost is
        known to everybody when this returns."""
        held.gone, held.words = held.gone or reason, held.words or words
        with suppress(Unavailable):  # the server stops, and the next one finds the run
            self._crew.go(self.lost(held, reason, words), f"redrive {held.id}")

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

    async def decide_soon(self, run: Run, reason: str, at: Standing) -> None:
        """`decide`; of a run whose evidence has to be looked for outside, by and by: one receiver that does not answer is
        not to hold up the others. StaleEpoch, NotFound."""
        if not self._doubts.sent_among(at.effects):
            await self.decide(run, reason, at=at)
        elif run.id not in self._seeking:
            self._seeking.add(run.id)
            self._crew.go(self._decide_late(run, reason), f"evidence for {run.id}")

    def seeks(self, run: RunId) -> bool:
        """Whether evidence of it is being looked for outside, which may take a while: it is decided then."""
        return run in self._seeking

    async def _decide_late(self, run: Run, reason: str) -> None:
        try:
            async with self._seekers:
                await self.decide(run, reason)
        except RingfenceError as error:  # the next sweep finds it again
            self._log.info("run %s: %s", run.id, error)
        finally:
            self._seeking.discard(run.id)
            self._wake()

    async def decide(self, run: Run, reason: str, words: str = "", at: Standing | None = None) -> None:
        """`run`: a row as it was claimed, adopted or found expired; its epoch fences. `at`: read a moment ago. StaleEpoch,
        NotFound."""
        seen = [] if at is None else [at]

        async def once() -> None:
            await self._decide(run, seen.pop() if seen else await self._standing(run), reason, words)

        await self._while_it_moves(run, once)

    async def outdated(self, run: Run, guest: str) -> bool:
        """Whether what was recorded of the run belongs to another guest than the one that it is about to be given to,
        which was renewed while the run waited, at a gate or for its turn. Then it has ended as the table says.
        StaleEpoch."""
        if run.guest_digest in (None, guest):
            return False
        if not self._doubts.claimed(await self._standing(run), guest).recorded_after_checkpoint:
            return False

        async def once() -> None:
            at = await self._standing(run)
            if (at.run.state, at.run.epoch) != (RunState.RUNNING, run.epoch):
                raise StaleEpoch(f"run {run.id} is {at.run.state.value} at epoch {at.run.epoch}, not {run.epoch}")
            await self._as_planned(at.run, self._doubts.claimed(at, guest), "renewed", "")

        await self._while_it_moves(run, once)
        return True

    async def _standing(self, run: Run) -> Standing:
        found = await self._parts.store.reads.standings([run.id])
        if run.id not in found:
            raise NotFound(f"no such run: {run.id!r}")
        return found[run.id]

    async def _while_it_moves(self, run: Run, decide: Callable[[], Awaitable[None]]) -> None:
        """The step itself may send once more while evidence of its last try is looked for: all is looked at anew."""
        for _ in range(LOOKS):
            try:
                await decide()
                return
            except StaleEpoch:
                raise
            except Conflict as error:
                self._log.info("run %s is looked at again: %s", run.id, error)
        await decide()

    async def _decide(self, run: Run, at: Standing, reason: str, words: str) -> None:
        row = at.run
        if row.state is not RunState.RUNNING:
            return
        if row.epoch != run.epoch:
            raise StaleEpoch(f"run {run.id} is at epoch {row.epoch}, not {run.epoch}")
        await self._as_planned(row, self._doubts.found(at), reason, words)

    async def _as_planned(self, row: Run, found: Found, reason: str, words: str) -> None:
        plan, known = await self._planned(row, found)
        self._log.info("run %s (%s): %s %s", row.id, reason, plan.action.value, plan.reason)
        await self._doubts.record(row, plan, known)
        await self._carried_out(row, plan, reason, words)

    async def _carried_out(self, run: Run, plan: Plan, reason: str, words: str) -> None:
        match plan.action:
            case Action.CANCEL:
                await self._end(run, RunState.CANCELLED, "cancelled")
            case Action.FAIL:
                await self._tell_why(run, plan, reason, words or CAUSES.get(reason, reason))
                await self._end(run, RunState.FAILED, plan.reason)
            case Action.HOLD:
                await self._parts.store.runs.hold(run.id, run.epoch, plan.reason)
            case Action.ASK:
                await self._ask(run, plan)
            case Action.REQUEUE:
                await self._parts.store.runs.requeue(run.id, run.epoch, reason)
            case Action.STAY | Action.SEEK | Action.SESSION:  # a run at work has no open gate; evidence was looked for
                raise Failed(f"run {run.id} is at work, and the table says {plan.action.value}", remedy="report this")

    async def _planned(self, run: Run, found: Found) -> tuple[Plan, dict[int, Finding]]:
        plan = redrive(found)
        if plan.action is not Action.SEEK:
            return plan, {}
        known = await self._doubts.seek(run, plan)
        return redrive(self._doubts.with_evidence(found, known)), known

    async def _ask(self, run: Run, plan: Plan) -> None:
        try:
            await self._doubts.ask(run, plan)
        except Exhausted as error:  # the next attempt asks again, when some of the others are answered
            self._log.warning("run %s is in doubt and cannot be asked about: %s", run.id, error)
            await self._parts.store.runs.requeue(run.id, run.epoch, "in_doubt")

    async def _tell_why(self, run: Run, plan: Plan, cause: str, words: str) -> None:
        said = f"tried {max(run.attempts, MAX_ATTEMPTS)} times; the last time {words}"
        if plan.reason != "retries_exhausted":
            said = "; ".join(_CHANGED[name] for name in plan.changed) or words
        await tell(self._parts, run, {"code": plan.reason, "cause": cause, "message": said[:DETAIL_CHARS]})

    async def end(
        self, run: Run, state: RunState, reason: str, reply: str | None = None, seen: int | None = None
    ) -> None:
        """The run's final state, once; whoever waits for the lane is woken. What may have been sent for it is looked for
        first, and recorded as it was found. Steered: see ports.Runs.end."""
        if state is not RunState.COMPLETED and await self._doubts.sent_of(run):
            await self._while_it_moves(run, lambda: self._settle(run, state))
        await self._end(run, state, reason, reply, seen)

    async def _settle(self, run: Run, state: RunState) -> None:
        """As the table says for a run that is cancelled, whatever it ends as."""
        at = await self._standing(run)
        row = at.run
        if row.state is not RunState.RUNNING or row.epoch != run.epoch:
            return  # the end itself says whose it is
        found = Found(cancel_requested=True, doubts=self._doubts.found(at).doubts)
        plan, known = await self._planned(row, found)
        await self._doubts.record(row, plan, known)
        evidence = {n: finding.sent.evidence.value for n, finding in known.items()}
        self._log.info("run %s ends %s: %s", run.id, state.value, evidence)

    async def _end(
        self, run: Run, state: RunState, reason: str, reply: str | None = None, seen: int | None = None
    ) -> None:
        await self._parts.store.runs.end(run.id, run.epoch, state, reason, reply, seen)
        held = self._live.get(run.id)
        box = run.box
        if held is not None and held.epoch == run.epoch:
            box = held.box or box
            self._live.drop(held)
            self._left(held)
        if box is not None:
            self._over(run.id, box)
        self._freed()
