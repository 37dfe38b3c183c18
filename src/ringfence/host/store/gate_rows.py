"""Rows of gates: read, found, closed. Write functions and statements that the others of this room share."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.gates import Gate, GateAnswer, GateId, GateKind, GateState
from ringfence.host.kernel.policy import Obligations
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.events import Draft, append
from ringfence.host.store.ledger import gates
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
BY_ID = sa.select(gates).where(gates.c.id == sa.bindparam("which"))
RUN_OF = sa.select(gates.c.run).where(gates.c.id == sa.bindparam("which"))
LOCKED = BY_ID.with_for_update()
CHANGE = sa.update(gates).where(gates.c.id == sa.bindparam("which")).returning(gates)


def gate_of(row: Row[Any], **more: Any) -> Gate:
    """`more`: what was not read."""
    fields = {**row._mapping, **more}
    fields["kind"], fields["state"] = GateKind(row.kind), GateState(row.state)
    fields["answer"] = None if row.answer is None else GateAnswer(row.answer)
    fields["obligations"] = Obligations.from_json(row.obligations)
    return Gate(**fields)


def found_row(connection: Connection, query: sa.Select[Any], gate: GateId) -> Row[Any]:
    row = connection.execute(query, {"which": gate}).one_or_none() if storable(gate) else None
    if row is None:
        raise NotFound(f"no such gate: {gate!r}")
    return row


def close_gate(tx: Tx, run: Row[Any], gate: Gate, state: GateState, reason: str) -> Gate:
    row = tx.connection.execute(CHANGE, {"which": gate.id, "state": state.value, "reason": reason}).one()
    body = {"gate": gate.id, "n": gate.n, "tool": gate.tool, "state": state.value, "reason": reason}
    append(tx, run.thread, Draft(EventKind.GATE_CLOSED, body, run.actor, run.turn, run.id))
    return gate_of(row)
