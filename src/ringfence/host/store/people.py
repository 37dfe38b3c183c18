"""Tenants and users."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.boxes import Desired
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound
from ringfence.host.kernel.ids import TenantId, ThreadId, UserId
from ringfence.host.kernel.names import check_tenant_name, check_user_name
from ringfence.host.kernel.people import Tenant, User, UserKind
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.blob_rows import drop_final
from ringfence.host.store.database import Database
from ringfence.host.store.events import Draft, append
from ringfence.host.store.leaving import tenant_leaves, user_leaves
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.runs import cancel_all_of
from ringfence.host.store.schema import boxes, members, summaries, tenants, tokens, users
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

_USERS = (
    sa.select(users, tenants.c.name.label("tenant_name"))
    .join(tenants, users.c.tenant == tenants.c.id)
    .where(users.c.removed_at.is_(None))
)
_TENANT = sa.select(tenants).where(tenants.c.name == sa.bindparam("named"), tenants.c.removed_at.is_(None))
_TENANT_LOCKED = _TENANT.with_for_update()  # against a user who is added by another kernel meanwhile
_TENANT_KEPT = _TENANT.with_for_update(read=True, key_share=True)  # against its removal
_USER_BY_ID = _USERS.where(users.c.id == sa.bindparam("which"))  # built once: it is part of every turn


def user_of(row: Row[Any]) -> User:
    """A row of `users` with `tenant_name`."""
    return User(
        id=row.id,
        tenant=row.tenant,
        tenant_name=row.tenant_name,
        name=row.name,
        kind=UserKind(row.kind),
        owner=row.owner,
        disabled=row.disabled,
        created_at=row.created_at,
        held=row.held,
    )


def find_tenant(connection: Connection, name: str, query: sa.Select[Any] = _TENANT) -> Tenant:
    """NotFound."""
    row = connection.execute(query, {"named": name}).one_or_none() if storable(name) else None
    if row is None:
        raise NotFound(f"no such tenant: {name!r}", remedy="ringfence tenant ls")
    return Tenant(row.id, row.name, row.created_at)


def find_user(connection: Connection, tenant: str, name: str) -> User:
    """NotFound: tenant or user. Without the tenant the user is looked for all the same: the time that it takes is not to
    tell which of the two is missing."""
    home, missing = TenantId(""), None
    try:
        home = find_tenant(connection, tenant).id
    except NotFound as error:
        missing = error
    query = _USERS.where(users.c.tenant == home, users.c.name == name)
    row = owned_row(connection.execute(query).one_or_none(), tenant=home, name=name) if storable(name) else None
    if missing is not None:
        raise missing
    if row is None:
        raise NotFound(f"no such user: {name!r} in tenant {tenant!r}", remedy=f"ringfence user ls --tenant {tenant}")
    return user_of(row)


def find_user_by_id(connection: Connection, user: UserId) -> User:
    """NotFound."""
    row = owned_row(connection.execute(_USER_BY_ID, {"which": user}).one_or_none(), id=user) if storable(user) else None
    if row is None:
        raise NotFound(f"no such user: {user!r}")
    return user_of(row)


class SqlTenants:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, name: str) -> Tenant:
        check_tenant_name(name)

        def work(tx: Tx) -> Tenant:
            taken = sa.select(tenants.c.id).where(tenants.c.name == name, tenants.c.removed_at.is_(None))
            if tx.connection.execute(taken).first():
                raise Conflict(f"the tenant {name!r} exists", remedy="ringfence tenant ls")
            tenant = Tenant(TenantId(tx.new_id("ten")), name, tx.now())
            row = {"id": tenant.id, "name": name, "created_at": tenant.created_at}
            tx.connection.execute(sa.insert(tenants).values(row))
            return tenant

        return await self._database.write(work)

    async def get(self, name: str) -> Tenant:
        return await self._database.read(lambda connection: find_tenant(connection, name))

    async def gone(self, name: str) -> Tenant:
        """The removed one that had that name last. NotFound."""
        mine = sa.select(tenants).where(tenants.c.name == name, tenants.c.removed_at.is_not(None))
        latest = mine.order_by(tenants.c.removed_at.desc(), tenants.c.id.desc()).limit(1)

        def question(connection: Connection) -> Tenant:
            row = connection.execute(latest).one_or_none() if storable(name) else None
            if row is None:
                raise NotFound(f"no such tenant: {name!r}", remedy="ringfence tenant ls")
            return Tenant(row.id, row.name, row.created_at)

        return await self._database.read(question)

    async def all(self) -> list[Tenant]:
        """By name."""
        query = sa.select(tenants).where(tenants.c.removed_at.is_(None)).order_by(tenants.c.name)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [Tenant(row.id, row.name, row.created_at) for row in rows]

    async def remove(self, name: str) -> None:
        def work(tx: Tx) -> None:
            tenant = find_tenant(tx.connection, name, _TENANT_LOCKED)
            live = sa.select(sa.func.count()).where(users.c.tenant == tenant.id, users.c.removed_at.is_(None))
            if count := tx.connection.execute(live).scalar_one():
                raise Conflict(
                    f"the tenant {name!r} has {count} users", remedy=f"ringfence user rm U --tenant {name}, for each"
                )
            tenant_leaves(tx, tenant.id)
            gone = sa.update(tenants).where(tenants.c.id == tenant.id).values(removed_at=tx.now())
            tx.connection.execute(gone)

        await self._database.write(work)


class SqlUsers:
    def __init__(self, database: Database, chain: Chain) -> None:
        """`chain`: of the audit, see run_ends.py."""
        self._database, self._chain = database, chain

    async def add(self, tenant: str, name: str, kind: UserKind, owner: str | None) -> User:
        """Also NameInvalid; Invalid: a person with an owner, another kind without, an owner who is no person."""
        check_user_name(name)
        if (kind is UserKind.PERSON) != (owner is None):
            remedy = "leave --owner out" if owner else "name the person who answers for it: --owner U"
            raise Invalid(f"a user of kind {kind.value} {'has no' if owner else 'needs an'} owner", remedy=remedy)
        return await self._database.write(lambda tx: _add_user(tx, tenant, name, kind, owner))

    async def get(self, tenant: str, name: str) -> User:
        return await self._database.read(lambda connection: find_user(connection, tenant, name))

    async def by_id(self, user: UserId) -> User:
        return await self._database.read(lambda connection: find_user_by_id(connection, user))

    async def all(self, tenant: str) -> list[User]:
        """By name."""

        def question(connection: Connection) -> list[User]:
            home = find_tenant(connection, tenant)
            query = _USERS.where(users.c.tenant == home.id).order_by(users.c.name)
            return [user_of(row) for row in owned(connection.execute(query), tenant=home.id)]

        return await self._database.read(question)

    async def gone(self, tenant: str, name: str) -> User:
        """The removed user that had that name last. NotFound."""

        def question(connection: Connection) -> User:
            home = find_tenant(connection, tenant)
            query = sa.select(users, tenants.c.name.label("tenant_name")).join(tenants, users.c.tenant == tenants.c.id)
            mine = query.where(users.c.tenant == home.id, users.c.name == name, users.c.removed_at.is_not(None))
            latest = mine.order_by(users.c.removed_at.desc(), users.c.id.desc()).limit(1)
            row = owned_row(connection.execute(latest).one_or_none(), tenant=home.id) if storable(name) else None
            if row is None:
                raise NotFound(f"no such user: {name!r}", remedy=f"ringfence user ls --tenant {tenant}")
            return user_of(row)

        return await self._database.read(question)

    async def remove(self, user: UserId) -> None:
        """Also, in the same transaction: its boxes are wanted stopped, its runs cancelled (a live one is asked to
        end), its memberships ended. The summaries of its runs go, and the blobs of those that are final (a live run's go
        when it ends): nobody will be given them again. Its credentials are revoked and their sealed values deleted; what
        was shared with it is not any more; its rules and invocations end. What it said and what was answered stays in the threads.
        Conflict: it owns users that are there."""
        await self._database.write(lambda tx: _remove_user(tx, self._chain, user))


def _add_user(tx: Tx, tenant: str, name: str, kind: UserKind, owner: str | None) -> User:
    home = find_tenant(tx.connection, tenant, _TENANT_KEPT)
    taken = sa.select(users.c.id).where(users.c.tenant == home.id, users.c.name == name, users.c.removed_at.is_(None))
    if tx.connection.execute(taken).first():
        raise Conflict(f"the user {name!r} exists in tenant {tenant!r}", remedy=f"ringfence user ls --tenant {tenant}")
    person = None if owner is None else find_user(tx.connection, tenant, owner)
    if person is not None and person.kind is not UserKind.PERSON:
        raise Invalid(f"the owner {owner!r} is of kind {person.kind.value}", remedy="name a person as the owner")
    user = User(
        UserId(tx.new_id("usr")), home.id, home.name, name, kind, person.id if person else None, False, tx.now()
    )
    row = {
        "id": user.id,
        "tenant": user.tenant,
        "name": name,
        "kind": kind.value,
        "owner": user.owner,
        "disabled": False,
        "created_at": user.created_at,
    }
    tx.connection.execute(sa.insert(users).values(row))
    return user


def _remove_user(tx: Tx, chain: Chain, user: UserId) -> None:
    gone = find_user_by_id(tx.connection, user)
    owned = sa.select(users.c.name).where(users.c.owner == user, users.c.removed_at.is_(None)).order_by(users.c.name)
    if names := list(tx.connection.execute(owned).scalars()):
        raise Conflict(
            f"{gone.name!r} owns {', '.join(map(repr, names[:5]))}{' and more' if len(names) > 5 else ''}",
            remedy="remove those first: ringfence user rm U",
        )
    now = tx.now()
    cancel_all_of(tx, chain, user, "user_removed")
    drop_final(tx, user)
    user_leaves(tx, user)
    tx.connection.execute(sa.delete(summaries).where(summaries.c.actor == user))
    for thread in list(tx.connection.execute(sa.select(members.c.thread).where(members.c.user == user)).scalars()):
        append(tx, ThreadId(thread), Draft(EventKind.MEMBER_REMOVED, {"user": gone.name}, actor=user))
    tx.connection.execute(sa.delete(members).where(members.c.user == user))
    for table in (tokens, users):
        column = table.c.user if table is tokens else table.c.id
        mine = sa.update(table).where(column == user, table.c.removed_at.is_(None))
        tx.connection.execute(mine.values(removed_at=now))
    awake = sa.update(boxes).where(boxes.c.user == user, boxes.c.desired == Desired.RUNNING.value)
    tx.connection.execute(awake.values(desired=Desired.STOPPED.value))
