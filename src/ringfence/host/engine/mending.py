"""Steps of the host that cannot go out because something has to be mended first: a gate `setup` or `auth`, never a failure.

    setup   something is missing here (the key of a place), looked at before each try: nothing has gone out
    auth    the receiver turned us away: it says itself that nothing was done

"done" is no evidence: what was missing is looked at again, and what was turned away is tried again, under the same key. The
same holds for a gate that ran out of time, but then it is not asked a second time. It must never let a renewed key lead to
another address: the question is sealed with the address, and a step goes on with a new key only if that is still the same.
"""

from __future__ import annotations

from dataclasses import replace

from ringfence.host.engine.live import Held
from ringfence.host.engine.parking import Parking
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.questions import call_of, mending
from ringfence.host.kernel.capabilities import Need, Sealed, Tool
from ringfence.host.kernel.effects import EffectRow
from ringfence.host.kernel.errors import Exhausted, Refused
from ringfence.host.kernel.gates import MENDING, Gate, GateState, over


class Mending:
    def __init__(self, parts: Parts, parking: Parking) -> None:
        self._parts, self._parking = parts, parking

    async def answered(self, held: Held, row: EffectRow) -> EffectRow:
        """Of an effect that is only intended: what was answered is used up. As it is now. Refused: the answer was no."""
        tool = self._tool(row)
        last = await self._last(row) if tool is not None else None
        if tool is None or last is None:
            return row
        if last.state is GateState.DENIED:
            missing = last.shown.get("missing", "something has to be mended")
            raise Refused(f"{missing}; somebody was asked, and said no")
        if last.state is not GateState.ALLOWED:
            return row
        await tool.lacks(row.arguments)  # so that it is sealed with what is there now
        return await self._mended(held, row, last, tool.sealed(row.arguments))

    async def ready(self, held: Held, row: EffectRow) -> str:
        """The same, once nothing of it waits for a use: why it is not to go out; "" when it is. Parked."""
        tool = self._tool(row)
        need = await tool.lacks(row.arguments) if tool is not None else None
        return "" if tool is None or need is None else await self.ask(held, row, tool, need)

    def _tool(self, row: EffectRow) -> Tool | None:
        tool = self._parts.capabilities.get(row.capability)
        return None if tool is None or tool.wrong(row.arguments) else tool

    async def ask(self, held: Held, row: EffectRow, tool: Tool, need: Need) -> str:
        """Parks. When it does not: why it is not asked."""
        last = await self._last(row)
        if last is not None and last.state is GateState.EXPIRED and over(last):
            return f"{need.missing}; {last.reason}"
        owner = await self._parking.owner_of(held.run.actor)
        question = mending(row, tool.sealed(row.arguments), need, owner, self._parts.onward.now())
        try:
            await self._parking.park(held, question)
        except Exhausted as error:
            return f"{need.missing}; {error.message}"

    async def _last(self, row: EffectRow) -> Gate | None:
        gates = await self._parts.store.gates.of_run(row.run)
        return next((gate for gate in reversed(gates) if gate.n == row.n and gate.kind in MENDING), None)

    async def _mended(self, held: Held, row: EffectRow, gate: Gate, sealed: Sealed) -> EffectRow:
        """The answer used up; the effect goes on with the key of now. As it was, when the answer is worth nothing: the seal
        of the intent decides then."""
        now = replace(call_of(row), sealed=sealed.place or sealed.digest, policy=gate.policy)
        unusable = self._parking.pen.usable_for(now)  # a rule that has changed is for who lets it out
        problem = unusable(gate, self._parts.onward.now())
        if problem:
            await self._parts.store.gates.void(held.id, held.epoch, gate.id, problem)
            return row
        return await self._parts.store.effects.mend(held.id, held.epoch, row.n, gate.id, unusable, sealed.digest)
