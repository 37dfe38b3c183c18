"""kernel.life.exporting.Exporting on the database. Reads only; each page is found by a key, so that the last takes no longer
than the first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.ids import RunId, ThreadId, UserId
from ringfence.host.kernel.life.exporting import PAGE, STEPS, Place, Removal
from ringfence.host.store.credential_rows import LIVE_CREDENTIAL
from ringfence.host.store.database import Database
from ringfence.host.store.ledger import gates
from ringfence.host.store.outward import credential_bindings, credential_grants, credentials, egress_rules
from ringfence.host.store.owned import owned
from ringfence.host.store.schema import LIVE, members, messages, runs, steps, threads, tokens, users

_USER: sa.BindParameter[str] = sa.bindparam("whose")
_MINE = sa.select(members.c.thread).where(members.c.user == _USER)
_WORKED = sa.select(runs.c.thread).where(runs.c.actor == _USER).distinct()
_PLACES = (
    sa.select(threads)
    .where(threads.c.removed_at.is_(None), sa.or_(threads.c.id.in_(_MINE), threads.c.id.in_(_WORKED)))
    .order_by(threads.c.id)
)
_MEMBERS = (
    sa.select(members.c.thread, users.c.id, users.c.name)
    .join(users, sa.and_(users.c.id == members.c.user, users.c.removed_at.is_(None)))
    .where(members.c.thread.in_(_MINE))
    .order_by(users.c.name)
)
_MESSAGES = (
    sa.select(*(messages.c[name] for name in ("id", "thread", "turn", "author", "author_name", "text", "cursor")))
    .add_columns(messages.c.attachments, messages.c.steer, messages.c.created_at)
    .where(
        messages.c.thread == sa.bindparam("in_thread"), messages.c.cursor > sa.bindparam("after", type_=sa.BigInteger)
    )
    .order_by(messages.c.cursor)
    .limit(PAGE)
)
_OWN_MESSAGES = _MESSAGES.where(messages.c.author == _USER)
_RUN = (
    "id",
    "turn",
    "thread",
    "actor",
    "state",
    "reason",
    "attempts",
    "worked",
    "created_at",
    "started_at",
    "ended_at",
)
_RUNS = (
    sa.select(*(runs.c[name] for name in _RUN))
    .where(runs.c.actor == _USER, runs.c.id > sa.bindparam("after"))
    .order_by(runs.c.id)
    .limit(PAGE)
)
_STEPS = (
    sa.select(steps.c.run, steps.c.n, steps.c.tool, steps.c.arguments, steps.c.effect, steps.c.state, steps.c.result)
    .add_columns(steps.c.begun_at, steps.c.ended_at, runs.c.actor)
    .join(runs, runs.c.id == steps.c.run)
    .where(
        steps.c.run == sa.bindparam("of_run"),
        runs.c.actor == _USER,
        steps.c.n > sa.bindparam("after", type_=sa.BigInteger),
    )
    .order_by(steps.c.n)
    .limit(STEPS)
)
_GATE = ("id", "run", "n", "user", "kind", "tool", "arguments", "state", "reason", "answer")
_GATES = (
    sa.select(*(gates.c[name] for name in _GATE))
    .add_columns(gates.c.created_at, gates.c.expires_at, gates.c.answered_at)
    .where(gates.c.run == sa.bindparam("of_run"), gates.c.user == _USER)
    .order_by(gates.c.created_at, gates.c.id)
)
_LIVE_RUNS = sa.select(runs.c.id).where(runs.c.actor == _USER, sa.text(LIVE)).order_by(runs.c.id)
_SAID = sa.select(sa.func.count()).select_from(messages).where(messages.c.author == _USER)
_TOKENS = sa.select(sa.func.count()).where(tokens.c.user == _USER, tokens.c.removed_at.is_(None))
_BINDINGS = sa.select(sa.func.count()).where(
    credential_bindings.c.user == _USER, credential_bindings.c.removed_at.is_(None)
)
_RULES = sa.select(sa.func.count()).where(egress_rules.c.user == _USER, egress_rules.c.removed_at.is_(None))
_STORED = sa.select(credentials.c.name).where(
    credentials.c.user == _USER, LIVE_CREDENTIAL, credentials.c.kind != "authority"
)
_LENT = (
    sa.select(credentials.c.name)
    .join(credential_grants, credential_grants.c.credential == credentials.c.id)
    .where(credential_grants.c.user == _USER, LIVE_CREDENTIAL)
)


class SqlExporting:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def places(self, user: UserId) -> list[Place]:
        return await self._database.read(lambda connection: _places(connection, user))

    async def messages(self, place: Place, user: UserId, after: int) -> list[dict[str, Any]]:
        query = _MESSAGES if place.member else _OWN_MESSAGES
        keys = {"thread": place.id} if place.member else {"thread": place.id, "author": user}
        asked = {"in_thread": place.id, "after": after} | ({} if place.member else {"whose": user})

        def question(connection: Connection) -> list[dict[str, Any]]:
            if place.member and not _still(connection, place.id, user):
                return []
            return [_plain(row, {"author"}) for row in owned(connection.execute(query, asked), **keys)]

        return await self._database.read(question)

    async def runs(self, user: UserId, after: str) -> list[dict[str, Any]]:
        return await self._page(_RUNS, {"whose": user, "after": after}, {"actor": user}, {"actor"})

    async def steps(self, run: RunId, user: UserId, after: int) -> list[dict[str, Any]]:
        asked = {"of_run": run, "whose": user, "after": after}
        return await self._page(_STEPS, asked, {"run": run, "actor": user}, {"actor"})

    async def gates(self, run: RunId, user: UserId) -> list[dict[str, Any]]:
        return await self._page(_GATES, {"of_run": run, "whose": user}, {"run": run, "user": user}, {"user"})

    async def _page(
        self, query: sa.Select[Any], asked: dict[str, Any], keys: dict[str, str], hidden: set[str]
    ) -> list[dict[str, Any]]:
        def question(connection: Connection) -> list[dict[str, Any]]:
            return [_plain(row, hidden) for row in owned(connection.execute(query, asked), **keys)]

        return await self._database.read(question)

    async def removal(self, user: UserId) -> Removal:
        def question(connection: Connection) -> Removal:
            asked, there = {"whose": user}, _places(connection, user)

            def number(query: sa.Select[Any]) -> int:
                return int(connection.execute(query, asked).scalar_one())

            def names(query: sa.Select[Any]) -> list[str]:
                return sorted(connection.execute(query, asked).scalars())

            return Removal(
                box=None,
                threads_alone=sorted(place.name for place in there if place.member and place.alone),
                threads_shared=sorted(place.name for place in there if place.member and not place.alone),
                runs=names(_LIVE_RUNS),
                tokens=number(_TOKENS),
                credentials=names(_STORED),
                grants=names(_LENT),
                rules=number(_RULES),
                bindings=number(_BINDINGS),
                messages=number(_SAID),
            )

        return await self._database.read(question)


def _places(connection: Connection, user: UserId) -> list[Place]:
    asked = {"whose": user}
    beside: dict[str, dict[str, str]] = {}
    for row in connection.execute(_MEMBERS, asked):
        beside.setdefault(row.thread, {})[row.id] = row.name
    found = []
    for row in connection.execute(_PLACES, asked):
        there = beside.get(row.id, {})
        member = user in there
        facts = {"id": row.id, "name": row.name, "parallel": row.parallel, "member": member}
        if member:
            facts |= {"members": list(there.values()), "created_at": row.created_at.isoformat()}
        found.append(Place(ThreadId(row.id), row.name, member, not there.keys() - {user}, facts))
    return found


def _still(connection: Connection, thread: ThreadId, user: UserId) -> bool:
    """Whoever was taken out of the thread meanwhile reads no more of it."""
    query = sa.select(members.c.user).where(members.c.thread == thread, members.c.user == user)
    return connection.execute(query).first() is not None


def _plain(row: Row[Any], hidden: Iterable[str]) -> dict[str, Any]:
    """As JSON, without keys that are there to be checked."""
    left = {name: value for name, value in row._mapping.items() if name not in hidden}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in left.items()}
