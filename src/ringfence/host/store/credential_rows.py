"""Rows of credentials, their versions and bindings: read, found, ended. Write functions and statements that the others of this
room share. Must never meet a value in clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.outward.credentials import Credential, Owner, Sealed
from ringfence.host.kernel.outward.rolls import BINDINGS, CREDENTIAL, GRANTS
from ringfence.host.kernel.outward.storing import AUTHORITY
from ringfence.host.store.outward import (
    CREDENTIAL_LIVE,
    LIVE,
    credential_bindings,
    credential_grants,
    credential_renewals,
    credential_versions,
    credentials,
)
from ringfence.host.store.roll_rows import drop, strike, tell
from ringfence.host.store.schema import users
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

LIVE_CREDENTIAL = sa.text(f"credentials.{CREDENTIAL_LIVE}")
# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_BY_ID = sa.select(credentials).where(credentials.c.id == sa.bindparam("which"))
_LOCKED = _BY_ID.with_for_update()
_KEPT = _BY_ID.with_for_update(read=True)
_SEALED = (
    sa.select(credentials, *(credential_versions.c[name] for name in ("kek", "wrapped_key", "data")))
    .join(
        credential_versions,
        sa.and_(
            credential_versions.c.credential == credentials.c.id, credential_versions.c.version == credentials.c.version
        ),
    )
    .where(credentials.c.id == sa.bindparam("which"), LIVE_CREDENTIAL)
)
# Against the user's removal by another kernel, which locks the row for itself (people.py): whoever comes second sees what the
# first did. PostgreSQL; SQLite has one writer.
_USER = sa.select(users).where(users.c.id == sa.bindparam("which"), users.c.removed_at.is_(None))
_USER_KEPT = _USER.with_for_update(read=True)
_USER_ALONE = _USER.with_for_update(key_share=True)


def credential_of(row: Row[Any]) -> Credential:
    return Credential(
        id=row.id,
        tenant=row.tenant,
        owner=Owner(row.owner),
        user=row.user,
        name=row.name,
        version=row.version,
        kind=row.kind,
        created_at=row.created_at,
        updated_at=row.updated_at,
        revoked_at=row.revoked_at,
        reach=row.reach,
    )


def find_credential(connection: Connection, credential: str, *, lock: bool = False, keep: bool = False) -> Row[Any]:
    """Also a revoked one. NotFound. `lock`: nobody else changes it before our commit; `keep`: nobody revokes it."""
    query = _LOCKED if lock else _KEPT if keep else _BY_ID
    row = connection.execute(query, {"which": credential}).one_or_none() if storable(credential) else None
    if row is None:
        raise no_such(credential)
    return row


def find_sealed(connection: Connection, credential: str) -> tuple[Credential, Sealed]:
    """The newest version of a live one. NotFound."""
    row = connection.execute(_SEALED, {"which": credential}).one_or_none() if storable(credential) else None
    if row is None:
        raise no_such(credential)
    return credential_of(row), Sealed(row.id, row.version, row.kek, row.wrapped_key, row.data, row.mac)


def no_such(credential: str) -> NotFound:
    return NotFound(f"no such credential: {credential[:64]!r}", remedy="ringfence secret ls U")


def keep_user(tx: Tx, user: UserId, *, alone: bool = False) -> Row[Any]:
    """The row of a user who is there, and will be until our commit. `alone`: nobody else keeps it meanwhile. NotFound."""
    query = _USER_ALONE if alone else _USER_KEPT
    row = tx.connection.execute(query, {"which": user}).one_or_none() if storable(user) else None
    if row is None:
        raise NotFound(f"no such user: {user!r}")
    return row


def usable_by(user: UserId, tenant: str) -> sa.ColumnElement[bool]:
    """Of a query over credentials: live, and the user's own, the tenant's, or shared with the user. Never a CA."""
    granted = (
        sa.select(credential_grants.c.credential)
        .where(credential_grants.c.credential == credentials.c.id, credential_grants.c.user == user)
        .correlate(credentials)
        .exists()
    )
    return sa.and_(
        LIVE_CREDENTIAL,
        credentials.c.tenant == tenant,
        credentials.c.kind != AUTHORITY,
        sa.or_(
            credentials.c.user == user,
            credentials.c.owner == Owner.TENANT.value,
            sa.and_(credentials.c.owner == Owner.SHARED.value, granted),
        ),
    )


# --- for the other write functions -----------------------------------------------------------------------------------


def end_credentials(tx: Tx, which: Sequence[str]) -> None:
    """For good: their sealed values go, their grants and bindings end."""
    if not which:
        return
    connection, now = tx.connection, tx.now()
    gone = sa.update(credentials).where(credentials.c.id.in_(which), LIVE_CREDENTIAL)
    connection.execute(gone.values(revoked_at=now))
    for table in (credential_versions, credential_grants, credential_renewals):
        connection.execute(sa.delete(table).where(table.c.credential.in_(which)))
    end_bindings(tx, credential_bindings.c.credential.in_(which))
    for each in which:
        drop(tx, GRANTS + each)
        tell(tx, CREDENTIAL + each)


def end_bindings(tx: Tx, where: sa.ColumnElement[bool]) -> int:
    """How many ended. Their users' rolls name them no more."""
    ended = (
        sa.update(credential_bindings)
        .where(where, sa.text(LIVE))
        .returning(credential_bindings.c.id, credential_bindings.c.user)
    )
    rows = tx.connection.execute(ended, {"removed_at": tx.now()}).all()
    for user in sorted({row.user for row in rows}):
        gone = [row.id for row in rows if row.user == user]
        strike(tx, BINDINGS + user, gone, partial(_any_left, tx, user))
    return len(rows)


def _any_left(tx: Tx, user: str) -> bool:
    left = sa.select(credential_bindings.c.id).where(credential_bindings.c.user == user, sa.text(LIVE)).limit(1)
    return tx.connection.execute(left).first() is not None
