"""How a gate is asked: made, signed, and its run parked, in one transaction. Write functions only; gates.py has the door.

Must never make more of them than a person can look at: what a loop causes is counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import Conflict, Exhausted
from ringfence.host.kernel.gates import MAX_OF_RUN, MAX_OPEN, Gate, GateId, GateKind, GateState, Question
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import StepState
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.events import Draft, append
from ringfence.host.store.gate_rows import gate_of
from ringfence.host.store.ledger import OPEN, gates
from ringfence.host.store.park import park_run
from ringfence.host.store.run_rows import fenced
from ringfence.host.store.schema import steps
from ringfence.host.store.transaction import Tx

_TICK = timedelta(microseconds=1)

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_INSERT = sa.insert(gates).returning(gates)
_OPEN_OF = sa.select(sa.func.count()).where(
    gates.c.user == sa.bindparam("of_user"), sa.text(OPEN), gates.c.kind != GateKind.IN_DOUBT.value
)
_BEFORE = sa.select(gates.c.created_at).where(gates.c.run == sa.bindparam("in_run")).order_by(gates.c.created_at)
_STEP = sa.select(steps.c.state).where(steps.c.run == sa.bindparam("in_run"), steps.c.n == sa.bindparam("number"))


def ask_gate(tx: Tx, run: RunId, epoch: int, question: Question, sign: Callable[[Gate], str]) -> Gate:
    row = fenced(tx, run, epoch)
    if row.cancel_requested:
        raise Conflict("the run is being cancelled")
    if tx.connection.execute(_STEP, {"in_run": run, "number": question.n}).scalar_one_or_none() != StepState.BEGUN:
        raise Conflict(f"step {question.n} of run {run} is not under way")
    gate = _made(tx, row, question, _checked_room(tx, row, question.kind))
    gate = gate_of(tx.connection.execute(_INSERT, _values(replace(gate, mac=sign(gate)))).one())
    parked = park_run(tx, row, question.kind.value)
    body = {"gate": gate.id, "n": gate.n, "tool": gate.tool, "kind": gate.kind.value, "wall": gate.wall}
    append(tx, row.thread, Draft(EventKind.RUN_PARKED, body, row.actor, row.turn, parked.id))
    return gate


def _checked_room(tx: Tx, row: Row[Any], kind: GateKind) -> datetime:
    """Exhausted. When the question is asked: after the run's others, of which the last counts, whatever the wall says."""
    bound = kind is not GateKind.IN_DOUBT
    if bound and tx.connection.execute(_OPEN_OF, {"of_user": row.actor}).scalar_one() >= MAX_OPEN:
        raise Exhausted(
            f"{MAX_OPEN} questions wait for an answer, the limit", remedy="ringfence gate ls", limit=MAX_OPEN
        )
    before = tx.connection.execute(_BEFORE, {"in_run": row.id}).scalars().all()
    if bound and len(before) >= MAX_OF_RUN:
        raise Exhausted(f"the run has asked {MAX_OF_RUN} questions, the limit", limit=MAX_OF_RUN)
    at = tx.now()
    return max(at, before[-1] + _TICK) if before else at


def _made(tx: Tx, row: Row[Any], question: Question, at: datetime) -> Gate:
    """Without its mac."""
    return Gate(
        id=GateId(tx.new_id("gat")),
        tenant=row.tenant,
        user=row.actor,
        owner=question.owner,
        thread=row.thread,
        turn=row.turn,
        run=row.id,
        n=question.n,
        kind=question.kind,
        tool=question.tool,
        arguments=question.arguments,
        digest=question.digest,
        policy=question.policy,
        sealed=question.sealed,
        shown=question.shown,
        obligations=question.obligations,
        wall=question.wall,
        mac="",
        created_at=at,
        expires_at=question.expires_at,
        state=GateState.OPEN,
        reason="",
        answer=None,
        answered_by=None,
        answered_via="",
        answered_at=None,
        answer_mac="",
        used_at=None,
    )


def _values(gate: Gate) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(gate, name) for name in gate.__slots__}
    values |= {"kind": gate.kind.value, "state": gate.state.value, "obligations": gate.obligations.to_json()}
    values |= {"arguments": dict(gate.arguments), "shown": dict(gate.shown)}
    return values
