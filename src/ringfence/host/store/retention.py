"""kernel.retention.Retention: takes away what is too old, in batches that keep no writer waiting.

Must never leave a gap: a thread's events go from its first cursor on only, and `cuts` says where the rest begins, in
the same transaction. Must never take what a run that can still go on needs.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.retention import Keep
from ringfence.host.kernel.runs import NOT_AGAIN, RUN_FINAL, RunState, redrivable
from ringfence.host.store.audit import SqlAudit
from ringfence.host.store.blob_rows import drop_blobs
from ringfence.host.store.box_days import drop_days, old_days
from ringfence.host.store.columns import Utc
from ringfence.host.store.database import Database
from ringfence.host.store.invocations import drop_invocations, old_invocations
from ringfence.host.store.keys import forget_keys, keys_due
from ringfence.host.store.model_usage import drop_calls, old_calls
from ringfence.host.store.run_rows import run_of
from ringfence.host.store.schema import LIVE, checkpoints, cuts, events, runs, steps, threads
from ringfence.host.store.transaction import Tx

KEYS = 500
EVENTS = 500  # rows of one batch: about 5 ms
RUNS = 20  # runs of one batch: each has up to 1,000 steps of 512 KiB, but few have
AUDIT = 500
INVOCATIONS = 500
MODEL_CALLS = 500
USAGE = 500
THREADS = 5  # threads that are cut in one batch

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_FIRST = sa.func.coalesce(cuts.c.kept_from, 1)
_BEFORE = sa.bindparam("before", type_=Utc)
_LEAST = (
    sa.select(sa.func.min(runs.c.position))
    .where(sa.text(LIVE), runs.c.thread == threads.c.id)
    .correlate(threads)
    .scalar_subquery()
)
_OLD_THREADS = (
    sa.select(threads.c.id, _LEAST.label("needed"))
    .outerjoin(cuts, cuts.c.thread == threads.c.id)
    .join(events, sa.and_(events.c.thread == threads.c.id, events.c.cursor == _FIRST))
    .where(events.c.created_at < _BEFORE, sa.or_(_LEAST.is_(None), _LEAST > _FIRST))
    .order_by(events.c.created_at)
    .limit(THREADS)
)
_LOCK = sa.select(threads.c.id).where(threads.c.id == sa.bindparam("in_thread")).with_for_update()
_KEPT = sa.select(cuts.c.kept_from).where(cuts.c.thread == sa.bindparam("in_thread"))
_NEXT = (
    sa.select(events.c.cursor, events.c.created_at)
    .where(events.c.thread == sa.bindparam("in_thread"), events.c.cursor >= sa.bindparam("first"))
    .order_by(events.c.cursor)
    .limit(EVENTS // THREADS)
)
_DROP_EVENTS = sa.delete(events).where(
    events.c.thread == sa.bindparam("in_thread"), events.c.cursor < sa.bindparam("first")
)
# Runs that can never go on. A failed one that may be tried again keeps its journal: without it, what it has done would be
# done again. What `redrivable` says, as SQL: however many of those are the oldest, they stand in nobody's way.
_OVER = (
    sa.select(runs.c.id)
    .where(
        runs.c.state.in_([state.value for state in RUN_FINAL]),
        sa.or_(runs.c.state != RunState.FAILED.value, runs.c.reason.in_(sorted(NOT_AGAIN))),
        runs.c.ended_at < _BEFORE,
        sa.exists(sa.select(steps.c.n).where(steps.c.run == runs.c.id))
        | sa.exists(sa.select(checkpoints.c.run).where(checkpoints.c.run == runs.c.id)),
    )
    .order_by(runs.c.ended_at)
    .limit(RUNS)
)


class SqlRetention:
    def __init__(self, database: Database, audit: SqlAudit) -> None:
        self._database, self._audit = database, audit

    async def sweep(self, keep: Keep) -> dict[str, int]:
        now = self._database.world.clock.now()
        gone = {"keys": await self._keys(now - timedelta(days=keep.keys_days))}
        if keep.events_days:
            gone["events"] = await self._cut(now - timedelta(days=keep.events_days))
        if keep.runs_days:
            gone["runs"] = await self._runs(now - timedelta(days=keep.runs_days))
            gone["model_calls"] = await self._model_calls(now - timedelta(days=keep.runs_days))
            gone["invocations"] = await self._invocations(now - timedelta(days=keep.runs_days))
        if keep.usage_days:
            gone["usage"] = await self._usage(now - timedelta(days=keep.usage_days))
        if keep.audit_days:
            gone["audit"] = await self._audit.cut(now - timedelta(days=keep.audit_days), AUDIT)
        return {kind: number for kind, number in gone.items() if number}

    async def kept_from(self, thread: str) -> int:
        return await self._database.read(lambda connection: kept_from(connection, thread))

    async def _keys(self, before: datetime) -> int:
        if not await self._database.read(lambda connection: keys_due(connection, before)):
            return 0  # reading costs no commit
        return await self._database.write(lambda tx: forget_keys(tx, before, KEYS))

    async def _cut(self, before: datetime) -> int:
        if not await self._database.read(lambda c: c.execute(_OLD_THREADS, {"before": before}).first()):
            return 0
        return await self._database.write(lambda tx: _cut_events(tx, before))

    async def _runs(self, before: datetime) -> int:
        due = list(await self._database.read(lambda c: c.execute(_OVER, {"before": before}).scalars().all()))
        return await self._database.write(lambda tx: _forget(tx, due)) if due else 0

    async def _invocations(self, before: datetime) -> int:
        due = await self._database.read(lambda connection: old_invocations(connection, before, INVOCATIONS))
        return await self._database.write(lambda tx: drop_invocations(tx, due)) if due else 0

    async def _usage(self, before: datetime) -> int:
        due = await self._database.read(lambda connection: old_days(connection, before, USAGE))
        return await self._database.write(lambda tx: drop_days(tx, due)) if due else 0

    async def _model_calls(self, before: datetime) -> int:
        due = await self._database.read(lambda connection: old_calls(connection, before, MODEL_CALLS))
        return await self._database.write(lambda tx: drop_calls(tx, due)) if due else 0


def kept_from(connection: Connection, thread: str) -> int:
    """The first cursor whose event is kept."""
    return int(connection.execute(_KEPT, {"in_thread": thread}).scalar_one_or_none() or 1)


def _cut_events(tx: Tx, before: datetime) -> int:
    taken = 0
    for row in sorted(tx.connection.execute(_OLD_THREADS, {"before": before}).all()):
        taken += _cut_one(tx, row.id, row.needed, before)
    return taken


def _cut_one(tx: Tx, thread: str, needed: int | None, before: datetime) -> int:
    """The old ones at the thread's beginning; `needed`: the cursor from which on a live run may look. Another kernel
    may be cutting it too: where it begins is read under the lock of its row. A wall clock that was turned back may have
    left an old one behind newer ones: it waits until those are old too."""
    tx.connection.execute(_LOCK, {"in_thread": thread})
    first = was = kept_from(tx.connection, thread)
    for row in tx.connection.execute(_NEXT, {"in_thread": thread, "first": first}).all():
        if row.created_at >= before or (needed is not None and row.cursor >= needed):
            break
        first = row.cursor + 1
    if first == was:
        return 0
    tx.connection.execute(_DROP_EVENTS, {"in_thread": thread, "first": first})
    values = {"thread": thread, "kept_from": first, "cut_at": tx.now()}
    tx.connection.execute(tx.world.dialect.upsert(cuts, ["thread"]), values)
    return first - was


def _forget(tx: Tx, due: list[str]) -> int:
    """Looked at once more under their locks: one that ended otherwise since keeps its journal."""
    still = sa.select(runs).where(runs.c.id.in_(due)).with_for_update()
    gone = [row.id for row in tx.connection.execute(still).all() if redrivable(run_of(row))]
    for run in gone:
        drop_blobs(tx, run)
    tx.connection.execute(sa.delete(checkpoints).where(checkpoints.c.run.in_(gone)))
    tx.connection.execute(sa.delete(steps).where(steps.c.run.in_(gone)))
    return len(gone)
