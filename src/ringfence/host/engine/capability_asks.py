"""Steps that the host itself carries out: policy, then maybe a question, then the effect under its key.

    wrong arguments, deny      the step ends refused, nothing is written into the ledger
    ask                        a gate; the run is parked, and asks again when it is answered
    allow                      intent (with the approval that it uses up) -> sent -> outcome and the step's end
    to be mended first         a gate `setup` before it goes out, `auth` when it was turned away (mending.py)
    in doubt                   pure, idempotent: again under the same key; once: evidence, else a gate `in_doubt`

What comes here a second time is answered from the ledger. It must never let anything out but by `SendingOut`, and never
take a word of the loop for more than a wish.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.findings import Finding, Findings
from ringfence.host.engine.letting_out import CHANGED, LettingOut
from ringfence.host.engine.live import Held
from ringfence.host.engine.mending import Mending
from ringfence.host.engine.parking import Parking
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.questions import call_of, refused, said
from ringfence.host.engine.sending import PAUSE, SendingOut
from ringfence.host.kernel.capabilities import Sent, Tool, is_once
from ringfence.host.kernel.carrying import Going, Next, next_of, of_all_tries
from ringfence.host.kernel.effects import IN_DOUBT, EffectRow, EffectState
from ringfence.host.kernel.errors import Conflict, Exhausted, Refused, StaleEpoch, TooLarge
from ringfence.host.kernel.gates import GateKind, GateState
from ringfence.host.kernel.runs import Evidence, Step

Result = dict[str, Any]


class CapabilityAsks:
    def __init__(self, parts: Parts, crew: Crew, parking: Parking, sending: SendingOut, findings: Findings) -> None:
        self._parts, self._crew, self._parking = parts, crew, parking
        self._sending, self._findings = sending, findings
        self._letting, self._mending = LettingOut(parts, parking), Mending(parts, parking)
        self._flights: dict[tuple[str, int, int], asyncio.Future[Result]] = {}

    async def begin(self, held: Held, step: Step, new: bool) -> Result:
        """The step's result, its end on disk. Parked: it waits for an answer. An ask that is made again meanwhile gets the
        answer of the first."""
        key = (held.id, held.epoch, step.n)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = self._crew.begin(self._step(held, step, new), f"step {held.id}/{step.n}")
            flight.add_done_callback(lambda _: self._flights.pop(key, None))
        return await asyncio.shield(flight)

    async def _step(self, held: Held, step: Step, new: bool) -> Result:
        row = None if new else await self._parts.store.effects.get(held.id, step.n)
        if row is None:
            try:
                dispatch = await self._letting.first(held, step, new)
            except (Refused, TooLarge, Exhausted) as error:
                return await self._ended(held, step.n, refused(error.message))
            unusable = self._parking.pen.usable_for(dispatch.call)
            row = await self._parts.store.effects.intend(dispatch, held.epoch, unusable)
        return await self._carry_out(held, step, row)

    async def _ended(self, held: Held, n: int, result: Result) -> Result:
        ended = await self._parts.store.steps.end(held.id, held.epoch, n, result, False)
        return dict(ended.result or result)

    # --- the effect ----------------------------------------------------------------------------------------------

    async def _carry_out(self, held: Held, step: Step, row: EffectRow) -> Result:
        """From whatever the ledger says to the step's end. Who ends the run may write there too: all is looked at anew."""
        going = Going(row)
        while True:
            came: Going | Result | None
            try:
                came = await self._on(held, step, going)
            except StaleEpoch:
                raise
            except Conflict:
                came = await self._moved(held, going)
                if came is None:
                    raise
            if not isinstance(came, Going):
                return came
            going = came

    async def _on(self, held: Held, step: Step, going: Going) -> Going | Result:
        """One step of kernel.carrying: what is known now, or the end of the journal's step."""
        tool = self._sending.tool_for(going.row)
        match next_of(going, once=is_once(tool), most=_tries(tool)):
            case Next.SEND:
                return await self._try(held, step, going)
            case Next.SEEK:
                return await self._seek(held, going, tool)
            case Next.MEND:
                return await self._mend(held, going, tool)
            case Next.ASK:
                return await self._parking.park(held, await self._findings.question(held.run, going.row))
            case Next.SETTLE:
                return await self._settled(held, going)
            case Next.OVER:
                over = await self._parts.store.steps.get(held.id, step.n)
                return dict(over.result or {}) if over is not None else {}

    async def _moved(self, held: Held, going: Going) -> Going | None:
        """None: the ledger stands where it stood."""
        row = await self._parts.store.effects.get(held.id, going.row.n)
        if row is None or (row.state, row.tries) == (going.row.state, going.row.tries):
            return None
        return Going(row, going.tries)

    async def _try(self, held: Held, step: Step, going: Going) -> Going:
        row = going.row
        if going.sent is not None and going.sent.evidence is Evidence.NOT_DONE:
            row = await self._marked(held, going, EffectState.INTENDED)
        await asyncio.sleep(PAUSE * going.tries)
        row, problem = await self._let_out(held, step, row)
        tool, unclear = self._sending.tool_for(row), row.state in IN_DOUBT
        if problem or tool is None:
            known = Evidence.UNKNOWN if unclear else Evidence.NOT_DONE
            return Going(row, going.tries, Sent(known, refused(problem or CHANGED)), last=True)
        row, sent = await self._sending.send(row, held.epoch, tool)
        return Going(row, going.tries + 1, of_all_tries(sent, unclear=unclear))

    async def _let_out(self, held: Held, step: Step, row: EffectRow) -> tuple[EffectRow, str]:
        """Looked at before each try, for days may lie between the intent and this: (the effect as it is now, why it does not go
        out; "": it does). Parked. A step has one question at a time, so each answer is used up before the next is asked."""
        intended = row.state is EffectState.INTENDED
        try:
            row = await self._mending.answered(held, row) if intended else row
            row = await self._letting.still(held, step, row)
        except (Refused, TooLarge, Exhausted) as error:
            return row, error.message
        return row, await self._mending.ready(held, row) if intended else ""

    async def _seek(self, held: Held, going: Going, tool: Tool | None) -> Going | Result:
        """What a person has said, else evidence. Pure and idempotent effects need none: they go out again."""
        row = going.row if going.sent is None else await self._marked(held, going, EffectState.UNKNOWN)
        answered, row = await self._answered(held, row)
        if answered is not None:
            return answered
        if row.state not in IN_DOUBT:
            return Going(row, going.tries)
        if is_once(tool) or self._sending.flying(row):
            sent = (await self._findings.look(row)).sent
        else:
            sent = Sent(Evidence.UNKNOWN, {"error": "what came of it is not known"})
        return Going(row, going.tries, sent, looked=True)

    async def _answered(self, held: Held, row: EffectRow) -> tuple[Result | None, EffectRow]:
        """(the step's end as a person said, or None: nobody did, or it is to be carried out again; the effect now)."""
        gates = await self._parts.store.gates.of_run(row.run)
        mine = [gate for gate in gates if gate.n == row.n and gate.kind is GateKind.IN_DOUBT]
        if not mine or mine[-1].state is not GateState.ALLOWED:
            return None, row
        unusable = self._parking.pen.usable_for(call_of(row))
        problem = unusable(mine[-1], self._parts.onward.now())
        if problem:  # not said by anybody, as far as can be told: looked for and asked about anew
            await self._parts.store.gates.void(held.id, held.epoch, mine[-1].id, problem)
            return None, row
        step = await self._parts.store.effects.resolve(held.id, held.epoch, row.n, mine[-1].id, unusable, said)
        if step is not None:
            return dict(step.result or {}), row
        found = await self._parts.store.effects.get(row.run, row.n)
        return None, row if found is None else found

    async def _mend(self, held: Held, going: Going, tool: Tool | None) -> Going:
        """Parks. When nobody is asked, what was said is the end."""
        assert going.sent is not None and going.sent.need is not None
        unclear = going.sent.evidence is Evidence.UNKNOWN
        row = await self._marked(held, going, EffectState.UNKNOWN if unclear else EffectState.INTENDED)
        if tool is not None:
            await self._mending.ask(held, row, tool, going.sent.need)
        return replace(going, row=row, sent=replace(going.sent, need=None))

    async def _marked(self, held: Held, going: Going, state: EffectState) -> EffectRow:
        assert going.sent is not None
        return await self._findings.mark(held.run, Finding(going.row, going.sent), state)

    async def _settled(self, held: Held, going: Going) -> Result:
        assert going.sent is not None
        step = await self._findings.settle(held.run, Finding(going.row, going.sent))
        return dict(step.result or {})


def _tries(tool: Tool | None) -> int:
    return 0 if tool is None else tool.capability.limits.tries
