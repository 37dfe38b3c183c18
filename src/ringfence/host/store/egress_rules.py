"""kernel.outward.ports.EgressRules on the database: layers of rules, each rule once in a layer of one owner.

Which of them count is what their roll says. Must never decide by a rule: it keeps what the engine has authorised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NotFound, Unavailable
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.rolls import DENIES, RULES, Roll, digest
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Verdict
from ringfence.host.kernel.outward.spelled import rule_digest, rule_from_json, rule_to_json
from ringfence.host.kernel.outward.storing import MAX_RULE_BYTES, MAX_RULE_PATHS, MAX_RULES
from ringfence.host.store.credential_rows import keep_user
from ringfence.host.store.database import Database
from ringfence.host.store.outward import LIVE, egress_rules, rolls
from ringfence.host.store.roll_rows import COLUMNS, drop, enter, roll_from, roll_of, rolls_of, strike
from ringfence.host.store.rolls import Judged, SqlRolls, rule_entry
from ringfence.host.store.schema import tenants, users
from ringfence.host.store.text import made_json, storable
from ringfence.host.store.transaction import Tx

Place = tuple[TenantId | None, UserId | None]
_MAX_BYTES = 64 * 1024  # of one as JSON: 64 paths, 16 ports and a note of 500 characters are far less
_TENANT_KEPT = (
    sa.select(tenants.c.id)
    .where(tenants.c.id == sa.bindparam("which"), tenants.c.removed_at.is_(None))
    .with_for_update(read=True, key_share=True)
)
_COLUMNS = (
    egress_rules.c.id,
    egress_rules.c.tenant,
    egress_rules.c.user,
    egress_rules.c.scope,
    sa.type_coerce(egress_rules.c.body, sa.Text).label(
        "body"
    ),  # as it stands there: who altered it may have left no JSON
)
_IN_ORDER = sa.select(*_COLUMNS).where(sa.text(LIVE)).order_by(egress_rules.c.created_at, egress_rules.c.id)
_ROLLS = sa.select(*COLUMNS).where(rolls.c.of.startswith(RULES, autoescape=True))
ROLL = "roll:"  # in the place of a rule's id, then the scope: it is no rule, but the roll that is lost
MEND = "Take each rule of the layer away with `ringfence egress rm`, then this, and add anew what is meant"
LOST = "a rule that denies is gone or altered: all is denied until it is taken away with `ringfence egress rm`, and added anew"
ODD = "DOES NOT COUNT: it is not as it was sealed. Take it away, and look who writes to the database"
CLOSED = "DOES NOT COUNT: a rule of this layer that denies is gone or altered"


class SqlEgressRules:
    """kernel.outward.ports.EgressRules."""

    def __init__(self, database: Database, rolls: SqlRolls) -> None:
        self._database, self._rolls = database, rolls

    async def add(self, layer: Place, rule: EgressRule) -> EgressRule:
        return (await self.add_all(layer, [rule]))[0]

    async def add_all(self, layer: Place, more: Sequence[EgressRule]) -> list[EgressRule]:
        await self._rolls.ready(RULES + (layer[1] or layer[0] or ""))
        return await self._database.write(lambda tx: _add(tx, layer, more))

    async def remove(self, rule: str) -> EgressRule:
        place = RULES + rule.removeprefix(ROLL) if rule.startswith(ROLL) else None
        if place is None and storable(rule):
            place = await self._database.read(lambda connection: _roll_naming(connection, rule))
        if place is None:
            raise NotFound(f"no such rule: {rule[:64]!r}", remedy="ringfence egress ls U")
        await self._rolls.ready(place)
        return await self._database.write(lambda tx: _remove(tx, place, rule))

    async def of(self, tenant: TenantId, user: UserId, *, shown: bool = False) -> list[EgressRule]:
        """Failed: one cannot be read, and nothing is given out then."""
        scopes = ["", tenant, user]
        mine = _IN_ORDER.where(egress_rules.c.scope.in_(scopes))

        def question(connection: Connection) -> tuple[Sequence[Row[Any]], list[Roll]]:
            rows = _of_nobody_else(connection.execute(mine).all(), (None, tenant), (None, user))
            return rows, rolls_of(connection, [RULES + each for each in scopes])

        try:
            rows, said = await self._rolls.judged(question)
        except Unavailable as error:
            if not shown:
                return [in_the_place(ROLL, Layer.INSTALLATION, error.message)]
            return [rule_of(row) for row in (await self._database.read(question))[0]]
        return self._counting(rows, {scope: _layer_of(scope, tenant) for scope in scopes}, said, shown=shown)

    async def of_layer(self, layer: Place) -> list[EgressRule]:
        tenant, user = layer
        scope = user or tenant or ""
        mine = _IN_ORDER.where(egress_rules.c.scope == scope)

        def question(connection: Connection) -> tuple[Sequence[Row[Any]], list[Roll]]:
            rows = _of_nobody_else(connection.execute(mine).all(), (tenant,), (user,))
            return rows, rolls_of(connection, [RULES + scope])

        try:
            rows, said = await self._rolls.judged(question)
        except Unavailable:
            return [rule_of(row) for row in (await self._database.read(question))[0]]
        which = Layer.INSTALLATION if tenant is None else Layer.TENANT if user is None else Layer.USER
        return self._counting(rows, {scope: which}, said, shown=True)

    async def all(self, tenant: TenantId | None) -> list[tuple[TenantId | None, UserId | None, EgressRule]]:
        query = _IN_ORDER if tenant is None else _IN_ORDER.where(egress_rules.c.tenant == tenant)

        def question(connection: Connection) -> tuple[tuple[Sequence[Row[Any]], dict[str, Place]], list[Roll]]:
            places, here = _places(connection, tenant)
            rows = connection.execute(query).all()
            return (rows, places), rolls_of(
                connection, [RULES + each for each in {*here, *(row.scope for row in rows)}]
            )

        try:
            (rows, places), said = await self._rolls.judged(question)
        except Unavailable:
            rows = (await self._database.read(question))[0][0]
            return [(row.tenant, row.user, rule_of(row)) for row in rows]
        found = []
        for of in sorted(said):
            scope = of.removeprefix(RULES)
            place = places[scope]
            mine = [row for row in rows if row.scope == scope]
            layer = Layer.INSTALLATION if not scope else Layer.TENANT if place[1] is None else Layer.USER
            found += [(*place, rule) for rule in self._counting(mine, {scope: layer}, said, shown=True)]
        order = {row.id: at for at, row in enumerate(rows)}
        return sorted(found, key=lambda each: order.get(each[2].id, -1))

    def _counting(
        self, rows: Sequence[Row[Any]], layers: Mapping[str, Layer], said: Judged, *, shown: bool
    ) -> list[EgressRule]:
        """Those that count. In the place of each deny that is lost, or of a roll that is, one that denies all; then nothing that
        allows counts in that layer. `shown`: also what does not count, which its note says."""
        closers, found = [], []
        for scope, layer in layers.items():
            mine = dict(rule_entry(row) for row in rows if row.scope == scope)
            judged = self._rolls.compared(RULES + scope, mine, said)
            closers += [in_the_place(each, layer, LOST) for each in judged.denies]
            closers += [in_the_place(ROLL + scope, layer, f"{judged.why}. {MEND}")] if judged.why else []
            for row in rows:
                if row.scope != scope:
                    continue
                counts = row.id in judged.counts
                if counts and not (judged.closed and _allows(row)):
                    found.append((row, ""))
                elif shown and row.id not in judged.denies:
                    found.append((row, ODD if not counts else CLOSED))
        order = {row.id: at for at, row in enumerate(rows)}
        found.sort(key=lambda each: order[each[0].id])
        return [*closers, *(rule_of(row, why) for row, why in found)]


def _of_nobody_else(
    rows: Sequence[Row[Any]], of_tenants: Sequence[TenantId | None], of_users: Sequence[UserId | None]
) -> Sequence[Row[Any]]:
    """The second wall behind the filter, as owned.py. Failed: a row of another layer."""
    if any(row.tenant not in of_tenants or row.user not in of_users for row in rows):
        raise Failed(
            "the store found a rule of another layer: nothing was given out",
            remedy="report this: a query lost its filter",
        )
    return rows


def _add(tx: Tx, place: Place, more: Sequence[EgressRule]) -> list[EgressRule]:
    scope, layer = _place(tx, place)
    made = [replace(each, layer=layer, id=each.id or tx.new_id("rul")) for each in more]
    bodies = [made_json(rule_to_json(each), "the rule", _MAX_BYTES) for each in made]
    _check_room(tx, scope, made, bodies)
    entries = {}
    for rule, body in zip(made, bodies, strict=True):
        values = {
            "id": rule.id,
            "tenant": place[0],
            "user": place[1],
            "scope": scope,
            "body": body,
            "digest": rule_digest(rule),
            "created_at": tx.now(),
        }
        tx.connection.execute(sa.insert(egress_rules).values(values))
        entries[rule.id] = (DENIES if rule.answer is Verdict.DENY else "") + digest(rule.id, body)
    enter(tx, RULES + scope, entries)
    return made


def _check_room(tx: Tx, scope: str, more: Sequence[EgressRule], bodies: Sequence[str]) -> None:
    """Conflict: one of them is there, or they are too many with those that are."""
    body = sa.type_coerce(egress_rules.c.body, sa.Text).label("body")
    query = sa.select(egress_rules.c.digest, body).where(egress_rules.c.scope == scope, sa.text(LIVE))
    rows = tx.connection.execute(query).all()
    known = {row.digest for row in rows}
    for rule in more:
        if (same := rule_digest(rule)) in known:
            raise Conflict(f"the same rule for {rule.host} is there", remedy="ringfence egress ls U")
        known.add(same)
    everything = (*(row.body for row in rows), *bodies)
    for what, count, most in (
        ("rules", len(everything), MAX_RULES),
        ("paths of rules", sum(map(_paths_in, everything)), MAX_RULE_PATHS),
        ("bytes of rules", sum(map(len, everything)), MAX_RULE_BYTES),
    ):
        if count > most:
            raise Conflict(f"this would be {count} {what}; the limit is {most}", remedy="ringfence egress rm ID")


def _paths_in(body: str) -> int:
    """Of one that cannot be read none: it is no rule."""
    try:
        paths = json.loads(body).get("paths", ())
    except (ValueError, AttributeError):
        return 0
    return len(paths) if isinstance(paths, list) else 0


def _place(tx: Tx, place: Place) -> tuple[str, Layer]:
    """(scope, layer). NotFound: tenant or user. Invalid: a user without a tenant."""
    tenant, user = place
    if user is not None:
        if tenant is None:
            raise Invalid("a user's rule needs the tenant", remedy="name both")
        if keep_user(tx, user).tenant != tenant:
            raise NotFound(f"no such user: {user!r}")
        return user, Layer.USER
    if tenant is None:
        return "", Layer.INSTALLATION
    if not storable(tenant) or tx.connection.execute(_TENANT_KEPT, {"which": tenant}).first() is None:
        raise NotFound(f"no such tenant: {tenant!r}", remedy="ringfence tenant ls")
    return tenant, Layer.TENANT


def _remove(tx: Tx, of: str, rule: str) -> EgressRule:
    """Also one that is not there as it was sealed. Unavailable: it denies, and the vault is sealed."""
    gone = sa.update(egress_rules).where(egress_rules.c.id == rule, sa.text(LIVE)).returning(*_COLUMNS)
    named = roll_of(tx.connection, of).entries.get(rule, "")
    if named.startswith(DENIES):  # a roll that still names it would close the layer
        tx.world.seals.sign(Roll(of))
    row = tx.connection.execute(gone, {"removed_at": tx.now()}).one_or_none()
    if row is None and not named and not _mended(tx, of, rule):
        raise NotFound(f"no such rule: {rule[:64]!r}", remedy="ringfence egress ls U")
    scope = of.removeprefix(RULES)
    left = sa.select(egress_rules.c.id).where(egress_rules.c.scope == scope, sa.text(LIVE)).limit(1)
    strike(tx, of, [rule], lambda: tx.connection.execute(left).first() is not None)
    if row is None:
        return in_the_place(rule, Layer.USER, LOST)
    return rule_of(row, "" if named.removeprefix(DENIES) == rule_entry(row)[1] else ODD)


def _mended(tx: Tx, of: str, rule: str) -> bool:
    """Whether it stands for a roll that is not genuine: then the roll goes, once the layer has no rule any more. Conflict."""
    if not rule.startswith(ROLL) or tx.world.seals.genuine(roll_of(tx.connection, of)):
        return False
    there = sa.select(egress_rules.c.id).where(egress_rules.c.scope == of.removeprefix(RULES), sa.text(LIVE)).limit(1)
    if tx.connection.execute(there).first() is not None:
        raise Conflict("the layer has rules, and which of them count nobody can tell", remedy=MEND)
    return True


def _places(connection: Connection, tenant: TenantId | None) -> tuple[dict[str, Place], list[str]]:
    """Whose each scope is; and those that are of the tenant, or of anybody, and are not removed."""
    people = connection.execute(sa.select(users.c.id, users.c.tenant, users.c.removed_at)).all()
    there = connection.execute(sa.select(tenants.c.id, tenants.c.removed_at)).all()
    places: dict[str, Place] = {"": (None, None)}
    places |= {row.id: (row.id, None) for row in there} | {row.id: (row.tenant, row.id) for row in people}
    gone = {row.id for row in (*there, *people) if row.removed_at is not None}
    return places, [scope for scope, place in places.items() if tenant in (None, place[0]) and scope not in gone]


def _roll_naming(connection: Connection, rule: str) -> str | None:
    """Of the rule's row, or that names it without one."""
    scope = connection.execute(sa.select(egress_rules.c.scope).where(egress_rules.c.id == rule)).scalar_one_or_none()
    if scope is not None:
        return f"{RULES}{scope}"
    return next((str(row.of) for row in connection.execute(_ROLLS) if rule in roll_from(row).entries), None)


def rule_of(row: Row[Any], why: str = "") -> EgressRule:
    """What the row's keys say counts: where it stands is no matter of its body. `why`: it does not count. Failed: it cannot be
    read; of one that does not count nothing but its id is said then."""
    layer = Layer.USER if row.user is not None else Layer.TENANT if row.tenant is not None else Layer.INSTALLATION
    try:
        found = rule_from_json(json.loads(row.body))
    except (Failed, ValueError, AttributeError):
        if not why:
            raise
        found = EgressRule(row.id, Verdict.ASK, "unreadable.invalid")  # RFC 6761 6.4: no such name is ever there
    return replace(found, id=row.id, layer=layer, note=why or found.note)


def in_the_place(rule: str, layer: Layer, why: str) -> EgressRule:
    return EgressRule(rule, Verdict.DENY, "*", ports=(), layer=layer, note=why)


def _allows(row: Row[Any]) -> bool:
    return rule_of(row).answer is not Verdict.DENY


def _layer_of(scope: str, tenant: TenantId) -> Layer:
    return Layer.INSTALLATION if not scope else Layer.TENANT if scope == tenant else Layer.USER


# --- for the other write functions -----------------------------------------------------------------------------------


def end_rules(tx: Tx, scope: str) -> None:
    """Of the user or tenant of that id, who is removed in this transaction."""
    ended = sa.update(egress_rules).where(egress_rules.c.scope == scope, sa.text(LIVE))
    tx.connection.execute(ended.values(removed_at=tx.now()))
    drop(tx, RULES + scope)
