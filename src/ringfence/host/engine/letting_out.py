"""Whether a call of the host may go out: policy, then maybe a question, then what it owes. Once for the intent, and anew
before each try, as days may lie between the two.

It always judges the arguments of the step and never their redacted form: a rule that matches by what it redacts would let
nothing out. It must never ask somebody about a call that could not go out with a yes, nor believe the ledger: whoever writes the
database can put a row there, so the row is held against its digest and its gate before each try.
"""

from __future__ import annotations

from ringfence.host.engine.live import Held
from ringfence.host.engine.parking import Parking
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.questions import call_of
from ringfence.host.kernel.capabilities import Sealed, Tool
from ringfence.host.kernel.dispatch import Dispatch, Owed, altered, check_still, discharge, owed, unapproved
from ringfence.host.kernel.effects import EffectRow
from ringfence.host.kernel.errors import Refused
from ringfence.host.kernel.gates import Call, Gate, GateKind
from ringfence.host.kernel.policy import Decision, Verdict, decide
from ringfence.host.kernel.runs import Step

CHANGED = "what it refers to, or what the policy says of it, is not what it was when it was let through"


class LettingOut:
    def __init__(self, parts: Parts, parking: Parking) -> None:
        self._parts, self._parking = parts, parking

    async def first(self, held: Held, step: Step, new: bool) -> Dispatch:
        """What the intent is made from. Refused, TooLarge, Exhausted: the model is told. Parked."""
        tool = self._parts.capabilities[step.tool]
        _check(tool.wrong(step.arguments))
        decision = self._decided(step)
        if decision.answer is Verdict.DENY:
            raise Refused(decision.why)
        await tool.lacks(step.arguments)  # so that what is approved is approved for the key of now
        sealed = tool.sealed(step.arguments)
        call = Call(held.id, step.n, step.tool, "", held.run.actor, "", sealed.digest)
        due = _owed(decision, call, step, tool)
        _check(_of_redacted(tool.wrong(due.arguments)))
        gate = await self._approval(held, due, sealed, new) if decision.answer is Verdict.ASK else None
        notified = await self._notified(held, due)
        return discharge(due, notified=notified, gate=gate, key=self._parts.gate_key, now=self._parts.onward.now())

    async def still(self, held: Held, step: Step, row: EffectRow) -> EffectRow:
        """Of an effect without an end, before a try: as the ledger has it then. What the policy has come to ask since its
        intent is asked, and used up. Refused, TooLarge, Exhausted. Parked."""
        tool = self._parts.capabilities.get(row.capability)
        if tool is None:
            raise Refused(CHANGED)
        await self._check_row(row, tool)
        due = _owed(self._decided(step), call_of(row), step, tool)
        check_still(due, row.digest, self._parts.onward.now())
        asks = due.decision.answer is Verdict.ASK and row.gate is None
        if not asks and row.policy == due.call.policy:
            return row
        gate = await self._approval(held, due, tool.sealed(row.arguments), new=False) if asks else None
        await self._notified(held, due)
        unusable = self._parking.pen.usable_for(due.call)
        named = None if gate is None else gate.id
        judged = await self._parts.store.effects.judge(held.id, held.epoch, row.n, due.call.policy, named, unusable)
        await self._check_row(judged, tool)
        return judged

    async def _check_row(self, row: EffectRow, tool: Tool) -> None:
        """Refused, with a row in the audit: the ledger does not have it as it was let through. Refused: its place is gone."""
        why = altered(row, tool.capability.effect)
        if not why and tool.wrong(row.arguments):
            raise Refused(CHANGED)
        if not why and row.gate is not None:
            gates = await self._parts.store.gates.of_run(row.run)
            why = unapproved(self._parts.gate_key, row, gates, tool.sealed(row.arguments).place)
        if why:
            details = {"n": row.n, "tool": row.capability, "digest": row.digest, "gate": row.gate, "why": why}
            await self._parts.store.audit.record(None, "effect.refused", f"run:{row.run}", details)
            raise Refused(why)

    def _decided(self, step: Step) -> Decision:
        return decide(self._parts.policy, step.tool, step.arguments, host=True)

    async def _approval(self, held: Held, due: Owed, sealed: Sealed, new: bool) -> Gate:
        gates = await self._parts.store.gates.of_run(held.id)
        mine = [gate for gate in gates if gate.n == due.call.n and gate.kind is GateKind.APPROVAL]
        return await self._parking.approved(held, due, sealed, gates, mine[-1] if mine and not new else None)

    async def _notified(self, held: Held, due: Owed) -> bool:
        """Whoever answers for the actor can read it in the audit's lane of acts before it goes out."""
        if not due.decision.obligations.notify_owner:
            return False
        user = await self._parts.store.users.by_id(held.run.actor)
        to = user.owner if user.owner is not None else user.id
        details = {"run": held.id, "n": due.call.n, "tool": due.call.tool, "digest": due.call.digest}
        await self._parts.store.audit.record(None, "effect.notify", f"user:{to}", details)
        return True


def _owed(decision: Decision, call: Call, step: Step, tool: Tool) -> Owed:
    capability = tool.capability
    return owed(decision, call, step.arguments, capability.effect, step.begun_at, capability.limits.arguments)


def _check(wrong: str) -> None:
    if wrong:
        raise Refused(wrong)


def _of_redacted(wrong: str) -> str:
    return wrong and f"the policy redacts it, and so it cannot go out: {wrong}"
