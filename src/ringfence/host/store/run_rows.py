"""The rows of runs and the fence before each write of an executor: only a running run takes it, and only of its epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import NotFound, StaleEpoch
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.store.owned import owned_by, owned_row
from ringfence.host.store.schema import runs, turns
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_BY_ID = sa.select(runs).where(runs.c.id == sa.bindparam("which"))
_LOCKED = _BY_ID.with_for_update()  # PostgreSQL; SQLite has one writer and is sent no such words
_LOCKED_EACH = (
    sa.select(runs).where(runs.c.id.in_(sa.bindparam("these", expanding=True))).order_by(runs.c.id).with_for_update()
)
_CHANGE = sa.update(runs).where(runs.c.id == sa.bindparam("which")).returning(runs)
_CHANGE_TURN = sa.update(turns).where(turns.c.id == sa.bindparam("which"))


def run_of(row: Row[Any]) -> Run:
    return Run(
        id=row.id,
        turn=row.turn,
        thread=row.thread,
        actor=row.actor,
        box=row.box,
        state=RunState(row.state),
        reason=row.reason,
        epoch=row.epoch,
        attempts=row.attempts,
        worker=row.worker,
        lease_until=row.lease_until,
        token_hash=row.token_hash,
        cancel_requested=row.cancel_requested,
        guest_digest=row.guest_digest,
        worked=row.worked,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        other_tree=row.other_tree,
    )


def run_row(connection: Connection, run: RunId) -> Row[Any]:
    """NotFound."""
    return _found(connection, _BY_ID, run)


def locked_run(tx: Tx, run: RunId) -> Row[Any]:
    """As it will be until the commit, but for what the transaction itself does. NotFound."""
    return _found(tx.connection, _LOCKED, run)


def locked_runs(tx: Tx, which: Sequence[RunId]) -> dict[RunId, Row[Any]]:
    """`locked_run` for many; those that are there. In one order, so that two kernels do not wait for each other in a ring."""
    these = [run for run in which if storable(run)]
    found = owned_by(tx.connection.execute(_LOCKED_EACH, {"these": these}), "id", these)
    return {RunId(run): rows[0] for run, rows in found.items() if rows}


def _found(connection: Connection, query: sa.Select[Any], run: RunId) -> Row[Any]:
    found = owned_row(connection.execute(query, {"which": run}).one_or_none(), id=run) if storable(run) else None
    return present(found, run)


def present(row: Row[Any] | None, run: RunId) -> Row[Any]:
    """NotFound."""
    if row is None:
        raise NotFound(f"no such run: {run!r}")
    return row


def fenced(tx: Tx, run: RunId, epoch: int) -> Row[Any]:
    """The row of a running run whose epoch this is, locked. NotFound, StaleEpoch."""
    return check_fence(locked_run(tx, run), epoch)


def check_fence(row: Row[Any], epoch: int) -> Row[Any]:
    """StaleEpoch."""
    if row.epoch != epoch:
        raise StaleEpoch(f"run {row.id} is at epoch {row.epoch}, not {epoch}", epoch=row.epoch)
    if row.state != RunState.RUNNING:
        raise StaleEpoch(f"run {row.id} is {row.state}, not running", epoch=row.epoch)
    return row


def change_run(tx: Tx, run: RunId, **values: Any) -> Row[Any]:
    return tx.connection.execute(_CHANGE, {"which": run, **values}).one()


def change_turn(tx: Tx, row: Row[Any], **values: Any) -> None:
    """The turn of a run's row."""
    tx.connection.execute(_CHANGE_TURN, {"which": row.turn, **values})
