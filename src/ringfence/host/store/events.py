"""Events: append-only, with a cursor for each thread that is given in the transaction, so 1, 2, 3, ... without gaps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql.dml import UpdateBase

from ringfence.host.kernel.errors import NotFound, RingfenceError
from ringfence.host.kernel.ids import RunId, ThreadId, TurnId, UserId
from ringfence.host.kernel.threads import Event, EventKind
from ringfence.host.store.database import Database
from ringfence.host.store.owned import owned
from ringfence.host.store.quick import Quick
from ringfence.host.store.schema import events, threads
from ringfence.host.store.text import JsonMade, made_json, short_json, storable
from ringfence.host.store.transaction import Alike, Tx

POLL_SECONDS = 1.0  # another process's commits may wake nobody here
MAX_CURSOR = (1 << 63) - 1  # what the column holds
_BODY_BYTES = 2 << 20  # a message of 256 KiB with each character as an escape of 6 bytes, and room beside it

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_INSERT = Quick(sa.insert(events))
_AFTER = (
    sa.select(events)
    .where(events.c.thread == sa.bindparam("in_thread"), events.c.cursor > sa.bindparam("after", type_=sa.BigInteger))
    .order_by(events.c.cursor)
    .limit(sa.bindparam("count", type_=sa.BigInteger))
)
_NEWEST = sa.select(threads.c.cursor).where(threads.c.id == sa.bindparam("which"), threads.c.removed_at.is_(None))
_TAKE = Quick(
    sa.update(threads)
    .where(threads.c.id == sa.bindparam("which"), threads.c.removed_at.is_(None))
    .values(cursor=threads.c.cursor + sa.bindparam("count", type_=sa.BigInteger))
    .returning(threads.c.cursor)
)
_COUNTS = sa.bindparam("counts", type_=sa.Text)  # JSON: {thread: how many}


def _take_each(wanted: Any) -> UpdateBase:
    """`_TAKE` for many threads. `wanted`: rows of `key` and `value`."""
    each = wanted.table_valued("key", sa.column("value", sa.BigInteger)).alias("wanted")
    query = sa.update(threads).where(threads.c.id == each.c.key, threads.c.removed_at.is_(None))
    query = query.values(cursor=threads.c.cursor + sa.cast(each.c.value, sa.BigInteger))
    return query.returning(threads.c.id, threads.c.cursor)


_TAKE_EACH = Quick(
    _take_each(sa.func.json_each(_COUNTS)), _take_each(sa.func.json_each_text(sa.cast(_COUNTS, postgresql.JSON)))
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
    return _append(tx, thread, drafts, [dict(draft.body) for draft in drafts])


def _append(
    tx: Tx, thread: ThreadId, drafts: Sequence[Draft], bodies: Sequence[dict[str, Any] | JsonMade]
) -> list[Event]:
    """`bodies`: of the drafts, as the column takes them."""
    now, first = tx.now(), _cursor(tx, thread, len(drafts))
    made = [_event(thread, first + index, draft, now) for index, draft in enumerate(drafts)]
    if made:
        rows = [_row(event, body) for event, body in zip(made, bodies, strict=True)]
        tx.world.dialect.many(tx.connection, _INSERT, rows)
    return made


def append_each(tx: Tx, items: Sequence[tuple[ThreadId, Draft, JsonMade]]) -> list[Event | RingfenceError]:
    """One event for each of several callers, or why it has none. `JsonMade`: its body."""
    now, made, rows = tx.now(), list[Event | RingfenceError](), list[dict[str, Any]]()
    cursors = _cursors(tx, Counter(thread for thread, _, _ in items))
    for thread, draft, text in items:
        cursor = cursors.get(thread)
        if cursor is None:
            made.append(_no_such(thread))
            continue
        cursors[thread] = cursor + 1
        event = _event(thread, cursor, draft, now)
        made.append(event)
        rows.append(_row(event, text))
    if rows:
        tx.world.dialect.many(tx.connection, _INSERT, rows)
    return made


def _cursor(tx: Tx, thread: ThreadId, count: int) -> int:
    """The first of the thread's next ones. NotFound."""
    try:
        return _cursors(tx, {thread: count})[thread]
    except KeyError:
        raise _no_such(thread) from None


def _cursors(tx: Tx, counts: Mapping[ThreadId, int]) -> dict[ThreadId, int]:
    """The first of each thread's next ones, in one statement for all; a thread that is not there is not in the answer."""
    wanted = {thread: count for thread, count in counts.items() if storable(thread)}
    taken: dict[ThreadId, int] = {}
    if len(wanted) == 1:
        ((thread, count),) = wanted.items()
        last: int | None = tx.world.dialect.scalar(tx.connection, _TAKE, {"which": thread, "count": count})
        taken = {} if last is None else {thread: last}
    elif wanted:
        taken = dict(tx.world.dialect.pairs(tx.connection, _TAKE_EACH, {"counts": short_json(wanted)}))
    tx.grown.update(taken)
    return {thread: last - counts[thread] + 1 for thread, last in taken.items()}


def _no_such(thread: ThreadId) -> NotFound:
    return NotFound(f"no such thread: {thread!r}")


def _event(thread: ThreadId, cursor: int, draft: Draft, now: datetime) -> Event:
    return Event(thread, cursor, draft.kind, draft.actor, draft.turn, draft.run, dict(draft.body), now)


def _row(event: Event, body: dict[str, Any] | JsonMade) -> dict[str, Any]:
    return {
        "thread": event.thread,
        "cursor": event.cursor,
        "kind": event.kind.value,
        "actor": event.actor,
        "turn": event.turn,
        "run": event.run,
        "body": body,
        "created_at": event.created_at,
    }


def _made(body: Mapping[str, Any]) -> JsonMade:
    """Invalid, TooLarge."""
    return made_json(body, "the body of an event", _BODY_BYTES)


_KINDS = {kind.value: kind for kind in EventKind}


def event_of(row: Row[Any]) -> Event:
    """One of a later release has its place in the thread and no body."""
    kind = _KINDS.get(row.kind, EventKind.UNKNOWN)
    return Event(
        thread=row.thread,
        cursor=row.cursor,
        kind=kind,
        actor=row.actor,
        turn=row.turn,
        run=row.run,
        body={} if kind is EventKind.UNKNOWN else row.body,
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
        made = _made(body)
        return await self._database.write(Alike(append_each, (thread, Draft(kind, body, actor, turn, run), made)))

    async def append_all(self, thread: ThreadId, drafts: Sequence[Draft]) -> list[Event]:
        """One after the other in one write: all of them, or none. Errors as `append`. For who has several events and no
        other write to put them into, as `ringfence bench durable`; what the kernel says comes with the rows it is about,
        and goes through the function `append` in their transaction."""
        bodies = [_made(draft.body) for draft in drafts]
        return await self._database.write(lambda tx: _append(tx, thread, drafts, bodies))

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
                in_time = await _set_within(woken, min(left, POLL_SECONDS))
                look = not in_time or wakes.newest(thread) is None

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
