"""What of somebody who is removed is still in force: found by the rules of `db check`, ended as his removal would have.

A rule names rows that break it for whatever reason. What is not of a removed user, tenant or box was made by nobody of ours:
it is told, and left as evidence.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.life.debris import Left
from ringfence.host.store.check_outward import OUTWARD
from ringfence.host.store.check_rows import RULES, Rule
from ringfence.host.store.database import Database
from ringfence.host.store.invocations import close_where
from ringfence.host.store.leaving import tenant_leaves, user_leaves
from ringfence.host.store.outward import credential_bindings, credentials, egress_rules, invocations
from ringfence.host.store.schema import boxes, tenants, users
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

MOST = 100  # rows of one rule at once; the next sweep finds the others
_NAMES = frozenset({"gate_run", "gate_open", "run_tenant", "member_tenant", "box_tenant"})
LOOKED_AT: tuple[Rule, ...] = (*OUTWARD, *(rule for rule in RULES if rule.name in _NAMES))
_BY_NAME = {rule.name: rule for rule in LOOKED_AT}
# Rule -> the table whose row it names, which says of whom it is.
_TABLES: dict[str, sa.Table] = {
    "credential_user": credentials,
    "credential_binding": credential_bindings,
    "egress_rule_layer": egress_rules,
    "invocation_box": invocations,
}


class SqlReferences:
    """kernel.life.debris.References."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def broken(self) -> list[Left]:
        return await self._database.read(_broken)

    async def end(self, left: Left) -> bool:
        return await self._database.write(lambda tx: _end(tx, left.what.partition(" ")[0], left.id))


def _broken(connection: Connection) -> list[Left]:
    found = []
    for rule in LOOKED_AT:
        for row in connection.execute(sa.text(rule.query)).fetchmany(MOST):
            found.append(_told(connection, rule, str(row.id)))
    return found


def _told(connection: Connection, rule: Rule, row: str) -> Left:
    ours = bool(_leaving(connection, rule.name, row))
    why = rule.says if ours else f"{rule.says}; nobody who is removed explains it: ringfence db check"
    return Left("reference", None, f"{rule.name} {row}", why, ours=ours, id=row)


def _end(tx: Tx, rule: str, row: str) -> bool:
    for leave in _leaving(tx.connection, rule, row):
        leave(tx)
    return row not in {str(found.id) for found in tx.connection.execute(sa.text(_BY_NAME[rule].query))}


def _leaving(connection: Connection, rule: str, row: str) -> list[Callable[[Tx], None]]:
    """What the removal of whoever the row belongs to would do; empty: he is not removed."""
    user, tenant, box = _belongs(connection, rule, row)
    found: list[Callable[[Tx], None]] = []
    if user is not None and _gone(connection, users, user):
        found.append(lambda tx: user_leaves(tx, UserId(user)))
    if tenant is not None and _gone(connection, tenants, tenant):
        found.append(lambda tx: tenant_leaves(tx, TenantId(tenant)))
    if box is not None and _gone(connection, boxes, box):
        found.append(lambda tx: close_where(tx, invocations.c.box == box))
    return found


def _belongs(connection: Connection, rule: str, row: str) -> tuple[str | None, str | None, str | None]:
    """(user, tenant, box)."""
    if not storable(row):
        return None, None, None
    if rule == "credential_grant":  # its id is that of the credential and of the user
        return row.rpartition(" ")[2], None, None
    table = _TABLES.get(rule)
    if table is None:
        return None, None, None
    found = connection.execute(sa.select(table).where(table.c.id == row)).one_or_none()
    if found is None:
        return None, None, None
    of = found._mapping
    return of.get("user"), of.get("tenant"), of.get("box")


def _gone(connection: Connection, table: sa.Table, id_: str) -> bool:
    query = sa.select(table.c.id).where(table.c.id == id_, table.c.removed_at.is_not(None))
    return connection.execute(query).first() is not None
