"""Rows of box_days: added to, made, taken away. For usage.py, and for who notes a start or a pause in the same transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.usage import NAMES
from ringfence.host.store.life import box_days
from ringfence.host.store.transaction import Tx

COUNTED = (*NAMES, "starts", "pauses")
_MANY = 500  # ids in one question: a database takes some thousands
_MORE = (
    sa.update(box_days)
    .where(box_days.c.day == sa.bindparam("on_day"), box_days.c.box == sa.bindparam("of_box"))
    .values({name: box_days.c[name] + sa.bindparam(f"more_{name}", type_=sa.BigInteger) for name in COUNTED})
)
_OLD = (
    sa.select(box_days.c.day, box_days.c.box)
    .where(box_days.c.day < sa.bindparam("before"))
    .order_by(box_days.c.day, box_days.c.box)
    .limit(sa.bindparam("count", type_=sa.BigInteger))
)


def put_days(
    tx: Tx, amounts: Mapping[tuple[str, BoxId], Mapping[str, int]], owners: Mapping[BoxId, tuple[str, str]]
) -> None:
    """Adds to the rows that are there, and makes the others. Only this kernel writes those of its boxes."""
    there: set[tuple[str, str]] = set()
    for day in {day for day, _ in amounts}:
        query = sa.select(box_days.c.box).where(box_days.c.day == day)
        there |= {(day, row.box) for row in selected(tx.connection, query, box_days.c.box, owners)}
    nothing = dict.fromkeys(COUNTED, 0)
    more, new = [], []
    for (day, box), amount in sorted(amounts.items()):
        if (day, box) in there:
            more.append({"on_day": day, "of_box": box} | {f"more_{k}": v for k, v in {**nothing, **amount}.items()})
        else:
            tenant, user = owners[box]
            new.append({"day": day, "box": box, "tenant": tenant, "user": user, **nothing, **amount})
    if more:
        tx.connection.execute(_MORE, more)
    if new:
        tx.connection.execute(sa.insert(box_days), new)


def selected(
    connection: Connection, query: sa.Select[Any], column: sa.Column[str], among: Iterable[str]
) -> list[Row[Any]]:
    asked = sorted(among)
    pages = (asked[at : at + _MANY] for at in range(0, len(asked), _MANY))
    return [row for page in pages for row in connection.execute(query.where(column.in_(page)))]


def count(tx: Tx, row: Row[Any], what: Literal["starts", "pauses"]) -> None:
    """One more of the box, whose row of `boxes` it is."""
    put_days(tx, {(tx.now().date().isoformat(), row.id): {what: 1}}, {row.id: (row.tenant, row.user)})


def old_days(connection: Connection, before: datetime, limit: int) -> list[tuple[str, str]]:
    """(day, box) of days before that one, oldest first."""
    asked = {"before": before.date().isoformat(), "count": limit}
    return [(row.day, row.box) for row in connection.execute(_OLD, asked)]


def drop_days(tx: Tx, which: Collection[tuple[str, str]]) -> int:
    gone = sa.delete(box_days).where(box_days.c.day == sa.bindparam("on_day"), box_days.c.box == sa.bindparam("of_box"))
    tx.connection.execute(gone, [{"on_day": day, "of_box": box} for day, box in which])
    return len(which)
