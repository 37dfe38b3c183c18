"""Where a run can be worked on: where its actor's home box is (decision 0032).

Several installations may share a PostgreSQL; a home lives on one of them and cannot be reached from another. A run belongs
to the installation of its actor's home, or to each while there is no home yet. On SQLite there is one installation, and
whatever an older row says, its boxes are here.
"""

from __future__ import annotations

import sqlalchemy as sa

from ringfence.host.kernel.boxes import BoxKind, Desired
from ringfence.host.kernel.runs import RunState
from ringfence.host.store.schema import LIVE, boxes, runs
from ringfence.host.store.transaction import Tx

HOME = sa.and_(
    boxes.c.user == runs.c.actor,
    boxes.c.kind == BoxKind.HOME.value,
    boxes.c.desired != Desired.REMOVED.value,
)
# Of a query over runs: no home is elsewhere. "" is the home of a time when there was one installation.
HERE = ~(
    sa.select(boxes.c.id)
    .where(HOME, boxes.c.installation != "", boxes.c.installation != sa.bindparam("installation"))
    .correlate(runs)
    .exists()
)
# No home is anywhere but here: nobody but this installation's kernel, of which there is one at a time, may work on it.
OURS = sa.select(boxes.c.id).where(HOME, boxes.c.installation == sa.bindparam("installation")).correlate(runs).exists()
# Built once: SQLAlchemy takes longer to build a statement than PostgreSQL to run it.
_WAITING = (
    sa.select(sa.func.coalesce(boxes.c.installation, ""))
    .select_from(sa.outerjoin(runs, boxes, HOME))
    .where(sa.text(f"runs.{LIVE}"), runs.c.state == RunState.QUEUED.value, runs.c.lane == sa.bindparam("in_lane"))
    .distinct()
)


def offer(tx: Tx, lane: str) -> None:
    """Whoever may claim what waits in the lane is told after the commit; ourselves the engine tells."""
    if not tx.world.dialect.one_kernel:
        waiting = tx.connection.execute(_WAITING, {"in_lane": lane}).scalars()
        tx.offered.update(place for place in waiting if place != tx.world.installation)
