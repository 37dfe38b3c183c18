"""The ledger of effects: intent before anything goes out, `sent` before its first byte, the outcome with the step's end.

Every write names the epoch that it acts under. An intent is made from a `Dispatch` and from nothing else, and uses up its
approval in the same transaction. Each try has an intent in the audit from the commit that says `sent`, and its outcome there
from the commit that knows it. Must never take an outcome from a box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.capabilities import key_of
from ringfence.host.kernel.dispatch import Dispatch
from ringfence.host.kernel.effects import IN_DOUBT, TRANSITIONS, EffectRow, EffectState, told
from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.gates import Gate, GateAnswer, GateId
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.kernels import EPOCH_JUMP
from ringfence.host.kernel.runs import RUN_FINAL, Step, StepState
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.audit_effects import tell_intent, tell_outcome
from ringfence.host.store.database import Database
from ringfence.host.store.events import Draft, append
from ringfence.host.store.gates import answered_gates, use_gate
from ringfence.host.store.ledger import effects
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.run_rows import fenced, locked_run
from ringfence.host.store.steps import end_step
from ringfence.host.store.text import checked_json
from ringfence.host.store.transaction import Tx

Unusable = Callable[[Gate, datetime], str]
Judge = Callable[[EffectRow, Gate, datetime], str]  # "" or why the answer says nothing of that effect

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_MINE = effects.c.run == sa.bindparam("in_run")
_ONE = sa.select(effects).where(_MINE, effects.c.n == sa.bindparam("number"))
_ALL = sa.select(effects).where(_MINE).order_by(effects.c.n)
_INSERT = sa.insert(effects).returning(effects)
_CHANGE = sa.update(effects).where(_MINE, effects.c.n == sa.bindparam("number")).returning(effects)
# `again` is of what nobody knows: it is to be carried out once more.
_SAID: dict[GateAnswer | None, EffectState] = {
    GateAnswer.DONE: EffectState.DONE,
    GateAnswer.NOT_DONE: EffectState.NOT_DONE,
}


def effect_of(row: Row[Any]) -> EffectRow:
    return EffectRow(**{**row._mapping, "state": EffectState(row.state)})


class SqlEffects:
    """kernel.ports.Effects."""

    def __init__(self, database: Database, chain: Chain) -> None:
        """`chain`: of the audit. What is known of a try is written there in the ledger's own transaction."""
        self._database, self._chain = database, chain

    async def get(self, run: RunId, n: int) -> EffectRow | None:
        def question(connection: Connection) -> EffectRow | None:
            row = owned_row(_find(connection, run, n), run=run)
            return None if row is None else effect_of(row)

        return await self._database.read(question)

    async def of_run(self, run: RunId) -> list[EffectRow]:
        """By step."""
        return await self._database.read(
            lambda connection: [effect_of(row) for row in owned(connection.execute(_ALL, {"in_run": run}), run=run)]
        )

    async def intend(self, dispatch: Dispatch, epoch: int, unusable: Unusable) -> EffectRow:
        return await self._database.write(lambda tx: _intend(tx, dispatch, epoch, unusable))

    async def mark(
        self,
        run: RunId,
        epoch: int,
        n: int,
        state: EffectState,
        outcome: Mapping[str, Any] | None = None,
        *,
        tries: int | None = None,
    ) -> EffectRow:
        """To a state that is no end."""
        kept = None if outcome is None else checked_json(outcome, "the outcome of an effect")

        def work(tx: Tx) -> EffectRow:
            row = fenced(tx, run, epoch)
            if state is EffectState.SENT and row.cancel_requested:
                raise Conflict("the run is being cancelled")
            return _change(tx, self._chain, _found(tx, run, n, tries), epoch, state, kept)

        return await self._database.write(work)

    async def judge(
        self, run: RunId, epoch: int, n: int, policy: str, gate: GateId | None, unusable: Unusable
    ) -> EffectRow:
        def work(tx: Tx) -> EffectRow:
            fenced(tx, run, epoch)
            found = _found(tx, run, n)
            if not TRANSITIONS[EffectState(found.state)]:
                raise Conflict(f"the effect of step {n} of run {run} is {found.state}")
            values = {"policy": policy} if gate is None else {"policy": policy, "gate": gate}
            if gate is not None:
                use_gate(tx, run, gate, unusable)
            return effect_of(tx.connection.execute(_CHANGE, {"in_run": run, "number": n, **values}).one())

        return await self._database.write(work)

    async def mend(self, run: RunId, epoch: int, n: int, gate: GateId, unusable: Unusable, sealed: str) -> EffectRow:
        def work(tx: Tx) -> EffectRow:
            fenced(tx, run, epoch)
            found = _found(tx, run, n)
            if found.state != EffectState.INTENDED.value:
                raise Conflict(f"the effect of step {n} of run {run} is {found.state}")
            use_gate(tx, run, gate, unusable)
            changed = {"in_run": run, "number": n, "sealed": sealed, "epoch": epoch}
            return effect_of(tx.connection.execute(_CHANGE, changed).one())

        return await self._database.write(work)

    async def settle(
        self,
        run: RunId,
        epoch: int,
        n: int,
        state: EffectState,
        outcome: Mapping[str, Any],
        result: Mapping[str, Any],
        *,
        tries: int | None = None,
    ) -> Step:
        kept, shown = checked_json(outcome, "the outcome of an effect"), checked_json(result, "the result of a step")

        def work(tx: Tx) -> Step:
            fenced(tx, run, epoch)
            _change(tx, self._chain, _found(tx, run, n, tries), epoch, state, kept)
            return end_step(tx, run, epoch, n, shown, StepState.ENDED)

        return await self._database.write(work)

    async def settle_late(
        self, run: RunId, epoch: int, n: int, state: EffectState, outcome: Mapping[str, Any]
    ) -> EffectRow | None:
        kept = checked_json(outcome, "the outcome of an effect")

        def work(tx: Tx) -> EffectRow | None:
            row, found = locked_run(tx, run), _found(tx, run, n)
            if row.state not in RUN_FINAL or row.epoch != epoch or found.epoch != epoch or found.state not in IN_DOUBT:
                return None
            settled = _change(tx, self._chain, found, epoch, state, kept)
            body = {"n": n, "tool": found.capability, "state": state.value}
            append(tx, row.thread, Draft(EventKind.EFFECT_SETTLED, body, row.actor, row.turn, run))
            return settled

        return await self._database.write(work)

    async def resolve(
        self,
        run: RunId,
        epoch: int,
        n: int,
        gate: GateId,
        unusable: Unusable,
        result: Callable[[Gate], Mapping[str, Any]],
    ) -> Step | None:
        def work(tx: Tx) -> Step | None:
            fenced(tx, run, epoch)
            used, found = use_gate(tx, run, gate, unusable), _found(tx, run, n)
            as_said(tx, self._chain, found, epoch, used)
            if used.answer is GateAnswer.AGAIN:
                return None
            return end_step(tx, run, epoch, n, dict(result(used)), StepState.ENDED)

        return await self._database.write(work)


def _find(connection: Connection, run: RunId, n: int) -> Row[Any] | None:
    return connection.execute(_ONE, {"in_run": run, "number": n}).one_or_none()


def _found(tx: Tx, run: RunId, n: int, tries: int | None = None) -> Row[Any]:
    """NotFound. Conflict: it was sent more than `tries` times."""
    row = _find(tx.connection, run, n)
    if row is None:
        raise NotFound(f"step {n} of run {run} has no effect")
    if tries is not None and row.tries != tries:
        raise Conflict(f"the effect of step {n} of run {run} was sent {row.tries} times by now, not {tries}")
    return row


def was_restored(run: Row[Any]) -> bool:
    """Whether the run is of a backup that was put back: it may have gone on since, and have sent what its journal does not
    have any more, so evidence is asked for first. A restore raises the epoch of every run; no clock has a say."""
    return bool(run.epoch >= EPOCH_JUMP)


def _intend(tx: Tx, dispatch: Dispatch, epoch: int, unusable: Unusable) -> EffectRow:
    call = dispatch.call
    row = fenced(tx, call.run, epoch)
    if row.cancel_requested:
        raise Conflict("the run is being cancelled")
    known = _find(tx.connection, call.run, call.n)
    if known is not None:  # of this attempt's own former ask, or of a former attempt
        return effect_of(known)
    gate = None if dispatch.gate is None else use_gate(tx, call.run, dispatch.gate.id, unusable)
    doubtful = was_restored(row)
    values = {
        "run": call.run,
        "n": call.n,
        "user": row.actor,
        "capability": call.tool,
        "key": key_of(call.run, call.n, call.digest),
        "arguments": dict(dispatch.arguments),
        "digest": call.digest,
        "sealed": call.sealed,
        "policy": call.policy,
        "gate": None if gate is None else gate.id,
        "state": (EffectState.SENT if doubtful else EffectState.INTENDED).value,
        "outcome": {},
        "epoch": epoch,
        "tries": 0,
        "intent": None,
        "intended_at": tx.now(),
        "sent_at": tx.now() if doubtful else None,
    }
    return effect_of(tx.connection.execute(_INSERT, values).one())


def _change(
    tx: Tx,
    chain: Chain,
    row: Row[Any],
    epoch: int,
    state: EffectState,
    outcome: dict[str, Any] | None,
    answered: Gate | None = None,
) -> EffectRow:
    """Conflict: it cannot become that. `answered`: by whom it is said, when a person says it."""
    before = EffectState(row.state)
    if state not in TRANSITIONS[before]:
        raise Conflict(f"the effect of step {row.n} of run {row.run} is {row.state}, and cannot become {state.value}")
    tell_outcome(tx, chain, row, told(before, state), answered)
    now, ends = tx.now(), not TRANSITIONS[state]
    values: dict[str, Any] = {"state": state.value, "epoch": epoch, "ended_at": now if ends else None}
    if state is EffectState.SENT:
        values |= {"sent_at": now, "tries": row.tries + 1, "intent": tell_intent(tx, chain, row)}
    if outcome is not None:
        values["outcome"] = outcome
    return effect_of(tx.connection.execute(_CHANGE, {"in_run": row.run, "number": row.n, **values}).one())


def as_said(tx: Tx, chain: Chain, row: Row[Any], epoch: int, gate: Gate) -> EffectRow:
    """What a person answered to a gate `in_doubt`, which is used up in this transaction."""
    said = {"by": gate.answered_by, "gate": gate.id, "answer": gate.answer.value if gate.answer else None}
    return _change(tx, chain, row, epoch, _SAID.get(gate.answer, EffectState.INTENDED), said, gate)


def use_answers(tx: Tx, chain: Chain, run: Row[Any], judge: Judge) -> None:
    """The run ends in this transaction: what people said of its effects in doubt, and nothing has used yet, is what is known.
    Of one that was to be carried out again nothing is."""
    said = {gate.n: gate for gate in answered_gates(tx, run.id) if gate.answer in _SAID}
    for row in tx.connection.execute(_ALL, {"in_run": run.id}).all() if said else ():
        gate = said.get(row.n)
        if gate is None or EffectState(row.state) not in IN_DOUBT or judge(effect_of(row), gate, tx.onward_now()):
            continue
        as_said(tx, chain, row, row.epoch, use_gate(tx, run.id, gate.id, lambda *_: ""))


def close_effects(tx: Tx, chain: Chain, run: Row[Any]) -> dict[int, EffectState]:
    """The run ends in this transaction: what never went out is not done, what may have gone out is not known. By step."""
    closed = {}
    for row in tx.connection.execute(_ALL, {"in_run": run.id}).all():
        state = EffectState(row.state)
        if state is EffectState.INTENDED:
            state = _change(tx, chain, row, row.epoch, EffectState.NOT_DONE, None).state
        elif state is EffectState.SENT:
            state = _change(tx, chain, row, row.epoch, EffectState.UNKNOWN, None).state
        closed[row.n] = state
    return closed
