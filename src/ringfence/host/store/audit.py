"""Who did what: append-only, each row chained to the one before it by its hash.

`hash` = SHA-256 of the previous row's hash (64 zeroes before the first) followed by the canonical JSON of
{"seq", "at", "actor", "action", "subject", "details"}. A row that was changed, removed or put in breaks the chain;
that the newest rows were cut off shows against a head that was kept elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.canonical import canonical_json
from ringfence.host.kernel.people import Actor
from ringfence.host.store.database import Database
from ringfence.host.store.schema import audit, audit_head
from ringfence.host.store.text import checked_json, cleaned
from ringfence.host.store.transaction import Tx

GENESIS = "0" * 64
_PAGE = 1000


def actor_json(actor: Actor | None) -> dict[str, Any] | None:
    """What is kept of an actor."""
    if actor is None:
        return None
    user = actor.user
    return {
        "user": user.id if user else None,
        "name": user.name if user else None,
        "tenant": user.tenant_name if user else None,
        "operator": actor.operator,
        "via": actor.via,
        "impersonated": actor.impersonated,
    }


def chained(previous: str, fields: Mapping[str, Any], at: datetime) -> str:
    """The hash of a row, 64 hex digits."""
    row = {**fields, "at": at.isoformat(timespec="microseconds")}
    return hashlib.sha256(previous.encode() + canonical_json(row)).hexdigest()


class SqlAudit:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, actor: Actor | None, action: str, subject: str, details: Mapping[str, Any]) -> None:
        """Durable when it returns. Invalid, TooLarge: details that are no JSON, or more than 256 KiB of it."""
        fields = {
            "actor": actor_json(actor),
            "action": cleaned(action),
            "subject": cleaned(subject),
            "details": checked_json(details, "the details of an audit record"),
        }
        await self._database.write(lambda tx: _record(tx, fields))

    async def last(self, limit: int) -> list[dict[str, Any]]:
        """The newest `limit`, oldest first: seq, at (ISO), actor, action, subject, details, previous, hash."""
        query = sa.select(audit).order_by(audit.c.seq.desc()).limit(max(limit, 0))
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [_json_of(row) for row in reversed(rows)]

    async def broken_at(self) -> int | None:
        """The number of the first row that does not follow from the one before it; None when the chain holds."""
        return await self._database.read(_broken_at)


def _record(tx: Tx, fields: dict[str, Any]) -> None:
    kept = sa.select(audit_head).where(audit_head.c.id == 1).with_for_update()
    head = tx.connection.execute(kept).one_or_none()
    seq, previous = (head.seq + 1, head.hash) if head is not None else (1, GENESIS)
    at = tx.now()
    mine = chained(previous, {"seq": seq, **fields}, at)
    row = {**fields, "seq": seq, "at": at, "previous": previous, "hash": mine}
    tx.connection.execute(sa.insert(audit).values(row))
    tx.connection.execute(tx.world.dialect.upsert(audit_head, ["id"]), {"id": 1, "seq": seq, "hash": mine})


def _broken_at(connection: Connection) -> int | None:
    seq, previous = 0, GENESIS
    while True:
        page = sa.select(audit).where(audit.c.seq > seq).order_by(audit.c.seq).limit(_PAGE)
        rows = connection.execute(page).all()
        for row in rows:
            if row.seq != seq + 1 or row.previous != previous or row.hash != _hash_of(row):
                return seq + 1
            seq, previous = row.seq, row.hash
        if len(rows) < _PAGE:
            break
    head = connection.execute(sa.select(audit_head)).one_or_none()
    whole = seq == 0 if head is None else (head.seq, head.hash) == (seq, previous)
    return None if whole else seq + 1


def _hash_of(row: Row[Any]) -> str:
    fields = {
        "seq": row.seq,
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "details": row.details,
    }
    return chained(row.previous, fields, row.at)


def _json_of(row: Row[Any]) -> dict[str, Any]:
    names = ("seq", "actor", "action", "subject", "details", "previous", "hash")
    return {"at": row.at.isoformat(), **{name: getattr(row, name) for name in names}}
