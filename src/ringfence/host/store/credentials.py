"""kernel.outward.ports.Credentials on the database: what is known of secrets, and what the vault made of their values.

Must never meet a value in clear, nor decide who may do what: it keeps what the engine has authorised.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.credentials import Binding, Credential, Owner, Sealed
from ringfence.host.kernel.outward.rolls import BINDINGS, GRANTS, Roll
from ringfence.host.kernel.outward.storing import AUTHORITY, AUTHORITY_NAME
from ringfence.host.store import credential_bindings as bound
from ringfence.host.store.credential_put import put_credential
from ringfence.host.store.credential_rows import (
    LIVE_CREDENTIAL,
    credential_of,
    end_bindings,
    end_credentials,
    find_credential,
    find_sealed,
    keep_user,
    no_such,
    usable_by,
)
from ringfence.host.store.database import Database
from ringfence.host.store.outward import credential_bindings, credential_grants, credential_versions, credentials
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.people import find_user_by_id
from ringfence.host.store.roll_rows import enter, rolls_of, strike
from ringfence.host.store.rolls import Judged, SqlRolls, binding_entry
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

_RANK = {Owner.USER: 0, Owner.TENANT: 2, Owner.SHARED: 3}  # own and shared by oneself first
_OWN = 1
_CA = credentials.c.kind == AUTHORITY
_VERSIONS = (
    sa.select(  # without the value, which neither counting nor wrapping needs: it has 64 KiB at most
        *(credential_versions.c[each] for each in ("credential", "version", "kek", "wrapped_key")), credentials.c.mac
    )
    .join(credentials, credentials.c.id == credential_versions.c.credential)
    .where(
        credential_versions.c.kek != sa.bindparam("present"),
        sa.or_(
            credential_versions.c.credential > sa.bindparam("behind"),
            sa.and_(
                credential_versions.c.credential == sa.bindparam("behind"),
                credential_versions.c.version > sa.bindparam("behind_version"),
            ),
        ),
    )
    .order_by(credential_versions.c.credential, credential_versions.c.version)
    .limit(sa.bindparam("count"))
)


class SqlCredentials:
    """kernel.outward.ports.Credentials."""

    def __init__(self, database: Database, rolls: SqlRolls) -> None:
        self._database, self._rolls = database, rolls

    async def put(self, draft: Credential, sealed: Sealed) -> Credential:
        return await self._database.write(lambda tx: put_credential(tx, draft, sealed))

    async def get(self, credential: str) -> Credential:
        return await self._database.read(lambda connection: credential_of(find_credential(connection, credential)))

    async def named(self, tenant: TenantId, owner: Owner, user: UserId | None, name: str) -> Credential:
        return await self._named(tenant, user, name, credentials.c.owner == owner.value, ~_CA)

    async def authority(self, tenant: TenantId, user: UserId) -> Credential:
        return await self._named(tenant, user, AUTHORITY_NAME, _CA)

    async def _named(
        self, tenant: TenantId, user: UserId | None, name: str, *which: sa.ColumnElement[bool]
    ) -> Credential:
        query = sa.select(credentials).where(
            LIVE_CREDENTIAL,
            credentials.c.tenant == tenant,
            credentials.c.name == name,
            credentials.c.user.is_(None) if user is None else credentials.c.user == user,
            *which,
        )

        def question(connection: Connection) -> Credential:
            there = all(storable(each) for each in (tenant, user or "", name))
            row = owned_row(connection.execute(query).one_or_none(), tenant=tenant, name=name) if there else None
            if row is None:
                raise no_such(name)
            return credential_of(row)

        return await self._database.read(question)

    async def visible(self, user: UserId) -> list[Credential]:
        def question(connection: Connection) -> tuple[list[Credential], list[Roll]]:
            who = find_user_by_id(connection, user)
            query = sa.select(credentials).where(usable_by(user, who.tenant))
            found = [credential_of(row) for row in owned(connection.execute(query), tenant=who.tenant)]
            return found, rolls_of(connection, [GRANTS + each.id for each in found if _anothers(each, user)])

        try:
            found, said = await self._rolls.judged(question)
        except Unavailable:  # no grant can be judged, and no value opened: shown is what is not another's
            found, said = (await self._database.read(question))[0], {}
        seen = [each for each in found if not _anothers(each, user) or self._granted(GRANTS + each.id, user, said)]
        return sorted(seen, key=lambda each: (_rank(each, user), each.name, each.id))

    def _granted(self, of: str, user: UserId, said: Judged) -> bool:
        return of in said and user in self._rolls.compared(of, {user: ""}, said, whole=False).counts

    async def ended(self, tenant: TenantId, user: UserId | None, name: str = "") -> list[Credential]:
        mine = sa.and_(
            credentials.c.revoked_at.is_not(None),
            credentials.c.tenant == tenant,
            credentials.c.user.is_(None) if user is None else credentials.c.user == user,
        )
        named = sa.and_(credentials.c.name == name, ~_CA) if name else sa.true()
        query = sa.select(credentials).where(mine, named).order_by(credentials.c.revoked_at.desc(), credentials.c.id)

        def question(connection: Connection) -> list[Credential]:
            there = all(storable(each) for each in (tenant, user or "", name))
            return [credential_of(row) for row in owned(connection.execute(query), tenant=tenant)] if there else []

        return await self._database.read(question)

    async def all(self, tenant: TenantId) -> list[Credential]:
        query = (
            sa.select(credentials)
            .where(LIVE_CREDENTIAL, credentials.c.tenant == tenant, credentials.c.kind != AUTHORITY)
            .order_by(credentials.c.name, credentials.c.id)
        )
        return await self._database.read(
            lambda connection: [credential_of(row) for row in owned(connection.execute(query), tenant=tenant)]
        )

    async def opening(self, credential: str) -> tuple[Credential, Sealed]:
        return await self._database.read(lambda connection: find_sealed(connection, credential))

    async def revoke(self, credential: str) -> None:
        def work(tx: Tx) -> None:
            find_credential(tx.connection, credential, lock=True)
            end_credentials(tx, [credential])

        await self._database.write(work)

    # --- who may use it ----------------------------------------------------------------------------------------------

    async def grant(self, credential: str, user: UserId, *, granted: bool) -> None:
        await self._rolls.ready(GRANTS + credential, BINDINGS + user)
        await self._database.write(lambda tx: _grant(tx, credential, user, granted))

    async def grants(self, credential: str) -> list[UserId]:
        query = sa.select(credential_grants.c.user).where(credential_grants.c.credential == credential)

        def question(connection: Connection) -> list[UserId]:
            find_credential(connection, credential)
            return [UserId(user) for user in sorted(connection.execute(query).scalars())]

        return await self._database.read(question)

    async def bind(self, user: UserId, binding: Binding) -> Binding:
        await self._rolls.ready(BINDINGS + user, GRANTS + binding.credential)
        return await self._database.write(lambda tx: bound.bind(tx, user, binding))

    async def unbind(self, user: UserId, binding: str) -> None:
        def work(tx: Tx) -> None:
            mine = sa.and_(credential_bindings.c.id == binding, credential_bindings.c.user == user)
            if not storable(binding + user) or not end_bindings(tx, mine):
                raise NotFound(f"no such binding: {binding[:64]!r}", remedy="ringfence secret ls U")

        await self._rolls.ready(BINDINGS + user)
        await self._database.write(work)

    async def bindings(self, user: UserId, *, shown: bool = False) -> list[Binding]:
        def question(connection: Connection) -> tuple[list[bound.Bound], list[Roll]]:
            return bound.bound_of(connection, user)

        try:
            found, said = await self._rolls.judged(question)
        except Unavailable:
            found = (await self._database.read(question))[0] if shown else []
            return [bound.binding_of(each.row) for each in found]
        counts = self._rolls.compared(BINDINGS + user, dict(binding_entry(each.row) for each in found), said).counts
        return [
            bound.binding_of(each.row)
            for each in found
            if shown or (each.row.id in counts and (not each.grant or self._granted(each.grant, user, said)))
        ]

    async def loosely_bound(self, users: Collection[UserId]) -> set[UserId]:
        found = await self._database.read(bound.loose)
        return found & set(users)

    async def usable(self, user: UserId, credential: str, binding: str) -> bool:
        return await self._database.read(lambda connection: bound.usable(connection, user, credential, binding))

    async def bound_by(self, credential: str) -> list[UserId]:
        return await self._database.read(lambda connection: bound.bound_by(connection, credential))

    # --- what rotation asks ------------------------------------------------------------------------------------------

    async def wrapped_otherwise(self, kek: str, after: tuple[str, int], limit: int) -> list[Sealed]:
        asked: dict[str, Any] = {"present": kek, "behind": after[0], "behind_version": after[1], "count": limit}
        rows = await self._database.read(lambda connection: connection.execute(_VERSIONS, asked).all())
        return [Sealed(row.credential, row.version, row.kek, row.wrapped_key, b"", row.mac) for row in rows]

    async def rewrap(self, sealed: Sealed, before: str) -> bool:
        table = credential_versions.c
        exchange = (
            sa.update(credential_versions)
            .where(table.credential == sealed.credential, table.version == sealed.version, table.kek == before)
            .values(kek=sealed.kek, wrapped_key=sealed.wrapped_key)
        )
        return await self._database.write(lambda tx: tx.connection.execute(exchange).rowcount == 1)


def _anothers(credential: Credential, user: UserId) -> bool:
    """Shared, and not by the user: a grant lets the user have it."""
    return credential.owner is Owner.SHARED and credential.user != user


def _rank(credential: Credential, user: UserId) -> int:
    return _OWN if credential.user == user and credential.owner is Owner.SHARED else _RANK[credential.owner]


def _grant(tx: Tx, credential: str, user: UserId, granted: bool) -> None:
    # The user before the credential, as in `bind`; alone, or two of one name could be granted beside each other.
    reader = keep_user(tx, user, alone=True) if granted else None
    row = find_credential(tx.connection, credential, lock=True)
    if row.revoked_at is not None:
        raise no_such(credential)
    if row.owner != Owner.SHARED.value:
        raise Refused(f"{row.name!r} is not one that is shared", remedy="store it again with --shared")
    there = sa.and_(credential_grants.c.credential == credential, credential_grants.c.user == user)
    granted_to = sa.select(credential_grants.c.user).where(credential_grants.c.credential == credential)
    if reader is None:
        tx.connection.execute(sa.delete(credential_grants).where(there))
        strike(tx, GRANTS + credential, [user], lambda: tx.connection.execute(granted_to).first() is not None)
        if user != row.user:
            bindings = credential_bindings.c
            end_bindings(tx, sa.and_(bindings.credential == credential, bindings.user == user))
        return
    if reader.tenant != row.tenant:
        raise NotFound(f"no such user: {user!r}")
    if user == row.user:
        raise Invalid("it is the user's own", remedy="bind it: ringfence secret bind U NAME")
    if tx.connection.execute(sa.select(credential_grants.c.user).where(there)).first() is None:
        _check_meant(tx, row.name, user)
        values = {"credential": credential, "user": user, "created_at": tx.now()}
        tx.connection.execute(sa.insert(credential_grants).values(values))
    elif bound.granted(tx, credential, user):
        return
    enter(tx, GRANTS + credential, {user: ""}, lambda: tx.connection.execute(granted_to).scalars().all())


def _check_meant(tx: Tx, name: str, user: UserId) -> None:
    """Conflict: another of that name is shared with the user: nothing could tell which is meant."""
    other = (
        sa.select(credentials.c.id)
        .join(credential_grants, credential_grants.c.credential == credentials.c.id)
        .where(credential_grants.c.user == user, credentials.c.name == name, LIVE_CREDENTIAL)
        .limit(1)
    )
    if tx.connection.execute(other).first() is not None:
        raise Conflict(
            f"another credential named {name!r} is shared with that user", remedy="store it under another name"
        )
