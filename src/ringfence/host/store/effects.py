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
from ringfence.host.kernel.effects import IN_DOUBT, TRANSITIONS, EffectRow, EffectState
from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.gates import Gate, GateAnswer, GateId
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.kernels import EPOCH_JUMP
from ringfence.host.kernel.runs import RUN_FINAL, Step, StepState
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.database import Database
from ringfence.host.store.effect_ends import as_said
from ringfence.host.store.effect_rows import ALL, CHANGE, change_effect, effect_of, find_effect, found_effect
from ringfence.host.store.events import Draft, append
from ringfence.host.store.gates import use_gate
from ringfence.host.store.ledger import effects
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.run_rows import fenced, locked_run
from ringfence.host.store.steps import end_step
from ringfence.host.store.text import checked_json
from ringfence.host.store.transaction import Tx

Unusable = Callable[[Gate, datetime], str]

_INSERT = sa.insert(effects).returning(effects)  # built once


class SqlEffects:
    """kernel.ledger.Effects."""

    def __init__(self, database: Database, chain: Chain) -> None:
        """`chain`: of the audit. What is known of a try is written there in the ledger's own transaction."""
        self._database, self._chain = database, chain

    async def get(self, run: RunId, n: int) -> EffectRow | None:
        def question(connection: Connection) -> EffectRow | None:
            row = owned_row(find_effect(connection, run, n), run=run)
            return None if row is None else effect_of(row)

        return await self._database.read(question)

    async def of_run(self, run: RunId) -> list[EffectRow]:
        """By step."""
        return await self._database.read(
            lambda connection: [effect_of(row) for row in owned(connection.execute(ALL, {"in_run": run}), run=run)]
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
            return change_effect(tx, self._chain, found_effect(tx, run, n, tries), epoch, state, kept)

        return await self._database.write(work)

    async def judge(
        self, run: RunId, epoch: int, n: int, policy: str, gate: GateId | None, unusable: Unusable
    ) -> EffectRow:
        def work(tx: Tx) -> EffectRow:
            fenced(tx, run, epoch)
            found = found_effect(tx, run, n)
            if not TRANSITIONS[EffectState(found.state)]:
                raise Conflict(f"the effect of step {n} of run {run} is {found.state}")
            values = {"policy": policy} if gate is None else {"policy": policy, "gate": gate}
            if gate is not None:
                use_gate(tx, run, gate, unusable)
            return effect_of(tx.connection.execute(CHANGE, {"in_run": run, "number": n, **values}).one())

        return await self._database.write(work)

    async def mend(self, run: RunId, epoch: int, n: int, gate: GateId, unusable: Unusable, sealed: str) -> EffectRow:
        def work(tx: Tx) -> EffectRow:
            fenced(tx, run, epoch)
            found = found_effect(tx, run, n)
            if found.state != EffectState.INTENDED.value:
                raise Conflict(f"the effect of step {n} of run {run} is {found.state}")
            use_gate(tx, run, gate, unusable)
            changed = {"in_run": run, "number": n, "sealed": sealed, "epoch": epoch}
            return effect_of(tx.connection.execute(CHANGE, changed).one())

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
            change_effect(tx, self._chain, found_effect(tx, run, n, tries), epoch, state, kept)
            return end_step(tx, run, epoch, n, shown, StepState.ENDED)

        return await self._database.write(work)

    async def settle_late(
        self, run: RunId, epoch: int, n: int, state: EffectState, outcome: Mapping[str, Any]
    ) -> EffectRow | None:
        kept = checked_json(outcome, "the outcome of an effect")

        def work(tx: Tx) -> EffectRow | None:
            row, found = locked_run(tx, run), found_effect(tx, run, n)
            if row.state not in RUN_FINAL or row.epoch != epoch or found.epoch != epoch or found.state not in IN_DOUBT:
                return None
            settled = change_effect(tx, self._chain, found, epoch, state, kept)
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
            used, found = use_gate(tx, run, gate, unusable), found_effect(tx, run, n)
            as_said(tx, self._chain, found, epoch, used)
            if used.answer is GateAnswer.AGAIN:
                return None
            return end_step(tx, run, epoch, n, dict(result(used)), StepState.ENDED)

        return await self._database.write(work)


def was_restored(run: Row[Any]) -> bool:
    """Whether the run is of a backup that was put back: it may have gone on since, and have sent what its journal does not
    have any more, so evidence is asked for first. A restore raises the epoch of every run; no clock has a say."""
    return bool(run.epoch >= EPOCH_JUMP)


def _intend(tx: Tx, dispatch: Dispatch, epoch: int, unusable: Unusable) -> EffectRow:
    call = dispatch.call
    row = fenced(tx, call.run, epoch)
    if row.cancel_requested:
        raise Conflict("the run is being cancelled")
    known = find_effect(tx.connection, call.run, call.n)
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
