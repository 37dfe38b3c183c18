"""Boxes: what is wanted, and what the driver last saw. A row whose box is gone for good is tombstoned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.boxes import Box, BoxKind, Desired, Limits, Observed, Rest
from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.people import User
from ringfence.host.store.box_days import count
from ringfence.host.store.database import Database
from ringfence.host.store.invocations import close_where
from ringfence.host.store.outward import invocations
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.people import find_user_by_id
from ringfence.host.store.schema import boxes, users
from ringfence.host.store.text import checked_json, storable
from ringfence.host.store.transaction import Tx
from ringfence.host.store.trees import take_up

QUARANTINED, PAUSED = "quarantined", "box_paused"  # kernel.runs.REASONS: why runs of a user wait
_LIMITS = frozenset(field.name for field in fields(Limits))
# Built once: both are in the way of a first command.
_BY_ID = sa.select(boxes).where(boxes.c.id == sa.bindparam("which"), boxes.c.removed_at.is_(None))
_HOME_OF = sa.select(boxes).where(
    boxes.c.user == sa.bindparam("whose"),
    boxes.c.kind == BoxKind.HOME.value,
    boxes.c.desired != Desired.REMOVED.value,
)
_HOME_OF_LIVE = _HOME_OF.join(users, users.c.id == boxes.c.user).where(users.c.removed_at.is_(None))


def box_of(row: Row[Any]) -> Box:
    return Box(
        id=row.id,
        tenant=row.tenant,
        user=row.user,
        kind=BoxKind(row.kind),
        driver=row.driver,
        desired=Desired(row.desired),
        observed=Observed(row.observed),
        uid=row.uid,
        identity=row.identity,
        limits=Limits(**{name: value for name, value in row.limits.items() if name in _LIMITS}),
        image=row.image,
        generation=row.generation,
        created_at=row.created_at,
        started_at=row.started_at,
        last_active_at=row.last_active_at,
        installation=row.installation,
        rest=Rest(row.rest),
        rested_at=row.rested_at,
        quarantined_at=row.quarantined_at,
        quarantine=row.quarantine,
        verb=row.verb,
        verb_until=row.verb_until,
        made_of=row.made_of,
        image_wanted=row.image_wanted,
        image_bound=row.image_bound,
    )


class SqlBoxes:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def home_of(self, user: User, driver: str, limits: Limits) -> Box:
        """NotFound: the user is removed."""

        def work(tx: Tx) -> Box:
            return _home(tx.connection, user.id) or _add(tx, user.id, BoxKind.HOME, driver, limits)

        known = await self._database.read(lambda connection: _home(connection, user.id))
        return known if known is not None else await self._database.write(work)

    async def add(self, user: User, kind: BoxKind, driver: str, limits: Limits) -> Box:
        return await self._database.write(lambda tx: _add(tx, user.id, kind, driver, limits))

    async def get(self, box: BoxId) -> Box:
        return await self._database.read(lambda connection: box_of(_row(connection, box)))

    async def all(self, tenant: TenantId | None = None) -> list[Box]:
        """Oldest first; also those that are wanted removed and are still there."""
        query = sa.select(boxes).where(boxes.c.removed_at.is_(None)).order_by(boxes.c.created_at, boxes.c.id)
        keys: dict[str, str] = {}
        if tenant is not None:
            query, keys = query.where(boxes.c.tenant == tenant), {"tenant": tenant}
        return await self._database.read(lambda c: [box_of(row) for row in owned(c.execute(query), **keys)])

    async def update(
        self,
        box: BoxId,
        *,
        desired: Desired | None = None,
        observed: Observed | None = None,
        uid: int | None = None,
        identity: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        started: bool = False,
        active: bool = False,
        rest: Rest | None = None,
        made_of: Mapping[str, Any] | None = None,
        image: str | None = None,
        image_wanted: str | None = None,
        image_bound: str | None = None,
    ) -> Box:
        """Wanted removed and seen absent: the last update, after which the box is NotFound."""
        given = {
            "desired": desired and desired.value,
            "observed": observed and observed.value,
            "uid": uid,
            "identity": None if identity is None else checked_json(identity, "the identity of a box"),
            "limits": limits and asdict(limits),
            "rest": rest if rest is None else rest.value,
            "made_of": None if made_of is None else checked_json(made_of, "what a box was made of"),
            "image": image,
            "image_wanted": image_wanted,
            "image_bound": image_bound,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        return await self._database.write(lambda tx: _update(tx, box, changes, started=started, active=active))

    async def hold(self, box: BoxId) -> None:
        await self._database.write(lambda tx: _hold(tx, UserId(_row(tx.connection, box).user), PAUSED, was=""))

    async def quarantine(self, box: BoxId, why: str | None) -> Box:
        return await self._database.write(lambda tx: _quarantine(tx, box, why))

    async def begin(self, box: BoxId, verb: str, seconds: float) -> Box:
        return await self._database.write(lambda tx: _begin(tx, box, verb, seconds))

    async def end(self, box: BoxId, verb: str) -> None:
        over = sa.update(boxes).where(boxes.c.id == box, boxes.c.verb == verb).values(verb="", verb_until=None)
        await self._database.write(lambda tx: tx.connection.execute(over))

    async def new_tree(self, box: BoxId) -> int:
        return await self._database.write(lambda tx: take_up(tx, UserId(_row(tx.connection, box).user)))


def _update(tx: Tx, box: BoxId, changes: dict[str, Any], *, started: bool, active: bool) -> Box:
    row = _row(tx.connection, box)
    values = dict(changes)
    if values.get("observed", row.observed) != Observed.RUNNING:
        values["identity"] = None
        if values.get("rest", row.rest) == Rest.PAUSED:  # what has no process stands still no more
            values["rest"] = Rest.NONE.value
    if {"observed", "rest"} & values.keys() and _resting(row, values):
        values["rested_at"] = tx.now()
    if started:
        values |= {"generation": row.generation + 1, "started_at": tx.now()}
        count(tx, row, "starts")
    if values.get("rest") == Rest.PAUSED.value and row.rest != Rest.PAUSED.value:
        count(tx, row, "pauses")
    if active:
        values["last_active_at"] = tx.now()
    wanted, seen = values.get("desired", row.desired), values.get("observed", row.observed)
    if wanted == Desired.REMOVED and seen == Observed.ABSENT:
        values["removed_at"] = tx.now()
        close_where(tx, invocations.c.box == box)
    if values.get("rest", row.rest) != Rest.PAUSED and {"rest", "observed", "desired"} & values.keys():
        _hold(tx, UserId(row.user), "", was=PAUSED)
    changed = sa.update(boxes).where(boxes.c.id == box).values(**values).returning(boxes)
    return box_of(tx.connection.execute(changed).one())


def _resting(row: Row[Any], values: Mapping[str, Any]) -> bool:
    """Whether it rests now in another way than before."""
    before, after = ((of["observed"], of["rest"]) for of in (row._mapping, {**row._mapping, **values}))
    return before != after and after != (Observed.RUNNING.value, Rest.NONE.value)


def _quarantine(tx: Tx, box: BoxId, why: str | None) -> Box:
    row = _row(tx.connection, box)
    values: dict[str, Any] = {"quarantined_at": None, "quarantine": ""}
    if why is not None:
        values = {"quarantined_at": row.quarantined_at or tx.now(), "quarantine": why}
    changed = sa.update(boxes).where(boxes.c.id == box).values(**values).returning(boxes)
    done = box_of(tx.connection.execute(changed).one())
    if done.kind is BoxKind.HOME:
        _hold(tx, done.user, *(("", QUARANTINED) if why is None else (QUARANTINED, None)))
    return done


def _hold(tx: Tx, user: UserId, why: str, was: str | None = None) -> None:
    """`was`: only if that is what holds it now."""
    held = sa.update(users).where(users.c.id == user, users.c.held != why)
    tx.connection.execute((held if was is None else held.where(users.c.held == was)).values(held=why))


def _begin(tx: Tx, box: BoxId, verb: str, seconds: float) -> Box:
    row = _row(tx.connection, box)
    now = tx.onward_now()
    if row.verb and row.verb_until is not None and row.verb_until > now:
        raise Conflict(
            f"the box is busy: {row.verb} is under way", remedy="wait until it is over: ringfence box show U"
        )
    until = now + timedelta(seconds=seconds)
    changed = sa.update(boxes).where(boxes.c.id == box).values(verb=verb, verb_until=until).returning(boxes)
    return box_of(tx.connection.execute(changed).one())


def _row(connection: Connection, box: BoxId) -> Row[Any]:
    row = owned_row(connection.execute(_BY_ID, {"which": box}).one_or_none(), id=box) if storable(box) else None
    if row is None:
        raise NotFound(f"no such box: {box!r}", remedy="ringfence box ls")
    return row


def _home(connection: Connection, user: UserId) -> Box | None:
    """NotFound: the user is removed."""
    home = find_home(connection, user, _HOME_OF_LIVE)
    if home is None:
        find_user_by_id(connection, user)
    return home


def find_home(connection: Connection, user: UserId, query: sa.Select[Any] = _HOME_OF) -> Box | None:
    found = connection.execute(query, {"whose": user}).one_or_none() if storable(user) else None
    row = owned_row(found, user=user)
    return None if row is None else box_of(row)


def _add(tx: Tx, user: UserId, kind: BoxKind, driver: str, limits: Limits) -> Box:
    owner = find_user_by_id(tx.connection, user)
    values = {
        "id": tx.world.ids.box(),
        "tenant": owner.tenant,
        "user": owner.id,
        "kind": kind.value,
        "driver": driver,
        "desired": Desired.STOPPED.value,
        "observed": Observed.ABSENT.value,
        "uid": 0,
        "limits": asdict(limits),
        "image": "",
        "generation": 0,
        "created_at": tx.now(),
        "installation": tx.world.installation,
    }
    return box_of(tx.connection.execute(sa.insert(boxes).values(**values).returning(boxes)).one())
