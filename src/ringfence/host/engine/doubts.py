"""What is known of a run's steps that have no end: facts for the redrive table, the search for evidence, and its record.

Must never decide: kernel.redrive does. Evidence is of the host's own finding.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ringfence.host.engine.findings import Finding, Findings
from ringfence.host.engine.parking import Parking
from ringfence.host.engine.parts import Parts, guest_digest
from ringfence.host.engine.questions import call_of, said
from ringfence.host.kernel.capabilities import is_once
from ringfence.host.kernel.effects import IN_DOUBT, EffectRow, EffectState
from ringfence.host.kernel.gates import Gate, GateAnswer, GateKind, GateState
from ringfence.host.kernel.reads import Standing
from ringfence.host.kernel.redrive import Do, Doubt, Found, Plan
from ringfence.host.kernel.runs import Evidence, Run

EVIDENCE_SECONDS = 20.0  # for all of a run's: three look-ups of 5 s each with their pauses


class Doubts:
    def __init__(self, parts: Parts, findings: Findings, parking: Parking) -> None:
        self._parts, self._findings, self._parking = parts, findings, parking
        self._log = logging.getLogger("ringfence.engine")

    def found(self, at: Standing) -> Found:
        answered = {gate.n for gate in at.gates if _is_answer(gate)}
        sent = {row.n for row in at.effects if row.state in IN_DOUBT}
        return Found(
            cancel_requested=at.run.cancel_requested,
            gate_open=any(gate.state is GateState.OPEN for gate in at.gates),
            held_back=at.held_back,
            attempts=at.run.attempts,
            doubts=tuple(Doubt(n, effect, n in sent, answered=n in answered) for n, effect in at.open.items()),
            changed=self._changed(at.run),
            recorded_after_checkpoint=at.steps > at.checkpoint,
        )

    def claimed(self, at: Standing, guest: str) -> Found:
        """Of a run that is about to be given to that guest: its attempt has not begun, and nobody holds it back. A step
        that waited at a gate, and has no end, is one that the new loop asks for again: the old one did not do it."""
        waits = {gate.n for gate in at.gates if gate.n in at.open and gate.n > at.checkpoint}
        recorded = at.steps - at.checkpoint > len(waits)
        changed = ("guest",) if at.run.guest_digest not in (None, guest) else ()
        return replace(self.found(at), attempts=0, held_back="", changed=changed, recorded_after_checkpoint=recorded)

    def _changed(self, run: Run) -> tuple[str, ...]:
        now = guest_digest(self._parts)
        guest = run.guest_digest is not None and now is not None and run.guest_digest != now
        return (*(["guest"] if guest else []), *(["tree"] if run.other_tree else []))

    async def seek(self, run: Run, plan: Plan) -> dict[int, Finding]:
        """Evidence for each step of the plan, side by side. UNKNOWN when there is none in EVIDENCE_SECONDS."""
        wanted = {n for n, do in plan.steps if do is Do.SEEK}
        rows = [row for row in await self._parts.store.effects.of_run(run.id) if row.n in wanted]
        found = await asyncio.gather(*(self._findings.look(row, EVIDENCE_SECONDS) for row in rows))
        return {finding.row.n: finding for finding in found}

    @staticmethod
    def with_evidence(found: Found, known: Mapping[int, Finding]) -> Found:
        doubts = (
            replace(doubt, evidence=known[doubt.n].sent.evidence if doubt.n in known else Evidence.UNKNOWN)
            if doubt.unclear
            else doubt
            for doubt in found.doubts
        )
        return replace(found, doubts=tuple(doubts))

    async def record(self, run: Run, plan: Plan, known: Mapping[int, Finding]) -> None:
        """Into the ledger, before the run ends or waits again. StaleEpoch. Conflict: a step was sent once more since it
        was looked at."""
        for n, do in plan.steps:
            if do is Do.ANSWERED and plan.ends:
                await self._as_said(run, n)
            elif n not in known:
                continue
            elif do in (Do.DONE, Do.NOT_DONE):
                await self._findings.settle(run, known[n])
            elif do is Do.EXECUTE:
                await self._findings.mark(run, known[n], EffectState.INTENDED)
            elif do in (Do.UNKNOWN, Do.QUESTION):
                await self._findings.mark(run, known[n], EffectState.UNKNOWN)

    async def _as_said(self, run: Run, n: int) -> None:
        """A run that ends with an answer that nothing has used: what a person said is what is known."""
        store, now = self._parts.store, self._parts.onward.now()
        row = await store.effects.get(run.id, n)
        answered = [gate for gate in await store.gates.of_run(run.id) if gate.n == n and _is_answer(gate)]
        if row is None or not answered or answered[-1].answer is GateAnswer.AGAIN:
            return
        problem = self._parking.pen.judge(row, answered[-1], now)
        if problem:
            self._log.warning("gate %s says nothing of step %d of run %s: %s", answered[-1].id, n, run.id, problem)
            return
        unusable = self._parking.pen.usable_for(call_of(row))
        await store.effects.resolve(run.id, run.epoch, n, answered[-1].id, unusable, said)

    async def ask(self, run: Run, plan: Plan) -> None:
        """Parks the run at a gate `in_doubt`. StaleEpoch, Exhausted."""
        n = next(n for n, do in plan.steps if do is Do.QUESTION)
        row = await self._parts.store.effects.get(run.id, n)
        assert row is not None
        await self._parking.ask(run, await self._findings.question(run, row))

    async def sent_of(self, run: Run) -> bool:
        """Whether the host may have sent something for a step of the run that has no end."""
        return bool(self._parts.capabilities) and self.sent_among(await self._parts.store.effects.of_run(run.id))

    def sent_among(self, effects: Sequence[EffectRow]) -> bool:
        known = self._parts.capabilities
        return bool(known) and any(row.state in IN_DOUBT and is_once(known.get(row.capability)) for row in effects)


def _is_answer(gate: Gate) -> bool:
    """Of a person, about an effect in doubt, and nothing has used it yet."""
    return (gate.kind, gate.state) == (GateKind.IN_DOUBT, GateState.ALLOWED)
