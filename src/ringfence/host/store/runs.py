"""Runs: claimed, leased, found again when their worker is gone. Every write names the epoch that it acts under.

Within a lane runs start in the order of their messages, one at a time: an older one that waits out its back-off holds
the younger ones back. Among users they start in turn (kernel.fairness). How a run comes to an end, or back into the queue, is in run_ends.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Invalid, Unavailable
from ringfence.host.kernel.fairness import Waiting, in_turn
from ringfence.host.kernel.ids import BoxId, RunId, TenantId, UserId
from ringfence.host.kernel.runs import LEASE_SECONDS, RUN_FINAL, Abandoned, Run, RunState
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES, EventKind
from ringfence.host.store.abandoned import abandoned
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.columns import Utc
from ringfence.host.store.database import Database
from ringfence.host.store.effect_ends import Judge
from ringfence.host.store.events import Draft, append
from ringfence.host.store.owned import owned
from ringfence.host.store.park import ANSWERED, hold_run
from ringfence.host.store.places import HERE, OURS
from ringfence.host.store.requeue import MAX_BACKOFF, requeue_each
from ringfence.host.store.run_ends import Ending, cancel_run, end_run, reopen_run
from ringfence.host.store.run_rows import change_run, change_turn, fenced, locked_run, run_of, run_row
from ringfence.host.store.schema import LIVE, RUNNING, runs, users
from ringfence.host.store.text import checked, cleaned
from ringfence.host.store.transaction import Alike, Tx
from ringfence.host.store.trees import leave_to_table

_LEASE = timedelta(seconds=LEASE_SECONDS)


# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
def _claimable() -> sa.Select[Any]:
    """Queued, due at `now`, of a user whom nothing holds back, and nothing older (or live) in the lane.

    A back-off that ends after `never`, later than any can, was set before the wall clock was turned back and the server
    restarted.
    """
    other, owner = runs.alias("other"), users.alias("owner")
    older = sa.and_(
        other.c.position < runs.c.position,
        sa.or_(other.c.state == RunState.PARKED.value, sa.and_(sa.not_(owner.c.disabled), owner.c.held == "")),
    )
    ahead = sa.select(other.c.id).join(owner, owner.c.id == other.c.actor)
    ahead = ahead.where(sa.text(f"other.{LIVE}"), other.c.lane == runs.c.lane)
    ahead = ahead.where(sa.or_(other.c.state == RunState.RUNNING.value, older))
    now, never = sa.bindparam("now", type_=Utc), sa.bindparam("never", type_=Utc)
    due = sa.or_(runs.c.not_before.is_(None), runs.c.not_before <= now, runs.c.not_before > never)
    query = sa.select(runs).join(users, users.c.id == runs.c.actor)
    query = query.where(sa.text(f"runs.{LIVE}"), runs.c.state == RunState.QUEUED.value, due)
    return query.where(sa.not_(users.c.disabled), users.c.held == "", ~ahead.exists())


def _few_of_each(claimable: sa.Select[Any]) -> sa.Select[Any]:
    """The oldest `deep` of each user: who has thousands costs no more than who has some."""
    nth = sa.func.row_number().over(partition_by=runs.c.actor, order_by=(runs.c.created_at, runs.c.id)).label("nth")
    every = claimable.with_only_columns(runs.c.id, runs.c.actor, runs.c.created_at, nth).subquery("every")
    query = sa.select(every.c.id, every.c.actor, every.c.created_at).order_by(every.c.nth)
    return query.where(every.c.nth <= sa.bindparam("deep", type_=sa.BigInteger))


def _chosen(claimable: sa.Select[Any]) -> sa.Select[Any]:
    return claimable.where(runs.c.id.in_(sa.bindparam("chosen", expanding=True)))


_SPARE = 8  # of each user beyond the limit, as another kernel may be about to take the first ones
_CLAIMABLE = _claimable()
_CLAIMABLE_HERE = _CLAIMABLE.where(HERE)
_FEW, _FEW_HERE = _few_of_each(_CLAIMABLE), _few_of_each(_CLAIMABLE_HERE)
_CHOSEN, _CHOSEN_HERE = _chosen(_CLAIMABLE), _chosen(_CLAIMABLE_HERE)
_AT_WORK = sa.select(runs.c.actor, sa.func.count()).where(sa.text(RUNNING)).group_by(runs.c.actor)
_HELD = (
    sa.select(runs.c.id, runs.c.lease_until, runs.c.worked)
    .where(sa.text(RUNNING), runs.c.worker == sa.bindparam("by_worker"))
    .with_for_update()
)
_RENEW = sa.update(runs).where(runs.c.id == sa.bindparam("which"))


class SqlRuns:
    def __init__(self, database: Database, chain: Chain) -> None:
        """`chain`: of the audit, see run_ends.py."""
        self._database, self._chain = database, chain
        # When each user was served last, as a count of claimed runs. In memory: a user's runs are claimed by one kernel, that
        # of the user's home, and after its restart everybody is equal.
        self._served: dict[UserId, int] = {}
        self._count = 0

    async def get(self, run: RunId) -> Run:
        return await self._database.read(lambda connection: run_of(run_row(connection, run)))

    async def all(self, tenant: TenantId, limit: int) -> list[Run]:
        """Newest first."""
        query = sa.select(runs).where(runs.c.tenant == tenant)
        query = query.order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(max(limit, 0))
        return await self._database.read(lambda c: [run_of(row) for row in owned(c.execute(query), tenant=tenant)])

    async def claim(self, worker: str, limit: int, token_hash: Callable[[RunId], str], each: int = 0) -> list[Run]:
        """Runs of a user who is disabled or held stay queued and hold nobody back."""

        def work(tx: Tx) -> list[Run]:
            started: list[Run] = []
            now = tx.lease_now()
            here: dict[str, Any] = {"now": now, "never": now + MAX_BACKOFF}
            few, chosen = _FEW, _CHOSEN
            if not tx.world.dialect.one_kernel:
                few, chosen, here["installation"] = _FEW_HERE, _CHOSEN_HERE, tx.world.installation
            order = self._in_turn(tx, few, {**here, "deep": limit + _SPARE}, each)
            while order and len(started) < limit:
                some, order = order[: limit - len(started)], order[limit - len(started) :]
                query = tx.world.dialect.for_claim(chosen, runs)
                found = tx.connection.execute(query, {**here, "chosen": [one.run for one in some]}).all()
                rows = {row.id: row for row in found}  # fewer: another kernel has them
                for row in [rows[one.run] for one in some if one.run in rows]:
                    if row.other_tree:
                        leave_to_table(tx, row)
                    else:
                        started.append(_start(tx, row, worker, now, token_hash(row.id)))
            return started

        if limit <= 0 or self._database.reserve.low:
            return []
        claimed = await self._database.write(work)
        self._note(claimed)  # once it is written: the work above is done again when it lost a race
        return claimed

    def _in_turn(self, tx: Tx, few: sa.Select[Any], which: dict[str, Any], each: int) -> list[Waiting]:
        waiting = [Waiting(*row) for row in tx.connection.execute(few, which)]
        if len(waiting) < 2 and not each:
            return waiting
        at_work = {row.actor: row[1] for row in tx.connection.execute(_AT_WORK)} if each and waiting else {}
        return in_turn(waiting, self._served, at_work, each)

    def _note(self, started: list[Run]) -> None:
        for run in started:
            self._count += 1
            self._served[run.actor] = self._count

    async def offered(self, seconds: float) -> bool:
        wakes = self._database.wakes
        try:
            async with asyncio.timeout(seconds):
                await wakes.offered.wait()
        except TimeoutError:
            return False
        wakes.offered.clear()
        if wakes.closed:
            raise Unavailable("the store is closed", remedy="the server is stopping: try again when it is back")
        return True

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
            query, which = sa.select(runs).where(sa.text(RUNNING)), {}
            if world.dialect.one_kernel:
                query = query.where(sa.or_(over, runs.c.worker != worker))
            else:
                query, which = query.where(HERE), {"installation": world.installation}
                # Whoever held a run of this installation's own boxes before was its former kernel, and is gone.
                query = query.where(
                    sa.or_(over, sa.and_(runs.c.worker != worker, OURS)) if world.installation else over
                )
            return [run_of(row) for row in connection.execute(query.order_by(runs.c.created_at, runs.c.id), which)]

        return await self._database.read(question)

    async def abandoned(self) -> list[Abandoned]:
        """Oldest first."""
        world = self._database.world
        one = world.dialect.one_kernel  # whose runs are all its own
        return [] if one else await self._database.read(lambda connection: abandoned(connection, world))

    async def assign(self, run: RunId, epoch: int, box: BoxId, guest_digest: str) -> None:
        def work(tx: Tx) -> None:
            fenced(tx, run, epoch)
            change_run(tx, run, box=box, guest_digest=guest_digest)

        await self._database.write(work)

    async def requeue(self, run: RunId, epoch: int, reason: str) -> Run:
        return await self._database.write(Alike(requeue_each, (run, epoch, cleaned(reason))))

    async def hold(self, run: RunId, epoch: int, reason: str) -> Run:
        return await self._database.write(lambda tx: run_of(hold_run(tx, fenced(tx, run, epoch), cleaned(reason))))

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
        return await self._database.write(lambda tx: run_of(end_run(tx, self._chain, run, epoch, ending, seen)))

    async def reopen(self, run: RunId) -> Run:
        """RUN_QUEUED {"reason": "redriven by hand"}. It waits at its old place in the lane, without a back-off; its
        cancellation, when one was asked for, is forgotten. Also Conflict: its user was removed."""
        return await self._database.write(lambda tx: run_of(reopen_run(tx, run)))

    async def cancel(self, run: RunId, judge: Judge | None = None) -> Run:
        """A final run is answered as it is."""
        cancelling = Ending(RunState.CANCELLED, "cancelled", judge=judge)
        return await self._database.write(
            lambda tx: run_of(cancel_run(tx, self._chain, locked_run(tx, run), cancelling))
        )


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
    again = EventKind.RUN_RESUMED if row.reason == ANSWERED else EventKind.RUN_REDRIVEN
    kind = EventKind.RUN_STARTED if row.started_at is None else again
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


def cancel_all_of(tx: Tx, chain: Chain, actor: UserId, reason: str) -> None:
    """What `cancel` does, to each run of the user that is not final."""
    live = sa.select(runs).where(runs.c.actor == actor, runs.c.state.not_in([state.value for state in RUN_FINAL]))
    for row in tx.connection.execute(live.order_by(runs.c.created_at, runs.c.id).with_for_update()).all():
        cancel_run(tx, chain, row, Ending(RunState.CANCELLED, reason))
