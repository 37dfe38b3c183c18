"""A run that has to ask somebody: the gate is made and the run parked in one transaction, then its loop has to go.

Must never hold anything for a parked run: no lease, no process, no memory. The answer finds it in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.questions import DENIED_BEFORE, approval, not_given
from ringfence.host.kernel.capabilities import Sealed
from ringfence.host.kernel.dispatch import Owed
from ringfence.host.kernel.errors import Parked, Refused
from ringfence.host.kernel.gates import Gate, GateState, Question, denied, over
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.runs import Run


class Parking:
    def __init__(self, parts: Parts, live: LiveRuns, wake: Callable[[], None], stop: Callable[[Held], None]) -> None:
        """`wake`: a lease is free. `stop`: has the loop of a run stopped that is ours no more."""
        self._parts, self._live, self._wake, self._stop = parts, live, wake, stop
        self.pen = parts.pen
        self._log = logging.getLogger("ringfence.engine")

    async def park(self, held: Held, question: Question) -> NoReturn:
        """Parked, always. Exhausted: too many questions are open. Conflict: the run is being cancelled."""
        gate = await self.ask(held.run, question)
        self._live.drop(held)
        self._stop(held)
        self._wake()
        raise Parked(f"run {held.id} waits for an answer: gate {gate.id}", gate=gate.id)

    async def ask(self, run: Run, question: Question) -> Gate:
        """The same for a run without a loop. StaleEpoch."""
        gate = await self._parts.store.gates.ask(run.id, run.epoch, question, self.pen.question)
        self._log.info("run %s is parked at gate %s (%s, %s)", run.id, gate.id, gate.kind.value, gate.tool)
        return gate

    async def approved(
        self, held: Held, due: Owed, sealed: Sealed | None, gates: Sequence[Gate], last: Gate | None
    ) -> Gate:
        """The yes to that very call, which nothing has used yet. `gates`: of the run; `last`: of them the newest approval
        of the step. Refused: the answer was no, to this or to the same call before. Parked: it is asked, for the first
        time or since the yes is worth nothing now. Exhausted."""
        if last is not None and last.state is GateState.ALLOWED:
            problem = self.pen.usable_for(due.call)(last, self._parts.onward.now())
            if not problem:
                return last
            await self._parts.store.gates.void(held.id, held.epoch, last.id, problem)
        elif last is not None and over(last):
            raise Refused(not_given(last))
        if denied(gates, due.call.digest):
            raise Refused(DENIED_BEFORE)
        owner = await self.owner_of(held.run.actor)
        return await self.park(held, approval(due, sealed, owner, self._parts.onward.now()))

    async def owner_of(self, user: UserId) -> UserId | None:
        """Who answers in the place of a user that is no person. NotFound."""
        return (await self._parts.store.users.by_id(user)).owner
