"""kernel.outward.renewals.Renewals on the database: whose turn it is to renew a credential, and how the last try ended.

A row is about one version: what is there of an older one says nothing. Times are the lease clock's. Must never meet a token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.outward.renewals import Renewal, Turn
from ringfence.host.store.credential_rows import find_credential, no_such
from ringfence.host.store.database import Database
from ringfence.host.store.outward import credential_renewals as table
from ringfence.host.store.outward import credentials
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

_BATCH = 500
_OF = sa.select(table).where(table.c.credential == sa.bindparam("which"))
_GONE = sa.delete(table).where(table.c.credential == sa.bindparam("which"))


class SqlRenewals:
    """kernel.outward.renewals.Renewals."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, credential: str, version: int, holder: str, seconds: float) -> Renewal:
        return await self._database.write(lambda tx: _take(tx, credential, version, holder, timedelta(seconds=seconds)))

    async def failed(
        self, credential: str, version: int, holder: str, why: str, wait: float | None, *, cut: bool
    ) -> None:
        def work(tx: Tx) -> None:
            row = _locked(tx, credential)
            if row is None or row.holder != holder:
                return
            again = None if wait is None else tx.lease_now() + timedelta(seconds=wait)
            values = {"version": version, "holder": "", "until": None, "failures": row.failures + 1}
            change = sa.update(table).where(table.c.credential == credential)
            tx.connection.execute(change.values(**values, again_at=again, why=why, cut=int(cut or row.cut)))

        await self._database.write(work)

    async def standing(self, credentials: Collection[str]) -> Mapping[str, Renewal]:
        return await self._database.read(lambda connection: _standing(connection, list(credentials)))


def _take(tx: Tx, credential: str, version: int, holder: str, life: timedelta) -> Renewal:
    there = find_credential(tx.connection, credential, lock=True)  # first: what follows is one kernel's at a time
    if there.revoked_at is not None:
        raise no_such(credential)
    if there.version != version:
        return Renewal(credential, there.version, Turn.OVERTAKEN)
    now, row = tx.lease_now(), _locked(tx, credential)
    if row is not None and row.version == version:
        turn = _turn(row, now)
        if turn is not Turn.MINE:
            return _renewal(row, turn)
        before = {"failures": row.failures, "why": row.why, "cut": int(row.cut or bool(row.holder))}
    else:
        before = {"failures": 0, "why": "", "cut": 0}
    tx.connection.execute(_GONE, {"which": credential})
    values = {"credential": credential, "version": version, "holder": holder, "until": now + life, **before}
    tx.connection.execute(sa.insert(table).values(values))
    return Renewal(
        credential, version, Turn.MINE, str(before["why"]), None, int(before["failures"]), cut=bool(before["cut"])
    )


def _turn(row: Row[Any], now: datetime) -> Turn:
    if row.holder:
        return (
            Turn.BUSY if row.until > now else Turn.MINE
        )  # who held it said nothing and was killed, or has no database
    if row.failures and row.again_at is None:
        return Turn.REFUSED
    return Turn.LATER if row.again_at is not None and row.again_at > now else Turn.MINE


def _locked(tx: Tx, credential: str) -> Row[Any] | None:
    return tx.connection.execute(_OF.with_for_update(), {"which": credential}).one_or_none()


def _renewal(row: Row[Any], turn: Turn) -> Renewal:
    return Renewal(row.credential, row.version, turn, row.why, row.again_at, row.failures, cut=bool(row.cut))


def _standing(connection: Connection, which: list[str]) -> Mapping[str, Renewal]:
    found: dict[str, Renewal] = {}
    which = [each for each in which if storable(each)]
    for start in range(0, len(which), _BATCH):
        query = (
            sa.select(table)
            .join(
                credentials, sa.and_(credentials.c.id == table.c.credential, credentials.c.version == table.c.version)
            )
            .where(table.c.credential.in_(which[start : start + _BATCH]))
        )
        for row in connection.execute(query):
            turn = Turn.BUSY if row.holder else Turn.LATER if row.again_at is not None else Turn.REFUSED
            found[row.credential] = _renewal(row, turn)
    return found
