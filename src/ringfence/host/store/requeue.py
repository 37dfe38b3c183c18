"""How runs that lost their executors come back into the queue, many in one call: a server that finds the runs of its former
self has hundreds. A write function only; runs.py has the door.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ringfence.host.kernel.errors import Conflict, RingfenceError
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.store.park import worked_by
from ringfence.host.store.run_rows import check_fence, locked_runs, present, run_of
from ringfence.host.store.schema import runs, turns
from ringfence.host.store.transaction import Tx

_BACKOFF_SECONDS = 0.5
MAX_BACKOFF = timedelta(minutes=1)  # three attempts never wait longer than 2 ** 3 * 0.5 = 4 s

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_WAIT = (
    sa.update(runs)
    .where(runs.c.id == sa.bindparam("which"))
    .values(
        state=RunState.QUEUED.value,
        reason=sa.bindparam("why"),
        worker=None,
        lease_until=None,
        not_before=sa.bindparam("due", type_=runs.c.not_before.type),
        token_hash="",
        worked=sa.bindparam("seconds"),
        other_tree=False,  # the redrive table has looked
    )
)
_TURN_WAITS = sa.update(turns).where(turns.c.id == sa.bindparam("which")).values(state=RunState.QUEUED.value)


def requeue_each(tx: Tx, items: Sequence[tuple[RunId, int, str]]) -> list[Run | RingfenceError]:
    """(run, the epoch that is acted under, why) of each of several callers. NotFound, StaleEpoch. Conflict: one run twice,
    so that each is tried by itself."""
    which = [run for run, _, _ in items]
    if len(set(which)) < len(which):
        raise Conflict("the same run twice in one call")
    rows, now = locked_runs(tx, which), tx.lease_now()
    refused: dict[RunId, RingfenceError] = {}
    waits: list[dict[str, Any]] = []
    for run, epoch, why in items:
        try:
            row = check_fence(present(rows.get(run), run), epoch)
        except RingfenceError as error:
            refused[run] = error
        else:
            waits.append(
                {"which": run, "why": why, "due": now + _back_off(row.attempts), "seconds": worked_by(row, now)}
            )
    if waits:
        tx.connection.execute(_WAIT, waits)
        tx.connection.execute(_TURN_WAITS, [{"which": rows[one["which"]].turn} for one in waits])
    made = locked_runs(tx, [one["which"] for one in waits]) if waits else {}
    return [refused[run] if run in refused else run_of(made[run]) for run in which]


def _back_off(attempts: int) -> timedelta:
    return min(timedelta(seconds=2 ** min(attempts, 16) * _BACKOFF_SECONDS), MAX_BACKOFF)
