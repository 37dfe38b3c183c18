"""Runs at work whose installation is gone: nobody renews their lease, and no kernel of the home's installation is heard of.

Such a run is not redriven from elsewhere (places.py). When it is to be cancelled, any kernel may end it, so that it does
not hold its lane: see run_ends.py. On SQLite there is one installation, and none of this. Must never write.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.kernels import GONE_SECONDS
from ringfence.host.kernel.runs import Abandoned, RunState
from ringfence.host.store.columns import Utc
from ringfence.host.store.places import HOME
from ringfence.host.store.run_rows import run_of
from ringfence.host.store.schema import LIVE, RUNNING, boxes, kernels, runs
from ringfence.host.store.transaction import Tx, World

_NOW, _SINCE = sa.bindparam("lease_now", type_=Utc), sa.bindparam("since", type_=Utc)
# Also of one that said bye: its boxes work on, and the next kernel of the installation takes them up.
_SEEN = (
    sa.select(sa.func.max(kernels.c.seen_at))
    .where(kernels.c.installation == boxes.c.installation)
    .correlate(boxes)
    .scalar_subquery()
)
_GONE = sa.or_(_SEEN.is_(None), _SEEN <= _SINCE)
_ELSEWHERE = sa.and_(HOME, boxes.c.installation.not_in(["", sa.bindparam("installation")]), _GONE)
_behind = runs.alias("behind")
_WAITS = sa.select(_behind.c.id).where(
    sa.text(f"behind.{LIVE}"), _behind.c.lane == runs.c.lane, _behind.c.state == RunState.QUEUED.value
)
# Built once: SQLAlchemy takes longer to build a statement than PostgreSQL to run it.
_ALL = (
    sa.select(runs, boxes.c.installation, _SEEN.label("seen_at"), _WAITS.correlate(runs).exists().label("waits"))
    .select_from(sa.join(runs, boxes, _ELSEWHERE))
    .where(sa.text(f"runs.{RUNNING}"), runs.c.lease_until <= _NOW)
    .order_by(runs.c.created_at, runs.c.id)
)
_IS_ONE = (
    sa.select(runs.c.id)
    .select_from(sa.join(runs, boxes, _ELSEWHERE))
    .where(runs.c.id == sa.bindparam("which"), runs.c.lease_until <= _NOW)
)


def abandoned(connection: Connection, world: World) -> list[Abandoned]:
    """The oldest first. Of PostgreSQL."""
    which = _which(connection, world)
    rows = connection.execute(_ALL, which)
    return [
        Abandoned(run_of(row), row.installation, _seconds(which["lease_now"], row.seen_at), row.waits) for row in rows
    ]


def _seconds(now: datetime, seen: datetime | None) -> float | None:
    return None if seen is None else (now - seen).total_seconds()


def is_abandoned(tx: Tx, run: Row[Any]) -> bool:
    """`run`: locked, so that whoever comes back adopts it before or not at all."""
    if tx.world.dialect.one_kernel or run.state != RunState.RUNNING:
        return False
    asked = {"which": run.id, **_which(tx.connection, tx.world)}
    return tx.connection.execute(_IS_ONE, asked).one_or_none() is not None


def _which(connection: Connection, world: World) -> dict[str, Any]:
    now = world.dialect.lease_now(connection, world.lease_clock)
    return {"lease_now": now, "since": now - timedelta(seconds=GONE_SECONDS), "installation": world.installation}
