"""What a run made of a thread's older messages, kept for its actor: one for each (thread, actor), the newest."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.ids import RunId, ThreadId, UserId
from ringfence.host.kernel.threads import Summary
from ringfence.host.store.owned import owned_row
from ringfence.host.store.run_rows import fenced
from ringfence.host.store.schema import messages, summaries
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

_FIND = sa.select(summaries).where(
    summaries.c.thread == sa.bindparam("in_thread"), summaries.c.actor == sa.bindparam("by_actor")
)
_MESSAGE = sa.select(messages.c.id).where(
    messages.c.thread == sa.bindparam("in_thread"), messages.c.cursor == sa.bindparam("at", type_=sa.BigInteger)
)


def find_summary(connection: Connection, thread: ThreadId, actor: UserId) -> Summary | None:
    if not (storable(thread) and storable(actor)):
        return None
    found = connection.execute(_FIND, {"in_thread": thread, "by_actor": actor}).one_or_none()
    row = owned_row(found, thread=thread, actor=actor)
    return None if row is None else Summary(row.thread, row.actor, row.cursor, row.text, row.created_at)


def put_summary(tx: Tx, run: RunId, epoch: int, cursor: int, text: str) -> Summary:
    """NotFound, StaleEpoch, Conflict: see kernel.ports.Threads.set_summary."""
    row = fenced(tx, run, epoch)
    earlier = 0 < cursor < row.position
    if not (earlier and tx.connection.execute(_MESSAGE, {"in_thread": row.thread, "at": cursor}).first()):
        raise Conflict(f"{cursor} is not the cursor of a message before the turn's own, which is at {row.position}")
    kept = find_summary(tx.connection, row.thread, row.actor)
    if kept is not None and kept.cursor > cursor:
        return kept
    made = Summary(row.thread, row.actor, cursor, text, tx.now())
    values = {
        "thread": made.thread,
        "actor": made.actor,
        "cursor": cursor,
        "text": text,
        "created_at": made.created_at,
    }
    tx.connection.execute(tx.world.dialect.upsert(summaries, ["thread", "actor"]), values)
    return made
