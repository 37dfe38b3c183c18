"""How a credential and its next version come into the store. Write functions only. Must never meet a value in clear."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import Conflict, Invalid, NotFound
from ringfence.host.kernel.outward.credentials import Credential, Owner, Sealed
from ringfence.host.kernel.outward.rolls import CREDENTIAL
from ringfence.host.kernel.outward.storing import AUTHORITY, AUTHORITY_NAME, MAX_CREDENTIALS, check_credential_name
from ringfence.host.store.credential_bindings import end_outside
from ringfence.host.store.credential_rows import LIVE_CREDENTIAL, credential_of, keep_user
from ringfence.host.store.outward import credential_versions, credentials
from ringfence.host.store.roll_rows import tell
from ringfence.host.store.schema import tenants
from ringfence.host.store.transaction import Tx

_THERE = sa.select(credentials).where(credentials.c.id == sa.bindparam("which")).with_for_update()
_TENANT_KEPT = (
    sa.select(tenants.c.id)
    .where(tenants.c.id == sa.bindparam("which"), tenants.c.removed_at.is_(None))
    .with_for_update(read=True, key_share=True)
)
_CHANGE = sa.update(credentials).where(credentials.c.id == sa.bindparam("which")).returning(credentials)


def put_credential(tx: Tx, draft: Credential, sealed: Sealed) -> Credential:
    """NotFound, Conflict; see the port. NameInvalid. Invalid: `sealed` is of another credential or version than `draft`."""
    if (sealed.credential, sealed.version) != (draft.id, draft.version):
        raise Invalid("what was sealed is of another credential or version")
    if (draft.kind, draft.name) != (AUTHORITY, AUTHORITY_NAME):
        check_credential_name(draft.name)
    if draft.kind == AUTHORITY and draft.name != AUTHORITY_NAME:
        raise Invalid("a CA has a name of its own")
    _check_owner(tx, draft)
    row = tx.connection.execute(_THERE, {"which": draft.id}).one_or_none()
    made = _add(tx, draft, sealed) if row is None else _next(tx, row, draft, sealed)
    version = {
        "credential": sealed.credential,
        "version": sealed.version,
        "kek": sealed.kek,
        "wrapped_key": sealed.wrapped_key,
        "data": sealed.data,
        "created_at": tx.now(),
    }
    tx.connection.execute(sa.insert(credential_versions).values(version))
    return made


def _check_owner(tx: Tx, draft: Credential) -> None:
    if (draft.owner is Owner.TENANT) != (draft.user is None):
        raise Invalid("a credential is a user's or the tenant's", remedy="leave the user out, or name one")
    if draft.user is not None:
        if keep_user(tx, draft.user).tenant != draft.tenant:
            raise NotFound(f"no such user: {draft.user!r}")
    elif tx.connection.execute(_TENANT_KEPT, {"which": draft.tenant}).first() is None:
        raise NotFound(f"no such tenant: {draft.tenant!r}", remedy="ringfence tenant ls")


def _add(tx: Tx, draft: Credential, sealed: Sealed) -> Credential:
    if draft.version != 1:
        raise Conflict(
            f"there is no version {draft.version - 1} of {draft.name!r}", remedy="look again, then try again"
        )
    mine = credentials.c.tenant == draft.tenant
    mine = sa.and_(mine, credentials.c.user.is_(None) if draft.user is None else credentials.c.user == draft.user)
    names = list(tx.connection.execute(sa.select(credentials.c.name).where(mine, LIVE_CREDENTIAL)).scalars())
    if draft.name in names:
        raise Conflict(f"a credential {draft.name!r} exists", remedy="ringfence secret ls U")
    if len(names) >= MAX_CREDENTIALS:
        raise Conflict(
            f"{len(names)} credentials are there; the limit is {MAX_CREDENTIALS}", remedy="ringfence secret rm U NAME"
        )
    now = tx.now()
    values = {
        "id": draft.id,
        "tenant": draft.tenant,
        "owner": draft.owner.value,
        "user": draft.user,
        "name": draft.name,
        "version": 1,
        "kind": draft.kind,
        "reach": draft.reach,
        "mac": sealed.mac,
        "created_at": now,
        "updated_at": now,
    }
    return credential_of(tx.connection.execute(sa.insert(credentials).values(values).returning(credentials)).one())


def _next(tx: Tx, row: Row[Any], draft: Credential, sealed: Sealed) -> Credential:
    if row.revoked_at is not None:
        raise Conflict(f"the credential {row.name!r} is revoked", remedy="store it anew under its name")
    if (row.tenant, row.owner, row.user, row.name, row.kind) != (
        draft.tenant,
        draft.owner.value,
        draft.user,
        draft.name,
        draft.kind,
    ):
        raise Conflict(f"the credential {draft.id} is another one than {draft.name!r}")
    if draft.version != row.version + 1:
        raise Conflict(
            f"{row.name!r} has version {row.version} by now", remedy="look again, then try again", version=row.version
        )
    gone = sa.delete(credential_versions).where(credential_versions.c.credential == draft.id)
    tx.connection.execute(gone)
    values = {
        "which": draft.id,
        "version": draft.version,
        "mac": sealed.mac,
        "reach": draft.reach,
        "updated_at": tx.now(),
    }
    if draft.reach != row.reach:
        end_outside(tx, draft)
    tell(tx, CREDENTIAL + draft.id)
    return credential_of(tx.connection.execute(_CHANGE, values).one())
