"""Threads, their members and messages. A change of members is an event of the thread, in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.ids import TenantId, ThreadId, UserId
from ringfence.host.kernel.names import check_thread_name
from ringfence.host.kernel.threads import EventKind, Message, Thread
from ringfence.host.store.database import Database
from ringfence.host.store.events import MAX_CURSOR, Draft, append
from ringfence.host.store.people import find_user_by_id
from ringfence.host.store.schema import members, messages, tenants, threads
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

_LIVE = sa.select(threads).where(threads.c.removed_at.is_(None))


def message_of(row: Row[Any]) -> Message:
    return Message(
        id=row.id,
        thread=row.thread,
        turn=row.turn,
        author=row.author,
        author_name=row.author_name,
        text=row.text,
        cursor=row.cursor,
        created_at=row.created_at,
    )


def find_thread(connection: Connection, thread: ThreadId) -> Thread:
    """NotFound."""
    found = _with_members(connection, _LIVE.where(threads.c.id == thread)) if storable(thread) else []
    if not found:
        raise NotFound(f"no such thread: {thread!r}")
    return found[0]


def _with_members(connection: Connection, query: sa.Select[Any]) -> list[Thread]:
    rows = connection.execute(query).all()
    inside: dict[str, set[UserId]] = {row.id: set() for row in rows}
    for start in range(0, len(rows), 500):  # SQLite before 3.32 took 999 variables; far below every limit
        some = [row.id for row in rows[start : start + 500]]
        for member in connection.execute(sa.select(members).where(members.c.thread.in_(some))):
            inside[member.thread].add(member.user)
    return [
        Thread(row.id, row.tenant, row.name, row.parallel, frozenset(inside[row.id]), row.created_at) for row in rows
    ]


class SqlThreads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, tenant: TenantId, name: str, members: Sequence[UserId], parallel: bool) -> Thread:
        """Also NameInvalid. NotFound: the tenant, or a member in it. The first members are no events."""
        check_thread_name(name)
        return await self._database.write(lambda tx: _add(tx, tenant, name, members, parallel))

    async def get(self, tenant: TenantId, name: str) -> Thread:
        def question(connection: Connection) -> Thread:
            query = _LIVE.where(threads.c.tenant == tenant, threads.c.name == name)
            found = _with_members(connection, query) if storable(name) else []
            if not found:
                raise NotFound(f"no such thread: {name!r}", remedy="ringfence thread ls")
            return found[0]

        return await self._database.read(question)

    async def by_id(self, thread: ThreadId) -> Thread:
        return await self._database.read(lambda connection: find_thread(connection, thread))

    async def of_member(self, user: UserId) -> list[Thread]:
        """By name."""
        mine = sa.select(members.c.thread).where(members.c.user == user)
        query = _LIVE.where(threads.c.id.in_(mine)).order_by(threads.c.name)
        return await self._database.read(lambda connection: _with_members(connection, query))

    async def of_tenant(self, tenant: TenantId) -> list[Thread]:
        """By name."""
        query = _LIVE.where(threads.c.tenant == tenant).order_by(threads.c.name)
        return await self._database.read(lambda connection: _with_members(connection, query))

    async def set_member(self, thread: ThreadId, user: UserId, member: bool) -> Thread:
        """MEMBER_ADDED or MEMBER_REMOVED {"user": name} when it changes something. NotFound: thread or user, also a
        user of another tenant."""
        return await self._database.write(lambda tx: _set_member(tx, thread, user, member))

    async def messages(self, thread: ThreadId, before: int | None, limit: int) -> list[Message]:
        query = sa.select(messages).where(messages.c.thread == thread)
        if before is not None:
            query = query.where(messages.c.cursor < min(before, MAX_CURSOR))
        query = query.order_by(messages.c.cursor.desc()).limit(max(limit, 0))
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [message_of(row) for row in reversed(rows)]


def _add(tx: Tx, tenant: TenantId, name: str, first: Sequence[UserId], parallel: bool) -> Thread:
    here = sa.select(tenants.c.id).where(tenants.c.id == tenant, tenants.c.removed_at.is_(None))
    if tx.connection.execute(here).first() is None:
        raise NotFound(f"no such tenant: {tenant!r}")
    for user in first:
        _member_of(tx, tenant, user)
    taken = sa.select(threads.c.id).where(
        threads.c.tenant == tenant, threads.c.name == name, threads.c.removed_at.is_(None)
    )
    if tx.connection.execute(taken).first():
        raise Conflict(f"the thread {name!r} exists", remedy="choose another name")
    thread = Thread(ThreadId(tx.new_id("thr")), tenant, name, parallel, frozenset(first), tx.now())
    row = {
        "id": thread.id,
        "tenant": tenant,
        "name": name,
        "parallel": parallel,
        "cursor": 0,
        "created_at": thread.created_at,
    }
    tx.connection.execute(sa.insert(threads).values(row))
    if thread.members:
        tx.connection.execute(sa.insert(members), [{"thread": thread.id, "user": user} for user in thread.members])
    return thread


def _set_member(tx: Tx, thread: ThreadId, user: UserId, member: bool) -> Thread:
    found = find_thread(tx.connection, thread)
    name = _member_of(tx, found.tenant, user)
    if (user in found.members) == member:
        return found
    if member:
        tx.connection.execute(sa.insert(members).values(thread=thread, user=user))
    else:
        tx.connection.execute(sa.delete(members).where(members.c.thread == thread, members.c.user == user))
    kind = EventKind.MEMBER_ADDED if member else EventKind.MEMBER_REMOVED
    append(tx, thread, Draft(kind, {"user": name}, actor=user))
    return find_thread(tx.connection, thread)


def _member_of(tx: Tx, tenant: TenantId, user: UserId) -> str:
    """The name of a user of the tenant. NotFound."""
    found = find_user_by_id(tx.connection, user)
    if found.tenant != tenant:
        raise NotFound(f"no such user: {user!r}")
    return found.name
