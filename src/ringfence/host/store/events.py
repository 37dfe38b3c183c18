"""Events: append-only, with a cursor for each thread that is given in the transaction, so 1, 2, 3, ... without gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.ids import RunId, ThreadId, TurnId, UserId
from ringfence.host.kernel.threads import Event, EventKind
from ringfence.host.store.database import Database
from ringfence.host.store.owned import owned
from ringfence.host.store.schema import events, threads
from ringfence.host.store.text import checked_json, storable
from ringfence.host.store.transaction import Tx

POLL_SECONDS = 1.0  # another process's commits wake nobody here
MAX_CURSOR = (1 << 63) - 1  # what the column holds
_BODY_BYTES = 2 << 20  # a message of 256 KiB with each character as an escape of 6 bytes, and room beside it

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_INSERT = sa.insert(events)
_AFTER = (
    sa.select(events)
    .where(events.c.thread == sa.bindparam("in_thread"), events.c.cursor > sa.bindparam("after", type_=sa.BigInteger))
    .order_by(events.c.cursor)
    .limit(sa.bindparam("count", type_=sa.BigInteger))
)
_NEWEST = sa.select(threads.c.cursor).where(threads.c.id == sa.bindparam("which"), threads.c.removed_at.is_(None))
_TAKE = (
    sa.update(threads)
    .where(threads.c.id == sa.bindparam("which"), threads.c.removed_at.is_(None))
    .values(cursor=threads.c.cursor + sa.bindparam("count", type_=sa.BigInteger))
    .returning(threads.c.cursor)
)


@dataclass(frozen=True, slots=True)
class Draft:
    """An event that has no cursor yet."""

    kind: EventKind
    body: Mapping[str, Any]
    actor: UserId | None = None
    turn: TurnId | None = None
    run: RunId | None = None


def append(tx: Tx, thread: ThreadId, *drafts: Draft) -> list[Event]:
    """Gives the next cursors. The thread's row is locked until the commit, so nobody else can give the same ones.
    NotFound."""
    taken = {"which": thread, "count": len(drafts)}
    last = tx.connection.execute(_TAKE, taken).scalar_one_or_none() if storable(thread) else None
    if last is None:
        raise NotFound(f"no such thread: {thread!r}")
    now = tx.now()
    rows = [
        {
            "thread": thread,
            "cursor": last - len(drafts) + 1 + index,
            "kind": draft.kind.value,
            "actor": draft.actor,
            "turn": draft.turn,
            "run": draft.run,
            "body": dict(draft.body),
            "created_at": now,
        }
        for index, draft in enumerate(drafts)
    ]
    tx.connection.execute(_INSERT, rows)
    tx.grown[thread] = last
    return [Event(**{**row, "kind": draft.kind}) for row, draft in zip(rows, drafts, strict=True)]


def event_of(row: Row[Any]) -> Event:
    return Event(
        thread=row.thread,
        cursor=row.cursor,
        kind=EventKind(row.kind),
        actor=row.actor,
        turn=row.turn,
        run=row.run,
        body=row.body,
        created_at=row.created_at,
    )


def events_after(connection: Connection, thread: ThreadId, cursor: int, limit: int) -> list[Event]:
    """Oldest first."""
    which = {"in_thread": thread, "after": max(0, min(cursor, MAX_CURSOR)), "count": max(limit, 0)}
    if not storable(thread):
        return []
    return [event_of(row) for row in owned(connection.execute(_AFTER, which), thread=thread)]


class SqlEvents:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def after(self, thread: ThreadId, cursor: int, limit: int) -> list[Event]:
        """Nothing for a thread that is not there."""
        return await self._database.read(lambda connection: events_after(connection, thread, cursor, limit))

    async def append(
        self,
        thread: ThreadId,
        kind: EventKind,
        body: Mapping[str, Any],
        *,
        actor: UserId | None = None,
        turn: TurnId | None = None,
        run: RunId | None = None,
    ) -> Event:
        """NotFound; Invalid; TooLarge: a body of more than 2 MiB as JSON."""
        draft = Draft(kind, checked_json(body, "the body of an event", _BODY_BYTES), actor, turn, run)
        return (await self._database.write(lambda tx: append(tx, thread, draft)))[0]

    async def changed(self, thread: ThreadId, cursor: int, seconds: float) -> bool:
        """NotFound. False also when the store is being closed. The database is asked only when this process does not know
        how far the thread is, once a second, and before the answer is False."""
        loop, wakes = asyncio.get_running_loop(), self._database.wakes
        deadline = loop.time() + seconds
        with wakes.watch(thread) as woken:
            look = wakes.newest(thread) is None
            while True:
                woken.clear()
                if wakes.closed:
                    return False
                if (wakes.newest(thread) or 0) > cursor:
                    return True
                left = deadline - loop.time()
                if (look or left <= 0) and await self._newest(thread) > cursor:
                    return True
                if left <= 0:
                    return False
                look = not await _set_within(woken, min(left, POLL_SECONDS))

    async def _newest(self, thread: ThreadId) -> int:
        newest: int | None = await self._database.read(
            lambda connection: connection.execute(_NEWEST, {"which": thread}).scalar_one_or_none()
        )
        if newest is None:
            raise NotFound(f"no such thread: {thread!r}")
        return newest


async def _set_within(woken: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await woken.wait()
    except TimeoutError:
        return False
