"""The policy's word on what a loop does in its actor's own box: a question or a refusal for a loop that asks.

Advice, and no wall: whoever holds the box can do the same without asking (kernel.policy.ADVICE, which every screen says).
It must never be taken for a wall by anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringfence.host.engine.live import Held
from ringfence.host.engine.parking import Parking
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.dispatch import Owed, owed
from ringfence.host.kernel.errors import Exhausted, Refused, TooLarge
from ringfence.host.kernel.gates import Call, GateState
from ringfence.host.kernel.policy import Decision, Obligations, Verdict, decide
from ringfence.host.kernel.runs import Effect, Step

_LIMIT = 256 * 1024  # bytes of arguments, which the journal takes anyway


@dataclass(frozen=True, slots=True)
class Advised:
    refused: str = ""  # why, for the model
    approved: bool = False  # somebody has said yes, and nothing has been done yet


class Advice:
    def __init__(self, parts: Parts, parking: Parking) -> None:
        self._parts, self._parking = parts, parking

    async def begin(self, held: Held, step: Step, new: bool) -> Advised:
        """Parked: it waits for an answer. Of the obligations only the size and the time of the answer can mean something
        here: what happens in a box can be neither redacted nor kept from going out."""
        if not self._parts.policy.rules:
            return Advised()
        decision = decide(self._parts.policy, step.tool, step.arguments, host=False)
        if decision.answer is Verdict.DENY:
            return Advised(refused=f"{decision.why} (advice)")
        if decision.answer is Verdict.ALLOW:
            return Advised()
        try:
            due = self._owed(held, step, decision)
            return await self._asked(held, step, due, new)
        except (Refused, Exhausted, TooLarge) as error:
            return Advised(refused=error.message)

    def _owed(self, held: Held, step: Step, decision: Decision) -> Owed:
        call = Call(held.id, step.n, step.tool, "", held.run.actor, decision.policy, "")
        kept = Obligations(cap_bytes=decision.obligations.cap_bytes, expire_seconds=decision.obligations.expire_seconds)
        return owed(replace(decision, obligations=kept), call, step.arguments, step.effect, step.begun_at, _LIMIT)

    async def _asked(self, held: Held, step: Step, due: Owed, new: bool) -> Advised:
        gates = await self._parts.store.gates.of_run(held.id)
        mine = [] if new else [gate for gate in gates if gate.n == step.n]
        last = mine[-1] if mine else None
        if last is None and not new and step.effect is Effect.LOCAL:
            return Advised()  # it was let through before, and may be running: its key says what becomes of it
        if last is not None and last.state is GateState.USED:
            return Advised()
        yes = await self._parking.approved(held, due, None, gates, last)
        await self._parts.store.gates.use(held.id, held.epoch, yes.id, self._parking.pen.usable_for(due.call))
        return Advised(approved=True)
