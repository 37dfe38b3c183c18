"""kernel.life.usage.Usage on the database: what boxes used, a row for each box and day.

Amounts and gauges of one batch are written in one transaction, which knows a batch that it has seen: nothing is counted twice, and
what a process that was killed had counted and not written is at most what one interval was. Starts and pauses are counted in the
transaction that notes them in the box's row. Tokens of models are those of model_calls, and are nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import date, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.life.usage import NAMES, Amount, Batch, DayUse, Gauge, Metered
from ringfence.host.store.box_days import COUNTED, put_days, selected
from ringfence.host.store.boxes import box_of
from ringfence.host.store.database import Database
from ringfence.host.store.life import box_days, box_meters
from ringfence.host.store.owned import owned
from ringfence.host.store.schema import boxes, users
from ringfence.host.store.spending import model_calls
from ringfence.host.store.transaction import Tx

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_METERED = (
    sa.select(boxes, box_meters.c.at_ms, box_meters.c.of, box_meters.c.cpu_usec)
    .select_from(boxes.outerjoin(box_meters, box_meters.c.box == boxes.c.id))
    .where(boxes.c.removed_at.is_(None), boxes.c.uid > 0)
)
_RUNNING = _METERED.where(boxes.c.observed == "running")
_SUMS = [sa.cast(sa.func.sum(box_days.c[name]), sa.BigInteger).label(name) for name in COUNTED]
# Of both databases the first ten characters of a time as text: PostgreSQL's connections are of UTC.
_CALL_DAY = sa.func.substr(sa.cast(model_calls.c.ended_at, sa.Text), 1, 10)
_TOKENS = sa.cast(
    sa.func.sum(model_calls.c.input + model_calls.c.output + model_calls.c.cache_read + model_calls.c.cache_write),
    sa.BigInteger,
)


class SqlUsage:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def looked_at(self, *, all_of_them: bool) -> list[Metered]:
        query = _METERED if all_of_them else _RUNNING
        return await self._database.read(lambda connection: [_metered(row) for row in connection.execute(query)])

    async def gauge(self, box: BoxId) -> Gauge | None:
        query = sa.select(box_meters).where(box_meters.c.box == box)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else Gauge(row.at_ms, row.of, row.cpu_usec)

    async def add(self, batch: Batch) -> None:
        if batch.amounts or batch.gauges:
            await self._database.write(lambda tx: _add(tx, batch))

    async def days(self, tenant: TenantId, user: UserId | None, first: str, last: str, limit: int) -> list[DayUse]:
        return await self._database.read(lambda connection: _days(connection, tenant, user, first, last, limit))


def _metered(row: Row[Any]) -> Metered:
    return Metered(box_of(row), None if row.of is None else Gauge(row.at_ms, row.of, row.cpu_usec))


def _add(tx: Tx, batch: Batch) -> None:
    named = {*batch.gauges, *(box for _, box in batch.amounts)}
    owners = _owners(tx, named)
    seen = selected(tx.connection, sa.select(box_meters.c.box, box_meters.c.batch), box_meters.c.box, owners)
    meters = {row.box: row.batch for row in seen}
    if batch.id in meters.values():
        return
    put_days(tx, {key: asdict(amount) for key, amount in batch.amounts.items() if key[1] in owners}, owners)
    changed = tx.world.dialect.upsert(box_meters, ["box"])
    rows = [
        {"box": box, "at_ms": gauge.at_ms, "of": gauge.of, "cpu_usec": gauge.cpu_usec, "batch": batch.id}
        for box, gauge in batch.gauges.items()
        if box in owners
    ]
    if rows:
        tx.connection.execute(changed, rows)
    _remember(tx, batch.id, owners.keys() - batch.gauges.keys(), meters)


def _remember(tx: Tx, batch: str, others: Collection[BoxId], meters: Mapping[str, str]) -> None:
    """Boxes of the batch that were not looked at, as what went out of them was all there was to count: it is known of them too."""
    there = [box for box in others if box in meters]
    for box in there:
        tx.connection.execute(sa.update(box_meters).where(box_meters.c.box == box).values(batch=batch))
    blank = {"at_ms": 0, "of": "", "cpu_usec": 0, "batch": batch}
    if new := [{"box": box, **blank} for box in sorted(others) if box not in meters]:
        tx.connection.execute(sa.insert(box_meters), new)


def _owners(tx: Tx, named: Collection[BoxId]) -> dict[BoxId, tuple[str, str]]:
    """(tenant, user) of each box that there is or was."""
    rows = selected(tx.connection, sa.select(boxes.c.id, boxes.c.tenant, boxes.c.user), boxes.c.id, named)
    return {BoxId(row.id): (row.tenant, row.user) for row in rows}


def _days(
    connection: Connection, tenant: TenantId, user: UserId | None, first: str, last: str, limit: int
) -> list[DayUse]:
    used = (
        sa.select(box_days.c.day, box_days.c.tenant, box_days.c.user, *_SUMS)
        .where(box_days.c.tenant == tenant, box_days.c.day.between(first, last))
        .group_by(box_days.c.day, box_days.c.tenant, box_days.c.user)
        .order_by(box_days.c.day)
        .limit(limit + 1)
    )
    calls = (
        sa.select(_CALL_DAY.label("day"), model_calls.c.tenant, model_calls.c.user, _TOKENS.label("tokens"))
        .where(model_calls.c.tenant == tenant, *_between(first, last))
        .group_by(_CALL_DAY, model_calls.c.tenant, model_calls.c.user)
        .limit(limit + 1)
    )
    keys: dict[str, str] = {"tenant": tenant}
    if user is not None:
        keys["user"] = user
        used, calls = used.where(box_days.c.user == user), calls.where(model_calls.c.user == user)
    tokens = {(row.day, row.user): row.tokens for row in owned(connection.execute(calls), **keys)}
    rows = {(row.day, row.user): row for row in owned(connection.execute(used), **keys)}
    who = {whose for _, whose in [*tokens, *rows]}
    named = selected(connection, sa.select(users.c.id, users.c.name), users.c.id, who)
    names = {row.id: row.name for row in named}
    both = sorted(tokens.keys() | rows.keys(), key=lambda key: (key[0], names.get(key[1], ""), key[1]))
    return [_day_use(key, names.get(key[1], ""), rows.get(key), tokens.get(key, 0)) for key in both[: limit + 1]]


def _between(first: str, last: str) -> list[sa.ColumnElement[bool]]:
    """Of calls that ended on these days."""
    ended = model_calls.c.ended_at
    begin = datetime.fromisoformat(f"{first}T00:00:00+00:00")
    after = date.fromisoformat(last)
    if after == date.max:
        return [ended >= begin]
    return [ended >= begin, ended < datetime.fromisoformat(f"{after + timedelta(days=1)}T00:00:00+00:00")]


def _day_use(key: tuple[str, str], name: str, row: Row[Any] | None, tokens: int) -> DayUse:
    if row is None:
        return DayUse(key[0], UserId(key[1]), name, Amount(), 0, 0, tokens)
    amount = Amount(*(getattr(row, each) for each in NAMES))
    return DayUse(key[0], UserId(key[1]), name, amount, row.starts, row.pauses, tokens)
