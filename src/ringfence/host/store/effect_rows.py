"""Rows of effects: read, found, changed. Write functions and statements that the others of this room share.

Each change is one of `TRANSITIONS`, and the audit hears of it in the same transaction.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.effects import TRANSITIONS, EffectRow, EffectState, told
from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.gates import Gate
from ringfence.host.kernel.ids import RunId
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.audit_effects import tell_intent, tell_outcome
from ringfence.host.store.ledger import effects
from ringfence.host.store.transaction import Tx

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_MINE = effects.c.run == sa.bindparam("in_run")
_ONE = sa.select(effects).where(_MINE, effects.c.n == sa.bindparam("number"))
ALL = sa.select(effects).where(_MINE).order_by(effects.c.n)
CHANGE = sa.update(effects).where(_MINE, effects.c.n == sa.bindparam("number")).returning(effects)


def effect_of(row: Row[Any]) -> EffectRow:
    return EffectRow(**{**row._mapping, "state": EffectState(row.state)})


def find_effect(connection: Connection, run: RunId, n: int) -> Row[Any] | None:
    return connection.execute(_ONE, {"in_run": run, "number": n}).one_or_none()


def found_effect(tx: Tx, run: RunId, n: int, tries: int | None = None) -> Row[Any]:
    """NotFound. Conflict: it was sent more than `tries` times."""
    row = find_effect(tx.connection, run, n)
    if row is None:
        raise NotFound(f"step {n} of run {run} has no effect")
    if tries is not None and row.tries != tries:
        raise Conflict(f"the effect of step {n} of run {run} was sent {row.tries} times by now, not {tries}")
    return row


def change_effect(
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
    return effect_of(tx.connection.execute(CHANGE, {"in_run": row.run, "number": row.n, **values}).one())
