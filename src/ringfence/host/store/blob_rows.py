"""The rows of blobs, without a fence: what is counted and what is dropped. Chunks go with their blob (ON DELETE CASCADE).

Limits count what a run says a blob will have, so that nobody reserves for nothing, and at least 64 KiB for each: a run
has at most 4,096 of them and a user 16,384, which bounds what a sum over them costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import RUN_FINAL
from ringfence.host.store.columns import JsonText
from ringfence.host.store.schema import blobs, checkpoints, runs
from ringfence.host.store.transaction import Tx

_MIB = 1 << 20
LEAST_COUNTED = 64 * 1024
MAX_OF_RUN = 256 * _MIB  # wire generation 1: MAX_RUN_BLOBS
MAX_OF_USER = 1024 * _MIB  # four full runs

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_COUNTED = sa.func.coalesce(sa.func.sum(sa.case((blobs.c.size < LEAST_COUNTED, LEAST_COUNTED), else_=blobs.c.size)), 0)
_OF_RUN = sa.select(_COUNTED).where(blobs.c.run == sa.bindparam("in_run"))
_OF_USER = sa.select(_COUNTED).where(blobs.c.actor == sa.bindparam("by_actor"))
_DROP = sa.delete(blobs).where(blobs.c.run == sa.bindparam("in_run"))
_DROP_OTHERS = _DROP.where(blobs.c.digest.not_in(sa.bindparam("keep", expanding=True)))
_FINAL = (
    sa.select(runs.c.id)
    .where(
        runs.c.id.in_(sa.select(blobs.c.run).where(blobs.c.actor == sa.bindparam("by_actor"))),
        runs.c.state.in_([state.value for state in RUN_FINAL]),
    )
    .order_by(runs.c.ended_at, runs.c.id)
)
_NONE = sa.literal([], JsonText)
_FORGET = sa.delete(checkpoints).where(checkpoints.c.run == sa.bindparam("in_run"), checkpoints.c.blobs != _NONE)


def drop_blobs(tx: Tx, run: RunId, keep: Sequence[str] = ()) -> None:
    """All of the run but `keep`."""
    if keep:
        tx.connection.execute(_DROP_OTHERS, {"in_run": run, "keep": list(keep)})
    else:
        tx.connection.execute(_DROP, {"in_run": run})


def drop_final(tx: Tx, actor: str, need: int | None = None) -> None:
    """Those of the user's final runs, of the oldest first, until `need` bytes are free; all of them for None.

    A checkpoint that refers to them goes too: were such a run tried again, it would start anew and be answered from its
    journal, instead of failing over a blob that is gone.
    """
    for run in list(tx.connection.execute(_FINAL, {"by_actor": actor}).scalars()):
        if need is not None and _sum(tx, _OF_USER, by_actor=actor) + need <= MAX_OF_USER:
            return
        tx.connection.execute(_DROP, {"in_run": run})
        tx.connection.execute(_FORGET, {"in_run": run})


def make_room(tx: Tx, run: Row[Any], size: int) -> None:
    """For one more blob of the run. TooLarge; what was dropped meanwhile is then back."""
    need = max(size, LEAST_COUNTED)
    if (used := _sum(tx, _OF_RUN, in_run=run.id)) + need > MAX_OF_RUN:
        raise _too_large(f"the blobs of run {run.id}", used, need, MAX_OF_RUN)
    if _sum(tx, _OF_USER, by_actor=run.actor) + need > MAX_OF_USER:
        drop_final(tx, run.actor, need)
    if (used := _sum(tx, _OF_USER, by_actor=run.actor)) + need > MAX_OF_USER:
        raise _too_large("the blobs of all runs of the user", used, need, MAX_OF_USER)


def _sum(tx: Tx, query: sa.Select[Any], **which: str) -> int:
    return int(tx.connection.execute(query, which).scalar_one())


def _too_large(what: str, used: int, need: int, limit: int) -> TooLarge:
    return TooLarge(
        f"{what} have {used} bytes, {need} more exceed the limit of {limit}",
        remedy="drop what is no longer needed: a checkpoint that does not name it",
        size=used + need,
        limit=limit,
    )
