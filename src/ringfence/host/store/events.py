"""Events: append-only, with a cursor for each thread that is given in the transaction, so 1, 2, 3, ... without gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.ids import RunId, ThreadId, TurnId, UserId
from ringfence.host.kernel.threads import Event, EventKind
from ringfence.host.store.database import Database
from ringfence.host.store.schema import events, threads
from ringfence.host.store.text import checked_json, storable
from ringfence.host.store.transaction import Tx

POLL_SECONDS = 1.0  # another process's commits wake nobody here
MAX_CURSOR = (1 << 63) - 1  # what the column holds
_BODY_BYTES = 2 << 20  # a message of 256 KiB with each character as an escape of 6 bytes, and room beside it

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_INSERT = sa.insert(events)
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
    tx.grown.add(thread)
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


class SqlEvents:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def after(self, thread: ThreadId, cursor: int, limit: int) -> list[Event]:
        """Nothing for a thread that is not there."""
        query = sa.select(events).where(events.c.thread == thread, events.c.cursor > min(cursor, MAX_CURSOR))
        query = query.order_by(events.c.cursor).limit(max(limit, 0))
        return await self._database.read(lambda connection: [event_of(row) for row in connection.execute(query)])

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
        """NotFound. False also when the store is being closed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with self._database.wakes.watch(thread) as woken:
            while True:
                woken.clear()
                if self._database.wakes.closed:
                    return False
                if await self._newest(thread) > cursor:
                    return True
                left = deadline - loop.time()
                if left <= 0:
                    return False
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), min(left, POLL_SECONDS))

    async def _newest(self, thread: ThreadId) -> int:
        query = sa.select(threads.c.cursor).where(threads.c.id == thread, threads.c.removed_at.is_(None))
        newest: int | None = await self._database.read(
            lambda connection: connection.execute(query).scalar_one_or_none()
        )
        if newest is None:
            raise NotFound(f"no such thread: {thread!r}")
        return newest
