"""Threads, their members and messages. A change of members is an event of the thread, in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NotFound
from ringfence.host.kernel.ids import RunId, TenantId, ThreadId, UserId
from ringfence.host.kernel.names import check_thread_name
from ringfence.host.kernel.threads import MAX_SUMMARY_BYTES, EventKind, Message, Summary, Thread
from ringfence.host.store.database import Database
from ringfence.host.store.events import Draft, append
from ringfence.host.store.glass import MAX_OPEN_SECONDS, MAX_REASON_BYTES, MAX_VIA_BYTES, is_open, open_glass
from ringfence.host.store.messages import messages_before
from ringfence.host.store.owned import owned
from ringfence.host.store.people import find_user_by_id
from ringfence.host.store.schema import members, tenants, threads
from ringfence.host.store.summaries import find_summary, put_summary
from ringfence.host.store.text import checked, cleaned, storable
from ringfence.host.store.transaction import Tx

_LIVE = sa.select(threads).where(threads.c.removed_at.is_(None))
# Built once: they are part of every turn.
_BY_ID = _LIVE.where(threads.c.id == sa.bindparam("which"))
_NAMED = _LIVE.where(threads.c.tenant == sa.bindparam("of_tenant"), threads.c.name == sa.bindparam("named"))
_MEMBERS = sa.select(members).where(members.c.thread.in_(sa.bindparam("of_threads", expanding=True)))
_MEMBERS_OF_ONE = sa.select(members).where(
    members.c.thread == sa.bindparam("of_thread")
)  # a list is expanded each time


def find_thread(connection: Connection, thread: ThreadId) -> Thread:
    """NotFound."""
    found = threads_with_members(connection, _BY_ID, {"id": thread}, which=thread) if storable(thread) else []
    if not found:
        raise NotFound(f"no such thread: {thread!r}")
    return found[0]


def threads_with_members(
    connection: Connection, query: sa.Select[Any], keys: Mapping[str, str], **which: str
) -> list[Thread]:
    """Members are asked for also when there is no thread: whether there is one is not to be told by the time it takes."""
    rows = owned(connection.execute(query, which), **keys)
    inside: dict[str, set[UserId]] = {row.id: set() for row in rows}
    for member in _members_of(connection, list(inside) or [""]):
        inside[member.thread].add(member.user)
    return [
        Thread(row.id, row.tenant, row.name, row.parallel, frozenset(inside[row.id]), row.created_at) for row in rows
    ]


def _members_of(connection: Connection, found: Sequence[str]) -> Iterator[Row[Any]]:
    if len(found) == 1:
        yield from connection.execute(_MEMBERS_OF_ONE, {"of_thread": found[0]})
        return
    for start in range(0, len(found), 500):  # SQLite before 3.32 took 999 variables; far below every limit
        yield from connection.execute(_MEMBERS, {"of_threads": found[start : start + 500]})


class SqlThreads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, tenant: TenantId, name: str, members: Sequence[UserId], parallel: bool) -> Thread:
        """Also NameInvalid. NotFound: the tenant, or a member in it. The first members are no events."""
        check_thread_name(name)
        return await self._database.write(lambda tx: _add(tx, tenant, name, members, parallel))

    async def get(self, tenant: TenantId, name: str) -> Thread:
        def question(connection: Connection) -> Thread:
            which = {"of_tenant": tenant, "named": name}
            keys = {"tenant": tenant, "name": name}
            found = threads_with_members(connection, _NAMED, keys, **which) if storable(name) else []
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
        found = await self._database.read(lambda connection: threads_with_members(connection, query, {}))
        if not all(user in thread.members for thread in found):
            raise Failed(
                "the store found a thread of other members: nothing was given out",
                remedy="report this: a query lost its filter",
            )
        return found

    async def of_tenant(self, tenant: TenantId) -> list[Thread]:
        """By name."""
        query = _LIVE.where(threads.c.tenant == tenant).order_by(threads.c.name)
        return await self._database.read(lambda connection: threads_with_members(connection, query, {"tenant": tenant}))

    async def set_member(self, thread: ThreadId, user: UserId, member: bool) -> Thread:
        """MEMBER_ADDED or MEMBER_REMOVED {"user": name} when it changes something. NotFound: thread or user, also a
        user of another tenant.

        Whoever is taken out keeps the summaries that their runs made: only their own runs are given them, and those are
        given nothing of a thread that their actor is not in."""
        return await self._database.write(lambda tx: _set_member(tx, thread, user, member))

    async def messages(self, thread: ThreadId, before: int | None, limit: int) -> list[Message]:
        found = await self._database.read(
            lambda connection: messages_before(connection, thread, before, 0, max(limit, 0))
        )
        return found[::-1]

    async def summary(self, thread: ThreadId, actor: UserId) -> Summary | None:
        return await self._database.read(lambda connection: find_summary(connection, thread, actor))

    async def set_summary(self, run: RunId, epoch: int, cursor: int, text: str) -> Summary:
        """Also NotFound. NUL and lone surrogates of the text become U+FFFD. A second one at the same cursor replaces the
        first."""
        kept = checked(cleaned(text), "the summary", MAX_SUMMARY_BYTES)
        return await self._database.write(lambda tx: put_summary(tx, run, epoch, cursor, kept))

    async def break_glass(self, thread: ThreadId, via: str, reason: str, seconds: float) -> datetime:
        """BREAK_GLASS {"by": via, "reason", "until": ISO 8601}. Open already: from now on for `seconds`, and told again.
        Invalid: `via` is no text or `seconds` no time of up to a day. TooLarge: a reason of more than 4 KiB."""
        checked(via, "the operator's way in", MAX_VIA_BYTES)
        if not 0 < seconds <= MAX_OPEN_SECONDS:
            raise Invalid(f"a thread is opened for at most {MAX_OPEN_SECONDS:.0f} seconds, not {seconds}")
        why = checked(cleaned(reason), "the reason", MAX_REASON_BYTES)
        return await self._database.write(lambda tx: open_glass(tx, thread, via, why, seconds))

    async def glass(self, thread: ThreadId, via: str) -> bool:
        now = self._database.world.onward.now()
        return await self._database.read(lambda connection: is_open(connection, thread, via, now))


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
