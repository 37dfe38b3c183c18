"""Break-glass: which operator has opened which thread's text, and until when. Opening is told to the members.

It is the way in that has it open (`socket:<uid>`, `token:<id>`), so it ends with a token that is revoked, and at the
latest with its time. Must never open for longer than was asked: a wall clock that is turned back keeps nothing
open, and one that was while the server was down, to before the opening, closes it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.ids import ThreadId
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.columns import Utc
from ringfence.host.store.events import Draft, append
from ringfence.host.store.schema import glass
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

MAX_OPEN_SECONDS = 86_400.0
MAX_REASON_BYTES = 4096
MAX_VIA_BYTES = 200  # `socket:<uid>` or `token:<token id>`

_NOW = sa.bindparam("now", type_=Utc)
_OPEN = sa.select(glass.c.via).where(
    glass.c.thread == sa.bindparam("in_thread"),
    glass.c.via == sa.bindparam("who"),
    glass.c.opened_at <= _NOW,
    glass.c.closes_at > _NOW,
)
_CLOSED = sa.delete(glass).where(glass.c.closes_at <= _NOW)  # what is over is in the events and in the audit


def open_glass(tx: Tx, thread: ThreadId, via: str, reason: str, seconds: float) -> datetime:
    """NotFound."""
    now = tx.onward_now()
    until = now + timedelta(seconds=seconds)
    append(tx, thread, Draft(EventKind.BREAK_GLASS, {"by": via, "reason": reason, "until": until.isoformat()}))
    tx.connection.execute(_CLOSED, {"now": now})
    values = {"thread": thread, "via": via, "reason": reason, "opened_at": now, "closes_at": until}
    tx.connection.execute(tx.world.dialect.upsert(glass, ["thread", "via"]), values)
    return until


def is_open(connection: Connection, thread: ThreadId, via: str, now: datetime) -> bool:
    if not (storable(thread) and storable(via)):
        return False
    return connection.execute(_OPEN, {"in_thread": thread, "who": via, "now": now}).first() is not None
