"""What was found out about an effect: looked for, written into the ledger, or asked of a person. One way for everybody.

A finding is about one try. It is written only while the ledger still stands at that try: meanwhile the step itself may
have sent it once more, of which an older look says nothing. It must never decide what follows (kernel.carrying and
kernel.redrive do).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringfence.host.engine.parking import Parking
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.questions import in_doubt
from ringfence.host.engine.sending import STATES, SendingOut
from ringfence.host.kernel.capabilities import Sent
from ringfence.host.kernel.effects import EffectRow, EffectState
from ringfence.host.kernel.gates import Question
from ringfence.host.kernel.runs import Evidence, Run, Step


@dataclass(frozen=True, slots=True)
class Finding:
    row: EffectRow  # as it was looked at: its `tries` say which try this is about
    sent: Sent


class Findings:
    def __init__(self, parts: Parts, sending: SendingOut, parking: Parking) -> None:
        self._parts, self._sending, self._parking = parts, sending, parking

    async def look(self, row: EffectRow, seconds: float | None = None) -> Finding:
        """UNKNOWN when there is no evidence, also after `seconds`. Never raises."""
        return Finding(row, await self._sending.look_up(row, seconds))

    async def settle(self, run: Run, finding: Finding) -> Step:
        """The end of the effect and of its step. StaleEpoch. Conflict: the ledger has moved on."""
        row, sent = finding.row, finding.sent
        state, result = STATES[sent.evidence], ended(sent)
        effects = self._parts.store.effects
        return await effects.settle(run.id, run.epoch, row.n, state, dict(sent.result), result, tries=row.tries)

    async def mark(self, run: Run, finding: Finding, state: EffectState) -> EffectRow:
        """A state that is no end. As `settle`."""
        row, outcome = finding.row, dict(finding.sent.result)
        return await self._parts.store.effects.mark(run.id, run.epoch, row.n, state, outcome, tries=row.tries)

    async def question(self, run: Run, row: EffectRow) -> Question:
        """For whoever knows what became of it. NotFound: the user."""
        tool = self._sending.tool_for(row)
        shown = tool.sealed(row.arguments).shown if tool is not None else {}
        return in_doubt(row, shown, await self._parking.owner_of(run.actor))


def ended(sent: Sent) -> dict[str, Any]:
    """The step's result."""
    return {**sent.result, "ok": sent.evidence is Evidence.DONE, "effect": sent.evidence.value}
