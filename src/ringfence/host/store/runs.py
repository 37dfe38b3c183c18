"""Runs: claimed, leased, found again when their worker is gone. Every write names the epoch that it acts under.

Within a lane runs start in the order of their messages, one at a time: an older one that waits out its back-off holds
the younger ones back. How a run comes to an end, or back into the queue, is in run_ends.py.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.ids import BoxId, RunId, TenantId, UserId
from ringfence.host.kernel.runs import LEASE_SECONDS, RUN_FINAL, Run, RunState
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES, EventKind
from ringfence.host.store.database import Database
from ringfence.host.store.events import Draft, append
from ringfence.host.store.owned import owned
from ringfence.host.store.run_ends import MAX_BACKOFF, Ending, cancel_run, end_run, reopen_run, requeue_run
from ringfence.host.store.run_rows import change_run, change_turn, fenced, locked_run, run_of, run_row
from ringfence.host.store.schema import LIVE, RUNNING, Utc, runs, users
from ringfence.host.store.text import checked, cleaned
from ringfence.host.store.transaction import Tx

_LEASE = timedelta(seconds=LEASE_SECONDS)


# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
def _claimable() -> sa.Select[Any]:
    """Queued, due at `now`, of an enabled user, and nothing older (or live) in the lane; at most `count`.

    A back-off that ends after `never`, later than any can, was set before the wall clock was turned back and the server
    restarted.
    """
    other, owner = runs.alias("other"), users.alias("owner")
    older = sa.and_(
        other.c.position < runs.c.position,
        sa.or_(other.c.state == RunState.PARKED.value, sa.not_(owner.c.disabled)),
    )
    ahead = sa.select(other.c.id).join(owner, owner.c.id == other.c.actor)
    ahead = ahead.where(sa.text(f"other.{LIVE}"), other.c.lane == runs.c.lane)
    ahead = ahead.where(sa.or_(other.c.state == RunState.RUNNING.value, older))
    now, never = sa.bindparam("now", type_=Utc), sa.bindparam("never", type_=Utc)
    due = sa.or_(runs.c.not_before.is_(None), runs.c.not_before <= now, runs.c.not_before > never)
    query = sa.select(runs).join(users, users.c.id == runs.c.actor)
    query = query.where(sa.text(f"runs.{LIVE}"), runs.c.state == RunState.QUEUED.value, due)
    query = query.where(sa.not_(users.c.disabled), ~ahead.exists())
    return query.order_by(runs.c.created_at, runs.c.id).limit(sa.bindparam("count", type_=sa.BigInteger))


_CLAIMABLE = _claimable()
_HELD = (
    sa.select(runs.c.id, runs.c.lease_until, runs.c.worked)
    .where(sa.text(RUNNING), runs.c.worker == sa.bindparam("by_worker"))
    .with_for_update()
)
_RENEW = sa.update(runs).where(runs.c.id == sa.bindparam("which"))


class SqlRuns:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, run: RunId) -> Run:
        return await self._database.read(lambda connection: run_of(run_row(connection, run)))

    async def all(self, tenant: TenantId, limit: int) -> list[Run]:
        """Newest first."""
        query = sa.select(runs).where(runs.c.tenant == tenant)
        query = query.order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(max(limit, 0))
        return await self._database.read(lambda c: [run_of(row) for row in owned(c.execute(query), tenant=tenant)])

    async def claim(self, worker: str, limit: int, token_hash: Callable[[RunId], str]) -> list[Run]:
        """Runs of a disabled user stay queued and hold nobody back."""

        def work(tx: Tx) -> list[Run]:
            now = tx.lease_now()
            due = {"now": now, "never": now + MAX_BACKOFF, "count": limit}
            found = tx.connection.execute(tx.world.dialect.for_claim(_CLAIMABLE, runs), due).all()
            return [_start(tx, row, worker, now, token_hash(row.id)) for row in found]

        return await self._database.write(work) if limit > 0 else []

    async def heartbeat(self, worker: str) -> dict[RunId, float]:
        return await self._database.write(lambda tx: _renew(tx, worker))

    async def adopt(self, run: RunId, worker: str, epoch: int) -> Run:
        """What it has worked stays as it is: the time without a kernel is nobody's work."""

        def work(tx: Tx) -> Run:
            fenced(tx, run, epoch)
            until = tx.lease_now() + _LEASE
            return run_of(change_run(tx, run, epoch=epoch + 1, worker=worker, lease_until=until))

        return await self._database.write(work)

    async def expired(self, worker: str) -> list[Run]:
        """Oldest first."""
        world = self._database.world

        def question(connection: Connection) -> list[Run]:
            over = runs.c.lease_until <= world.dialect.lease_now(connection, world.lease_clock)
            lost = sa.or_(over, runs.c.worker != worker) if world.dialect.one_kernel else over
            query = sa.select(runs).where(sa.text(RUNNING), lost)
            return [run_of(row) for row in connection.execute(query.order_by(runs.c.created_at, runs.c.id))]

        return await self._database.read(question)

    async def assign(self, run: RunId, epoch: int, box: BoxId, guest_digest: str) -> None:
        def work(tx: Tx) -> None:
            fenced(tx, run, epoch)
            change_run(tx, run, box=box, guest_digest=guest_digest)

        await self._database.write(work)

    async def requeue(self, run: RunId, epoch: int, reason: str) -> Run:
        return await self._database.write(lambda tx: run_of(requeue_run(tx, run, epoch, cleaned(reason))))

    async def end(
        self, run: RunId, epoch: int, state: RunState, reason: str, reply: str | None, seen: int | None = None
    ) -> Run:
        """RUN_ENDED {"state", "reason", "message": what REASONS says of it}.

        Also Invalid: no final state. TooLarge: a reply of more than 256 KiB. NUL and lone surrogates of the reply become
        U+FFFD: its writer is gone when it is refused. The turn's own message counts as seen, whatever `seen` says.
        """
        if state not in RUN_FINAL:
            raise Invalid(f"{state.value} is no final state of a run")
        text = None if reply is None else checked(cleaned(reply), "the reply", MAX_MESSAGE_BYTES)
        ending = Ending(state, cleaned(reason), text)
        return await self._database.write(lambda tx: run_of(end_run(tx, run, epoch, ending, seen)))

    async def reopen(self, run: RunId) -> Run:
        """RUN_QUEUED {"reason": "redriven by hand"}. It waits at its old place in the lane, without a back-off; its
        cancellation, when one was asked for, is forgotten. Also Conflict: its user was removed."""
        return await self._database.write(lambda tx: run_of(reopen_run(tx, run)))

    async def cancel(self, run: RunId) -> Run:
        """A final run is answered as it is."""
        return await self._database.write(lambda tx: run_of(cancel_run(tx, locked_run(tx, run), "cancelled")))


def _start(tx: Tx, row: Row[Any], worker: str, now: datetime, token_hash: str) -> Run:
    attempts = row.attempts + 1
    started = change_run(
        tx,
        row.id,
        state=RunState.RUNNING.value,
        reason="",
        epoch=row.epoch + 1,
        attempts=attempts,
        worker=worker,
        lease_until=now + _LEASE,
        not_before=None,
        token_hash=token_hash,
        started_at=row.started_at or tx.now(),
    )
    change_turn(tx, row, state=RunState.RUNNING.value)
    kind = EventKind.RUN_STARTED if row.started_at is None else EventKind.RUN_REDRIVEN
    append(tx, row.thread, Draft(kind, {"attempt": attempts}, row.actor, row.turn, row.id))
    return run_of(started)


def _renew(tx: Tx, worker: str) -> dict[RunId, float]:
    until = tx.lease_now() + _LEASE
    worked: dict[RunId, float] = {}
    renewed: list[dict[str, Any]] = []
    for row in tx.connection.execute(_HELD, {"by_worker": worker}):
        seconds = row.worked + max((until - row.lease_until).total_seconds(), 0.0)
        worked[RunId(row.id)] = seconds
        renewed.append({"which": row.id, "lease_until": until, "worked": seconds})
    if renewed:
        tx.connection.execute(_RENEW, renewed)
    return worked


def cancel_all_of(tx: Tx, actor: UserId, reason: str) -> None:
    """What `cancel` does, to each run of the user that is not final."""
    live = sa.select(runs).where(runs.c.actor == actor, runs.c.state.not_in([state.value for state in RUN_FINAL]))
    for row in tx.connection.execute(live.order_by(runs.c.created_at, runs.c.id).with_for_update()).all():
        cancel_run(tx, row, reason)
