"""Another tree in the place of a box's: reset, or restored from an older copy. Write functions only.

What was recorded of a run belongs to the tree that it worked on. So each run of the box's user that has begun and can
still go on is marked (`other_tree`), also one that waits, or has failed and may be tried again by hand. A marked run is
never started: whoever would claim it leaves it to the redrive table instead, and it goes on only if nothing was
recorded after its checkpoint. Its requeue takes the mark away. A question of before is closed: what is asked refers to
a tree that is gone. Must never touch a run that has not begun.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.kernels import RESTORED
from ringfence.host.kernel.runs import RunState
from ringfence.host.store.gates import close_gates
from ringfence.host.store.places import offer
from ringfence.host.store.run_rows import change_run, change_turn
from ringfence.host.store.schema import LIVE, runs
from ringfence.host.store.transaction import Tx

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)  # a lease that is over by any clock
LOST: dict[str, Any] = {"worker": RESTORED, "lease_until": LONG_AGO, "not_before": None, "token_hash": ""}
# What is marked already is not written again: a user may have thousands of runs that failed.
MARK = sa.update(runs).values(other_tree=True)
MARK = MARK.where(
    runs.c.started_at.is_not(None),
    runs.c.state.not_in([RunState.COMPLETED.value, RunState.CANCELLED.value]),
    sa.not_(runs.c.other_tree),
)
_MARK = MARK.where(runs.c.actor == sa.bindparam("of_user"))
_BEGUN = sa.select(runs).where(sa.text(LIVE), runs.c.actor == sa.bindparam("of_user"), runs.c.started_at.is_not(None))
_BEGUN = _BEGUN.order_by(runs.c.id).with_for_update()


def take_up(tx: Tx, user: UserId) -> int:
    """How many live runs are left to the table, now or when their lane comes to them."""
    begun = tx.connection.execute(_BEGUN, {"of_user": user}).all()
    tx.connection.execute(_MARK, {"of_user": user})
    for row in begun:
        close_gates(tx, row, "the tree of the box is another one")
        if row.state == RunState.RUNNING.value:
            leave_to_table(tx, row)
        else:
            change_run(tx, row.id, state=RunState.QUEUED.value, reason="", not_before=None)
            change_turn(tx, row, state=RunState.QUEUED.value, reason="")
            offer(tx, row.lane)
    return len(begun)


def leave_to_table(tx: Tx, row: Row[Any]) -> None:
    """Taken from whoever has it; the next sweep finds a lease that is over. `row`: of a marked run, locked; it is at
    work, or could be claimed now."""
    change_run(tx, row.id, state=RunState.RUNNING.value, reason="", epoch=row.epoch + 1, **LOST)
    change_turn(tx, row, state=RunState.RUNNING.value, reason="")
