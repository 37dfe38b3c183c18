"""kernel.outward.ports.Invocations on the database: which command has which port of which box.

Must never keep an environment or a placeholder: neither is needed to give a command its port back.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.ports import Invoker
from ringfence.host.store.columns import Utc
from ringfence.host.store.database import Database
from ringfence.host.store.outward import OPEN, invocations
from ringfence.host.store.owned import owned
from ringfence.host.store.schema import boxes
from ringfence.host.store.text import checked, storable
from ringfence.host.store.transaction import Tx

_KEY_BYTES = 1024
_BATCH = 500  # ids of one statement: SQLite takes 32,766 values, and 922 ports are the most of one box
# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it, and each command comes by here twice.
_BOX = sa.select(boxes.c.tenant, boxes.c.user).where(boxes.c.id == sa.bindparam("in_box"), boxes.c.removed_at.is_(None))
_TAKEN = sa.select(invocations.c.id).where(
    invocations.c.box == sa.bindparam("in_box"), invocations.c.port == sa.bindparam("at_port"), sa.text(OPEN)
)
_OPEN = sa.insert(invocations)
_OF_BOX = (
    sa.select(invocations)
    .where(invocations.c.box == sa.bindparam("in_box"), sa.text(OPEN))
    .order_by(invocations.c.opened_at, invocations.c.id)
)
_OLD = (
    sa.select(invocations.c.id)
    .where(invocations.c.closed_at < sa.bindparam("before", type_=Utc))
    .order_by(invocations.c.closed_at)
    .limit(sa.bindparam("count", type_=sa.BigInteger))
)


class SqlInvocations:
    """kernel.outward.ports.Invocations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, id: str, who: Invoker, port: int) -> None:
        """Also Invalid: the key is no text that can be kept, or the port none that an invocation can have."""
        checked(who.key, "the key of a command", _KEY_BYTES)
        await self._database.write(lambda tx: _open(tx, id, who, port))

    async def close(self, ids: Sequence[str]) -> None:
        """Idempotent; ids that are not there are closed."""
        which = [each for each in dict.fromkeys(ids) if storable(each)]
        if not which:
            return

        def work(tx: Tx) -> None:
            for start in range(0, len(which), _BATCH):
                close_where(tx, invocations.c.id.in_(which[start : start + _BATCH]))

        await self._database.write(work)

    async def of_box(self, box: BoxId) -> list[tuple[str, Invoker, int]]:
        """Oldest first."""
        if not storable(box):
            return []
        asked = {"in_box": box}
        rows = await self._database.read(lambda connection: owned(connection.execute(_OF_BOX, asked), box=box))
        return [(row.id, _invoker(row), row.port) for row in rows]


def _open(tx: Tx, id_: str, who: Invoker, port: int) -> None:
    box = tx.connection.execute(_BOX, {"in_box": who.box}).one_or_none() if storable(who.box) else None
    if box is None or (box.tenant, box.user) != (who.tenant, who.user):
        raise NotFound(f"no such box: {who.box!r}", remedy="ringfence box ls")
    if tx.connection.execute(_TAKEN, {"in_box": who.box, "at_port": port}).first() is not None:
        raise Conflict(f"port {port} of the box is another invocation's", remedy="take another port")
    values = {
        "id": id_,
        "tenant": who.tenant,
        "user": who.user,
        "box": who.box,
        "key": who.key,
        "run": who.run,
        "epoch": who.epoch,
        "port": port,
        "opened_at": tx.now(),
        "closed_at": None,
    }
    tx.connection.execute(_OPEN, values)


def _invoker(row: Row[Any]) -> Invoker:
    return Invoker(row.tenant, row.user, row.box, row.key, row.run, row.epoch)


# --- for the other write functions -----------------------------------------------------------------------------------


def close_where(tx: Tx, which: sa.ColumnElement[bool]) -> None:
    tx.connection.execute(sa.update(invocations).where(which, sa.text(OPEN)).values(closed_at=tx.now()))


def old_invocations(connection: Connection, before: datetime, limit: int) -> list[str]:
    """Closed before that, oldest first."""
    return list(connection.execute(_OLD, {"before": before, "count": limit}).scalars())


def drop_invocations(tx: Tx, which: Sequence[str]) -> int:
    return tx.connection.execute(sa.delete(invocations).where(invocations.c.id.in_(which))).rowcount
