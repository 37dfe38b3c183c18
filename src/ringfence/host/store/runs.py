"""Runs: claimed, leased, fenced, ended. Every write names the epoch that it acts under.

Only a running run takes writes of an executor, and only of its current epoch. Within a lane runs start in the order of
their messages, one at a time: an older one that waits out its back-off holds the younger ones back.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, StaleEpoch
from ringfence.host.kernel.ids import BoxId, MessageId, RunId, TenantId, UserId
from ringfence.host.kernel.runs import LEASE_SECONDS, RUN_FINAL, Run, RunState
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES, EventKind
from ringfence.host.store.database import Database
from ringfence.host.store.events import Draft, append
from ringfence.host.store.schema import LIVE, RUNNING, Utc, messages, runs, turns, users
from ringfence.host.store.text import checked, cleaned, storable
from ringfence.host.store.transaction import Tx

AGENT = "agent"  # the author's name in the agent's replies
_LEASE = timedelta(seconds=LEASE_SECONDS)
_BACKOFF_SECONDS = 0.5
_MAX_BACKOFF = timedelta(minutes=1)  # three attempts never wait longer than 2 ** 3 * 0.5 = 4 s
_WAITING = (RunState.QUEUED.value, RunState.PARKED.value)

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_BY_ID = sa.select(runs).where(runs.c.id == sa.bindparam("which"))
_CHANGE = sa.update(runs).where(runs.c.id == sa.bindparam("which")).returning(runs)
_CHANGE_TURN = sa.update(turns).where(turns.c.id == sa.bindparam("which"))
_INSERT_MESSAGE = sa.insert(messages)


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
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def run_row(connection: Connection, run: RunId) -> Row[Any]:
    """NotFound."""
    row = connection.execute(_BY_ID, {"which": run}).one_or_none() if storable(run) else None
    if row is None:
        raise NotFound(f"no such run: {run!r}")
    return row


def fenced(tx: Tx, run: RunId, epoch: int) -> Row[Any]:
    """The row of a running run whose epoch this is. NotFound, StaleEpoch."""
    row = run_row(tx.connection, run)
    if row.epoch != epoch:
        raise StaleEpoch(f"run {run} is at epoch {row.epoch}, not {epoch}", epoch=row.epoch)
    if row.state != RunState.RUNNING:
        raise StaleEpoch(f"run {run} is {row.state}, not running", epoch=row.epoch)
    return row


def _change(tx: Tx, run: RunId, **values: Any) -> Row[Any]:
    return tx.connection.execute(_CHANGE, {"which": run, **values}).one()


def _set_turn(tx: Tx, row: Row[Any], **values: Any) -> None:
    tx.connection.execute(_CHANGE_TURN, {"which": row.turn, **values})


class SqlRuns:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, run: RunId) -> Run:
        return await self._database.read(lambda connection: run_of(run_row(connection, run)))

    async def all(self, tenant: TenantId, limit: int) -> list[Run]:
        """Newest first."""
        query = sa.select(runs).where(runs.c.tenant == tenant)
        query = query.order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(max(limit, 0))
        return await self._database.read(lambda connection: [run_of(row) for row in connection.execute(query)])

    async def claim(self, worker: str, limit: int, token_hash: Callable[[RunId], str]) -> list[Run]:
        """Runs of a disabled user stay queued and hold nobody back."""

        def work(tx: Tx) -> list[Run]:
            now = tx.lease_now()
            due = {"now": now, "never": now + _MAX_BACKOFF, "count": limit}
            found = tx.connection.execute(tx.world.dialect.for_claim(_CLAIMABLE, runs), due).all()
            return [_start(tx, row, worker, now, token_hash(row.id)) for row in found]

        return await self._database.write(work) if limit > 0 else []

    async def heartbeat(self, worker: str) -> list[RunId]:
        def work(tx: Tx) -> list[RunId]:
            mine = sa.update(runs).where(sa.text(RUNNING), runs.c.worker == worker)
            renewed = mine.values(lease_until=tx.lease_now() + _LEASE).returning(runs.c.id)
            return [RunId(run) for run in tx.connection.execute(renewed).scalars()]

        return await self._database.write(work)

    async def adopt(self, run: RunId, worker: str, epoch: int) -> Run:
        def work(tx: Tx) -> Run:
            fenced(tx, run, epoch)
            until = tx.lease_now() + _LEASE
            return run_of(_change(tx, run, epoch=epoch + 1, worker=worker, lease_until=until))

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
            _change(tx, run, box=box, guest_digest=guest_digest)

        await self._database.write(work)

    async def requeue(self, run: RunId, epoch: int, reason: str) -> Run:
        return await self._database.write(lambda tx: _requeue(tx, run, epoch, cleaned(reason)))

    async def end(self, run: RunId, epoch: int, state: RunState, reason: str, reply: str | None) -> Run:
        """Also Invalid: no final state. TooLarge: a reply of more than 256 KiB. NUL and lone surrogates of the reply
        become U+FFFD: its writer is gone when it is refused."""
        if state not in RUN_FINAL:
            raise Invalid(f"{state.value} is no final state of a run")
        text = None if reply is None else checked(cleaned(reply), "the reply", MAX_MESSAGE_BYTES)
        return await self._database.write(lambda tx: _end(tx, run, epoch, state, cleaned(reason), text))

    async def cancel(self, run: RunId) -> Run:
        """A final run is answered as it is."""
        return await self._database.write(lambda tx: run_of(_cancel(tx, run_row(tx.connection, run), "cancelled")))


def _start(tx: Tx, row: Row[Any], worker: str, now: datetime, token_hash: str) -> Run:
    attempts = row.attempts + 1
    started = _change(
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
    _set_turn(tx, row, state=RunState.RUNNING.value)
    kind = EventKind.RUN_STARTED if attempts == 1 else EventKind.RUN_REDRIVEN
    append(tx, row.thread, Draft(kind, {"attempt": attempts}, row.actor, row.turn, row.id))
    return run_of(started)


def _requeue(tx: Tx, run: RunId, epoch: int, reason: str) -> Run:
    row = fenced(tx, run, epoch)
    wait = min(timedelta(seconds=2 ** min(row.attempts, 16) * _BACKOFF_SECONDS), _MAX_BACKOFF)
    waiting = _change(
        tx,
        run,
        state=RunState.QUEUED.value,
        reason=reason,
        worker=None,
        lease_until=None,
        not_before=tx.lease_now() + wait,
        token_hash="",
    )
    _set_turn(tx, row, state=RunState.QUEUED.value)
    return run_of(waiting)


def _end(tx: Tx, run: RunId, epoch: int, state: RunState, reason: str, reply: str | None) -> Run:
    row = run_row(tx.connection, run)
    if row.epoch == epoch and row.state in RUN_FINAL:
        kept = tx.connection.execute(sa.select(turns.c.reply).where(turns.c.id == row.turn)).scalar_one()
        if row.state == state and kept == reply:
            return run_of(row)
        raise Conflict(f"run {run} has ended already: {row.state}", state=row.state)
    fenced(tx, run, epoch)
    return run_of(_finish(tx, row, state, reason, reply))


def _finish(tx: Tx, row: Row[Any], state: RunState, reason: str, reply: str | None) -> Row[Any]:
    """Run, turn, reply and events, whatever state the run was in."""
    now = tx.now()
    ended = _change(
        tx, row.id, state=state.value, reason=reason, worker=None, lease_until=None, not_before=None, ended_at=now
    )
    _set_turn(tx, row, state=state.value, reason=reason, reply=reply, ended_at=now)
    last = Draft(EventKind.RUN_ENDED, {"state": state.value, "reason": reason}, row.actor, row.turn, row.id)
    if reply is None:
        append(tx, row.thread, last)
        return ended
    message = MessageId(tx.new_id("msg"))
    body = {"author": AGENT, "text": reply, "message": message}
    said, _ = append(tx, row.thread, Draft(EventKind.REPLY, body, row.actor, row.turn, row.id), last)
    values = {
        "id": message,
        "thread": row.thread,
        "turn": row.turn,
        "author": None,
        "author_name": AGENT,
        "text": reply,
        "cursor": said.cursor,
        "created_at": now,
    }
    tx.connection.execute(_INSERT_MESSAGE, values)
    return ended


def _cancel(tx: Tx, row: Row[Any], reason: str) -> Row[Any]:
    if row.state in RUN_FINAL:
        return row
    if row.state in _WAITING:
        return _finish(tx, _change(tx, row.id, cancel_requested=True), RunState.CANCELLED, reason, None)
    return row if row.cancel_requested else _change(tx, row.id, cancel_requested=True)


def cancel_all_of(tx: Tx, actor: UserId, reason: str) -> None:
    """What `cancel` does, to each run of the user that is not final."""
    live = sa.select(runs).where(runs.c.actor == actor, runs.c.state.not_in([state.value for state in RUN_FINAL]))
    for row in tx.connection.execute(live.order_by(runs.c.created_at, runs.c.id)).all():
        _cancel(tx, row, reason)
