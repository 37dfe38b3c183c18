"""kernel.reads: several questions that are always asked together, from one snapshot and in one hop to the database.

A hop takes about as long as a question. Must never keep an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.ids import RunId, ThreadId, UserId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.reads import Backlog, Brief, Page, Standing, Tail
from ringfence.host.kernel.runs import DEAD_LETTERED, RunState
from ringfence.host.kernel.threads import Message, Thread
from ringfence.host.store.boxes import find_home
from ringfence.host.store.database import Database
from ringfence.host.store.events import MAX_CURSOR, event_of
from ringfence.host.store.messages import messages_before, said_to
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.people import find_user_by_id
from ringfence.host.store.run_rows import run_row
from ringfence.host.store.schema import LIVE, events, members, runs, tenants, threads, users
from ringfence.host.store.standings import standings
from ringfence.host.store.steps import find_checkpoint, states_of
from ringfence.host.store.summaries import find_summary
from ringfence.host.store.text import storable
from ringfence.host.store.threads import find_thread, threads_with_members

_PAGE = 50  # messages of at most 256 KiB: 12.5 MiB in memory at the very worst

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_NAMED = (
    sa.select(threads, tenants.c.name.label("tenant_name"))
    .join(tenants, tenants.c.id == threads.c.tenant)
    .where(
        tenants.c.name == sa.bindparam("of_tenant"),
        tenants.c.removed_at.is_(None),
        threads.c.name == sa.bindparam("named"),
        threads.c.removed_at.is_(None),
    )
)
_OF_MEMBER: sa.Select[Any] = (
    _NAMED.join(members, members.c.thread == threads.c.id)
    .where(members.c.user == sa.bindparam("by_member"))
    .with_only_columns(threads.c.id, threads.c.name, tenants.c.name.label("tenant_name"), members.c.user)
)
_NAMED_EVENTS = (
    sa.select(events, users.c.name.label("actor_name"))
    .select_from(events.outerjoin(users, sa.and_(users.c.id == events.c.actor, users.c.removed_at.is_(None))))
    .where(events.c.thread == sa.bindparam("in_thread"), events.c.cursor > sa.bindparam("after", type_=sa.BigInteger))
    .order_by(events.c.cursor)
    .limit(sa.bindparam("count", type_=sa.BigInteger))
)
_QUEUED = sa.select(runs.c.id).where(sa.text(LIVE), runs.c.state == RunState.QUEUED.value).limit(1)

_LIVE = (
    sa.select(runs.c.state, sa.func.count().label("many"), sa.func.min(runs.c.created_at).label("since"))
    .where(sa.text(LIVE))
    .group_by(runs.c.state)
)
_DEAD = sa.select(sa.func.count()).where(
    runs.c.state == RunState.FAILED.value, runs.c.reason == DEAD_LETTERED, runs.c.ended_at.is_not(None)
)


class SqlReads:
    """kernel.reads.Reads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def thread(self, tenant: str, name: str) -> Thread:
        def question(connection: Connection) -> Thread:
            found = []
            if storable(tenant) and storable(name):
                keys = {"name": name, "tenant_name": tenant}
                found = threads_with_members(connection, _NAMED, keys, of_tenant=tenant, named=name)
            if not found:
                raise NotFound(f"no such thread: {name!r}", remedy="ringfence thread ls")
            return found[0]

        return await self._database.read(question)

    async def page(self, tenant: str, name: str, member: UserId, after: int, limit: int) -> Page | None:
        def question(connection: Connection) -> Page | None:
            which = {"of_tenant": tenant, "named": name, "by_member": member}
            if not all(map(storable, which.values())):
                return None
            found = connection.execute(_OF_MEMBER, which).one_or_none()
            row = owned_row(found, name=name, tenant_name=tenant, user=member)
            if row is None:
                return None
            newer = {"in_thread": row.id, "after": max(0, min(after, MAX_CURSOR)), "count": max(limit, 0)}
            rows = owned(connection.execute(_NAMED_EVENTS, newer), thread=row.id)
            names = {UserId(row.actor): row.actor_name for row in rows if row.actor_name is not None}
            return Page([event_of(row) for row in rows], names)

        return await self._database.read(question)

    async def tail(
        self, thread: ThreadId, before: int | None, after: int, limit: int | None, size: int
    ) -> tuple[list[Message], bool]:
        return await self._database.read(lambda connection: _tail(connection, thread, before, after, limit, size))

    async def home(self, user: UserId) -> tuple[User, Box | None]:
        def question(connection: Connection) -> tuple[User, Box | None]:
            return find_user_by_id(connection, user), find_home(connection, user)

        return await self._database.read(question)

    async def brief(self, run: RunId, limit: int, size: int) -> Brief:
        def question(connection: Connection) -> Brief:
            row = run_row(connection, run)
            said, summary = said_to(connection, row.turn), find_summary(connection, row.thread, row.actor)
            after = summary.cursor if summary is not None and said and summary.cursor < said[0].cursor else 0
            return Brief(
                user=find_user_by_id(connection, row.actor),
                box=find_home(connection, row.actor),
                thread=find_thread(connection, row.thread),
                said=said,
                summary=summary,
                tail=Tail(after, *_tail(connection, row.thread, None, after, limit, size)),
                checkpoint=find_checkpoint(connection, run),
                steps=states_of(connection, run),
            )

        return await self._database.read(question)

    async def standings(self, which: Sequence[RunId]) -> dict[RunId, Standing]:
        return await self._database.read(lambda connection: standings(connection, which))

    async def waiting(self) -> bool:
        return await self._database.read(lambda connection: connection.execute(_QUEUED).first() is not None)

    async def backlog(self) -> Backlog:
        return await self._database.read(_backlog)


def _backlog(connection: Connection) -> Backlog:
    live = {row.state: row for row in connection.execute(_LIVE)}
    queued, parked = live.get(RunState.QUEUED.value), live.get(RunState.PARKED.value)
    return Backlog(
        queued=queued.many if queued is not None else 0,
        queued_since=queued.since if queued is not None else None,
        parked=parked.many if parked is not None else 0,
        dead=connection.execute(_DEAD).scalar_one(),
    )


def _tail(
    connection: Connection, thread: ThreadId, before: int | None, after: int, limit: int | None, size: int
) -> tuple[list[Message], bool]:
    found: list[Message] = []  # newest first
    left, below, more = size, before, True
    while more and left >= 0 and (limit is None or len(found) < limit):
        some = messages_before(connection, thread, below, after, _PAGE + 1)
        more, some = len(some) > _PAGE, some[:_PAGE]
        found += some
        left -= sum(len(message.text.encode()) for message in some)
        below = some[-1].cursor if some else below
    return found[::-1], more
