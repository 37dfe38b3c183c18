"""How a gate is answered, or runs out of time: its run goes back into the queue in the same transaction. Write functions only.

Must never make an answer: who may give it is decided before, and what signs it is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import Conflict, KeyReused
from ringfence.host.kernel.gates import BECOMES, Gate, GateAnswer, GateId, GateState, expired
from ringfence.host.kernel.ids import RunId, UserId
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.events import Draft, append
from ringfence.host.store.gate_rows import CHANGE, LOCKED, RUN_OF, close_gate, found_row, gate_of
from ringfence.host.store.ledger import gate_answers
from ringfence.host.store.park import unpark_run
from ringfence.host.store.run_rows import locked_run
from ringfence.host.store.transaction import Tx

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_ANSWER = sa.select(gate_answers).where(
    gate_answers.c.gate == sa.bindparam("which"), gate_answers.c.key == sa.bindparam("named")
)
_KEEP = sa.insert(gate_answers)


def to_answer(tx: Tx, gate: GateId, answer: GateAnswer, by: UserId, key: str) -> tuple[Row[Any], Gate, bool]:
    """(its run, locked; the gate; whether this very answer is there already). Conflict, KeyReused."""
    run = locked_run(tx, RunId(found_row(tx.connection, RUN_OF, gate).run))
    found = gate_of(found_row(tx.connection, LOCKED, gate))
    kept = tx.connection.execute(_ANSWER, {"which": gate, "named": key}).one_or_none()
    if kept is not None:
        if (kept.answer, kept.by) != (answer.value, by):
            raise KeyReused(f"the key {key!r} was used for another answer", remedy="take a new key")
        return run, found, True
    if found.state is GateState.OPEN:
        return run, (run_out(tx, found) if expired(found, tx.onward_now()) else found), False
    if (found.answer, found.answered_by) == (answer, by):
        return run, found, True
    raise _takes_none(found)


def _takes_none(gate: Gate) -> Conflict:
    message, remedy = f"gate {gate.id} takes no answer any more: it is {_how(gate)}", f"ringfence gate show {gate.id}"
    return Conflict(message, remedy=remedy, state=gate.state.value)


def _how(gate: Gate) -> str:
    said = f", answered {gate.answer.value}" if gate.answer is not None else ""
    return f"{gate.state.value}{said}{f' ({gate.reason})' if gate.reason else ''}"


def answered(
    tx: Tx, run: Row[Any], gate: Gate, answer: GateAnswer, by: UserId, via: str, key: str, sign: Callable[[Gate], str]
) -> Gate:
    """`run`: its row, locked."""
    now = tx.now()
    said = replace(
        gate, state=BECOMES[answer], answer=answer, answered_by=by, answered_via=via, answered_at=now, answer_mac=""
    )
    tx.connection.execute(_KEEP, {"gate": gate.id, "key": key, "answer": answer.value, "by": by, "via": via, "at": now})
    changed = {
        "which": gate.id,
        "state": said.state.value,
        "answer": answer.value,
        "answered_by": by,
        "answered_via": via,
        "answered_at": now,
        "answer_mac": sign(said),
    }
    row = tx.connection.execute(CHANGE, changed).one()
    body = {
        "gate": gate.id,
        "n": gate.n,
        "tool": gate.tool,
        "kind": gate.kind.value,
        "answer": answer.value,
        "via": via,
    }
    append(tx, gate.thread, Draft(EventKind.GATE_ANSWERED, body, gate.user, gate.turn, gate.run))
    unpark_run(tx, run)
    return gate_of(row)


def run_out(tx: Tx, gate: Gate) -> Gate:
    """Its time is over: the run goes on without the answer. As it is when it is open no more."""
    run = locked_run(tx, gate.run)
    found = gate_of(found_row(tx.connection, LOCKED, gate.id))
    if found.state is not GateState.OPEN:
        return found
    closed = close_gate(tx, run, found, GateState.EXPIRED, "nobody answered in time")
    unpark_run(tx, run)
    return closed
