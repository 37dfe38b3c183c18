"""Where credentials may be used: bindings of a user, in the store, and which of them count. Must never bind what the user may not
use, nor another's credential where its owner lets nobody send it, nor take a grant's row for a grant: rolls say which are."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Conflict, Failed, Invalid, Refused
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.outward import reaches, rolls
from ringfence.host.kernel.outward.checking import check_binding
from ringfence.host.kernel.outward.credentials import Binding, Credential, Owner, Use
from ringfence.host.kernel.outward.rolls import Roll
from ringfence.host.kernel.outward.spelled import binding_digest, binding_from_json, binding_to_json
from ringfence.host.kernel.outward.storing import MAX_BINDINGS
from ringfence.host.store.credential_rows import (
    credential_of,
    end_bindings,
    find_credential,
    keep_user,
    no_such,
    usable_by,
)
from ringfence.host.store.outward import LIVE, credential_bindings, credentials
from ringfence.host.store.owned import owned
from ringfence.host.store.people import find_user_by_id
from ringfence.host.store.roll_rows import enter, roll_of, rolls_of
from ringfence.host.store.text import made_json
from ringfence.host.store.transaction import Tx

_LIVE = sa.text(f"credential_bindings.{LIVE}")
_COLUMNS = (
    credential_bindings.c.id,
    credential_bindings.c.user,
    credential_bindings.c.credential,
    sa.type_coerce(credential_bindings.c.body, sa.Text).label(
        "body"
    ),  # as it stands there: who altered it may have left no JSON
)
_MAX_BYTES = 64 * 1024  # of one as JSON: 64 paths, 16 ports and 8 positions are far less


def bind(tx: Tx, user: UserId, binding: Binding) -> Binding:
    """NotFound, Conflict, Refused; see the port."""
    who = keep_user(tx, user)
    row = find_credential(tx.connection, binding.credential, keep=True)
    mine = sa.select(credentials.c.id).where(credentials.c.id == row.id, usable_by(user, who.tenant))
    if tx.connection.execute(mine).first() is None:
        raise no_such(binding.credential)
    if binding.use is Use.MOUNTED and (row.owner, row.user) != (Owner.USER.value, user):
        raise Refused(f"{row.name!r} is not the user's own: it is mounted nowhere", remedy="bind it with a placeholder")
    if (row.owner, row.user == user) == (Owner.SHARED.value, False) and not granted(tx, row.id, user):
        raise no_such(binding.credential)
    credential = credential_of(row)
    if reaches.anothers(credential, user):
        reaches.check_within(credential, binding)
    digest = binding_digest(binding)
    there = sa.select(credential_bindings.c.digest).where(credential_bindings.c.user == user, sa.text(LIVE))
    known = list(tx.connection.execute(there).scalars())
    if digest in known:
        raise Conflict(f"the same binding of {row.name!r} is there", remedy="ringfence secret ls U")
    if len(known) >= MAX_BINDINGS:
        raise Conflict(
            f"{len(known)} bindings are there; the limit is {MAX_BINDINGS}", remedy="ringfence secret unbind U ID"
        )
    made = binding if binding.id else replace(binding, id=tx.new_id("bnd"))
    body = made_json(binding_to_json(made), "the binding", _MAX_BYTES)
    values = {
        "id": made.id,
        "user": user,
        "credential": made.credential,
        "body": body,
        "digest": digest,
        "created_at": tx.now(),
    }
    tx.connection.execute(sa.insert(credential_bindings).values(values))
    says = rolls.digest(made.id, made.credential, body)
    enter(tx, rolls.BINDINGS + user, {made.id: says}, lambda: tx.connection.execute(_ids(user)).scalars().all())
    return made


def end_outside(tx: Tx, credential: Credential) -> None:
    """Its reach is another by now: what others than its owner have bound beyond it ends."""
    query = sa.select(*_COLUMNS).where(credential_bindings.c.credential == credential.id, _LIVE)
    rows = tx.connection.execute(query).all()
    outside = [row.id for row in rows if reaches.anothers(credential, row.user) and not _within(row, credential)]
    if outside:
        end_bindings(tx, credential_bindings.c.id.in_(outside))


def _within(row: Row[Any], credential: Credential) -> bool:
    try:
        return reaches.within(binding_of(row), reaches.places(credential))
    except (Failed, ValueError):
        return False


def _ids(user: UserId) -> sa.Select[Any]:
    return sa.select(credential_bindings.c.id).where(credential_bindings.c.user == user, sa.text(LIVE))


def granted(tx: Tx, credential: str, user: UserId) -> bool:
    """As the roll of its grants says."""
    roll = roll_of(tx.connection, rolls.GRANTS + credential)
    return tx.world.seals.genuine(roll) and user in roll.entries


@dataclass(frozen=True, slots=True)
class Bound:
    """A row, and by `grant` the roll that must name its user too; "" = the credential is not another's."""

    row: Row[Any]
    grant: str


def bound_of(connection: Connection, user: UserId) -> tuple[list[Bound], list[Roll]]:
    """Oldest first; of live credentials that the user may still use. And the rolls that say which of them count. NotFound: the user."""
    who = find_user_by_id(connection, user)
    query = (
        sa.select(*_COLUMNS, credentials.c.owner, credentials.c.user.label("whose"))
        .join(credentials, credentials.c.id == credential_bindings.c.credential)
        .where(credential_bindings.c.user == user, _LIVE, usable_by(user, who.tenant))
        .order_by(credential_bindings.c.created_at, credential_bindings.c.id)
    )
    rows = owned(connection.execute(query), user=user)
    bound = [Bound(row, _grant_of(row, user)) for row in rows]
    return bound, rolls_of(connection, [rolls.BINDINGS + user, *(each.grant for each in bound if each.grant)])


def _grant_of(row: Row[Any], user: UserId) -> str:
    return rolls.GRANTS + row.credential if row.owner == Owner.SHARED.value and row.whose != user else ""


def binding_of(row: Row[Any]) -> Binding:
    """Failed: it cannot be read. What the row's keys say counts: the body alone would be a second word about which credential it is."""
    try:
        found = check_binding(binding_from_json(json.loads(row.body)))
    except (Invalid, ValueError, AttributeError) as error:
        raise Failed(
            f"the binding {row.id} cannot be read: a later release wrote it, or it was changed",
            remedy="start the release that wrote it, or remove it",
        ) from error
    return replace(found, id=row.id, credential=row.credential)


def usable(connection: Connection, user: UserId, credential: str, binding: str) -> bool:
    """See the port. NotFound: the user."""
    who = find_user_by_id(connection, user)
    query = sa.select(credentials.c.id).where(credentials.c.id == credential, usable_by(user, who.tenant))
    if binding:
        of_it = sa.and_(credential_bindings.c.id == binding, credential_bindings.c.user == user, _LIVE)
        query = query.join(credential_bindings, credential_bindings.c.credential == credentials.c.id).where(of_it)
    return connection.execute(query).first() is not None


def bound_by(connection: Connection, credential: str) -> list[UserId]:
    """Users with a live binding of it. NotFound."""
    find_credential(connection, credential)
    query = (
        sa.select(credential_bindings.c.user)
        .where(credential_bindings.c.credential == credential, sa.text(LIVE))
        .distinct()
    )
    return [UserId(user) for user in sorted(connection.execute(query).scalars())]


def loose(connection: Connection) -> set[UserId]:
    """Who has a binding whose row does not say that it is a placeholder, or says nothing that can be read."""
    table = credential_bindings.c
    bodies = sa.select(table.user, sa.type_coerce(table.body, sa.Text).label("body")).where(table.removed_at.is_(None))
    return {UserId(row.user) for row in connection.execute(bodies) if not _meant(row.body)}


def _meant(body: str) -> bool:
    try:
        return bool(json.loads(body).get("use", Use.PLACEHOLDER.value) == Use.PLACEHOLDER.value)
    except (ValueError, AttributeError):
        return False
