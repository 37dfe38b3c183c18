"""What a lane has in it when a message comes: a live run, a run of the author's to steer, room to wait."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import LaneBusy, LaneFull
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES, MAX_WAITING, Thread
from ringfence.host.store.messages import steers_of
from ringfence.host.store.schema import LIVE, runs
from ringfence.host.store.transaction import Tx

MAX_STEERS = 100  # of one turn, and together no longer than one message: run.start carries all of them in one frame

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_IN_LANE = sa.and_(runs.c.lane == sa.bindparam("in_lane"), sa.text(LIVE))
_LIVE_RUN = sa.select(runs.c.id).where(_IN_LANE).limit(1)
_WAITING = sa.select(sa.func.count()).select_from(
    sa.select(runs.c.id).where(_IN_LANE, runs.c.state == RunState.QUEUED.value).limit(MAX_WAITING).subquery()
)
_NEAREST = sa.case({RunState.RUNNING.value: 0, RunState.PARKED.value: 1}, value=runs.c.state, else_=2)
_MINE = (
    sa.select(runs)
    .where(_IN_LANE, runs.c.actor == sa.bindparam("by_actor"), sa.not_(runs.c.cancel_requested))
    .order_by(_NEAREST, runs.c.position)
    .limit(1)
    .with_for_update()  # against an end of the same run by another kernel; see run_ends.py
)


def lane_of(thread: Thread, actor: UserId) -> str:
    """What may have one live run."""
    return f"{thread.id}/{actor}" if thread.parallel else thread.id


def check_free(tx: Tx, lane: str) -> None:
    """LaneBusy."""
    if busy := tx.connection.execute(_LIVE_RUN, {"in_lane": lane}).scalar_one_or_none():
        raise LaneBusy(
            "an earlier message is still being worked on", remedy="wait for it, or use --mode queue", run=busy
        )


def check_room(tx: Tx, lane: str) -> None:
    """LaneFull."""
    if tx.connection.execute(_WAITING, {"in_lane": lane}).scalar_one() >= MAX_WAITING:
        raise LaneFull(
            f"{MAX_WAITING} messages wait to be worked on here, the limit",
            remedy="wait for some of them, or cancel one: ringfence run ls; ringfence run cancel RUN",
            limit=MAX_WAITING,
        )


def to_steer(tx: Tx, lane: str, actor: UserId, text: str) -> Row[Any] | None:
    """The actor's own live run that the text joins. None: there is none, or its turn can be told no more."""
    row = tx.connection.execute(_MINE, {"in_lane": lane, "by_actor": actor}).one_or_none()
    if row is None:
        return None
    said = [message.text for message in steers_of(tx.connection, row.turn)]
    size = sum(len(part.encode()) for part in (*said, text))
    return row if len(said) < MAX_STEERS and size <= MAX_MESSAGE_BYTES else None
