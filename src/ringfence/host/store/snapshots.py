"""kernel.life.copies.Snapshots on the database: a row for each copy of a tree, from before its file is begun until it is gone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.ids import BoxId, UserId
from ringfence.host.kernel.life.copies import MAX_ASKED, Copied, CopyKind, Kept, Snapshot
from ringfence.host.store.box_days import selected
from ringfence.host.store.database import Database
from ringfence.host.store.life import snapshots
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

_KEPT = sa.select(snapshots).where(snapshots.c.removed_at.is_(None))
_WHOLE = _KEPT.where(snapshots.c.state == "whole")
_OLDEST_FIRST = (snapshots.c.created_at, snapshots.c.id)


class SqlSnapshots:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, copy: str, box: Box, kind: CopyKind, name: str) -> Snapshot:
        return await self._database.write(lambda tx: _begin(tx, copy, box, kind, name))

    async def whole(self, copy: str, copied: Copied, kept: Kept) -> Snapshot:
        return await self._database.write(lambda tx: _whole(tx, copy, copied, kept))

    async def get(self, copy: str) -> Snapshot:
        return await self._database.read(lambda connection: _snapshot(_row(connection, copy)))

    async def find(self, user: UserId, wanted: str) -> Snapshot:
        if not storable(wanted):
            raise _none(wanted)
        named = sa.or_(snapshots.c.id == wanted, snapshots.c.name == wanted)
        query = _WHOLE.where(snapshots.c.user == user, snapshots.c.kind != CopyKind.ARCHIVE.value, named)
        rows = await self._all(query, user=user)
        if not rows or not wanted:
            raise _none(wanted)
        return next((row for row in rows if row.id == wanted), rows[0])

    async def of(self, user: UserId) -> list[Snapshot]:
        query = _WHOLE.where(snapshots.c.user == user, snapshots.c.kind != CopyKind.ARCHIVE.value)
        return await self._all(query, user=user)

    async def archive(self, box: BoxId) -> Snapshot | None:
        query = _WHOLE.where(snapshots.c.box == box, snapshots.c.kind == CopyKind.ARCHIVE.value)
        return next(iter(await self._all(query, box=box)), None)

    async def here(self) -> list[Snapshot]:
        installation = self._database.world.installation
        return await self._all(_KEPT.where(snapshots.c.installation == installation), installation=installation)

    async def removed(self, copies: Collection[str]) -> set[str]:
        installation = self._database.world.installation
        gone = sa.select(snapshots.c.id).where(
            snapshots.c.removed_at.is_not(None), snapshots.c.installation == installation
        )
        found = await self._database.read(lambda c: selected(c, gone, snapshots.c.id, copies))
        return {row.id for row in found}

    async def remove(self, copy: str) -> None:
        await self._database.write(lambda tx: _remove(tx, copy))

    async def _all(self, query: sa.Select[Any], **keys: str) -> list[Snapshot]:
        ordered = query.order_by(*_OLDEST_FIRST)
        return await self._database.read(lambda c: [_snapshot(row) for row in owned(c.execute(ordered), **keys)])


def _begin(tx: Tx, copy: str, box: Box, kind: CopyKind, name: str) -> Snapshot:
    mine = tx.connection.execute(_KEPT.where(snapshots.c.user == box.user, snapshots.c.kind == kind.value)).all()
    if kind is CopyKind.ASKED and len(mine) >= MAX_ASKED:
        raise Conflict(
            f"{len(mine)} copies of this user's box are kept, the most there may be is {MAX_ASKED}",
            remedy="remove one: ringfence box snapshots U, ringfence box snapshot-rm U S",
        )
    if name and tx.connection.execute(_KEPT.where(snapshots.c.user == box.user, snapshots.c.name == name)).first():
        raise Conflict(f"there is a copy of that name: {name!r}", remedy="take another name, or remove it")
    values = {
        "id": copy,
        "tenant": box.tenant,
        "user": box.user,
        "box": box.id,
        "name": name,
        "kind": kind.value,
        "state": "making",
        "image": box.image,
        "installation": tx.world.installation,
        "entries": 0,
        "bytes": 0,
        "stored": 0,
        "digest": "",
        "created_at": tx.now(),
    }
    return _snapshot(tx.connection.execute(sa.insert(snapshots).values(**values).returning(snapshots)).one())


def _whole(tx: Tx, copy: str, copied: Copied, kept: Kept) -> Snapshot:
    _row(tx.connection, copy)
    values = {"entries": copied.entries, "bytes": copied.bytes, "stored": kept.stored, "digest": kept.digest}
    changed = sa.update(snapshots).where(snapshots.c.id == copy).values(state="whole", **values).returning(snapshots)
    return _snapshot(tx.connection.execute(changed).one())


def _remove(tx: Tx, copy: str) -> None:
    gone = sa.update(snapshots).where(snapshots.c.id == copy, snapshots.c.removed_at.is_(None))
    tx.connection.execute(gone.values(removed_at=tx.now()))


def _row(connection: Connection, copy: str) -> Row[Any]:
    query = _KEPT.where(snapshots.c.id == copy)
    row = owned_row(connection.execute(query).one_or_none(), id=copy) if storable(copy) else None
    if row is None:
        raise _none(copy)
    return row


def _none(wanted: str) -> NotFound:
    return NotFound(f"no such copy: {wanted[:80]!r}", remedy="ringfence box snapshots U")


def _snapshot(row: Row[Any]) -> Snapshot:
    return Snapshot(
        id=row.id,
        tenant=row.tenant,
        user=row.user,
        box=row.box,
        name=row.name,
        kind=CopyKind(row.kind),
        whole=row.state == "whole",
        image=row.image,
        installation=row.installation,
        entries=row.entries,
        bytes=row.bytes,
        stored=row.stored,
        digest=row.digest,
        created_at=row.created_at,
    )
