"""What is known of runs whose executors are gone, read for many at once: six statements, however many they are.

A server that finds the runs of its former self asks for hundreds. Must never decide anything, and must never read steps
whole: they are large. Effects and gates are read whole, but only of runs with a step under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.reads import Standing
from ringfence.host.kernel.runs import Effect
from ringfence.host.store.effect_rows import effect_of
from ringfence.host.store.gate_rows import gate_of
from ringfence.host.store.ledger import effects, gates
from ringfence.host.store.owned import owned_by
from ringfence.host.store.run_rows import run_of
from ringfence.host.store.schema import BEGUN, checkpoints, runs, steps, users
from ringfence.host.store.text import storable

_THESE: sa.BindParameter[Any] = sa.bindparam("these", expanding=True)

_WHY = sa.case((users.c.removed_at.is_not(None), ""), (users.c.disabled, "user_disabled"), else_=users.c.held)

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_RUNS = sa.select(runs, _WHY.label("held_back")).join(users, users.c.id == runs.c.actor).where(runs.c.id.in_(_THESE))
_CHECKPOINTS = sa.select(checkpoints.c.run, checkpoints.c.step).where(checkpoints.c.run.in_(_THESE))
_COUNTS = sa.select(steps.c.run, sa.func.count().label("many")).where(steps.c.run.in_(_THESE)).group_by(steps.c.run)
_OPEN = (
    sa.select(steps.c.run, steps.c.n, steps.c.effect)
    .where(steps.c.run.in_(_THESE), sa.text(BEGUN))
    .order_by(steps.c.run, steps.c.n)
)
_EFFECTS = sa.select(effects).where(effects.c.run.in_(_THESE)).order_by(effects.c.run, effects.c.n)
_GATES = sa.select(gates).where(gates.c.run.in_(_THESE)).order_by(gates.c.created_at, gates.c.id)

Rows = Mapping[str, Sequence[Row[Any]]]


def standings(connection: Connection, which: Sequence[RunId]) -> dict[RunId, Standing]:
    """Of those that are there. What has no step under way can have nothing in doubt: of it nothing else is read."""
    found = _by(connection, _RUNS, "id", [run for run in which if storable(run)])
    ids = [run for run, rows in found.items() if rows]
    under_way = _by(connection, _OPEN, "run", ids)
    doubtful = [run for run in ids if under_way[run]]
    checkpoint, count = _by(connection, _CHECKPOINTS, "run", ids), _by(connection, _COUNTS, "run", ids)
    sent, asked = _by(connection, _EFFECTS, "run", doubtful), _by(connection, _GATES, "run", doubtful)
    return {
        RunId(run): Standing(
            run=run_of(found[run][0]),
            held_back=found[run][0].held_back,
            checkpoint=checkpoint[run][0].step if checkpoint[run] else 0,
            steps=count[run][0].many if count[run] else 0,
            open={row.n: Effect(row.effect) for row in under_way[run]},
            effects=tuple(effect_of(row) for row in sent.get(run, ())),
            gates=tuple(gate_of(row) for row in asked.get(run, ())),
        )
        for run in ids
    }


def _by(connection: Connection, query: sa.Select[Any], column: str, which: Sequence[str]) -> Rows:
    return owned_by(connection.execute(query, {"these": list(which)}), column, which) if which else {}
