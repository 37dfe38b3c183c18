"""kernel.outward.rolls.Rolls on the database, and how the other nouns of this room ask which of their rows count.

Must never take a row's own word for that: what is read here is judged by `World.seals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.outward.rolls import (
    BINDINGS,
    GRANTS,
    RULES,
    Altered,
    Compared,
    Roll,
    altered,
    compare,
    digest,
)
from ringfence.host.store.database import Database
from ringfence.host.store.generation import generation_of
from ringfence.host.store.outward import LIVE, credential_bindings, credential_grants, egress_rules, rolls
from ringfence.host.store.roll_rows import COLUMNS, news, roll_from, rolls_of
from ringfence.host.store.transaction import Tx

T = TypeVar("T")
Judged = Mapping[str, tuple[Roll, str]]  # by `of`: the roll, and why it does not count
PAGE = 100  # rolls that are signed anew with one look: 100 KiB each at most
_AFTER = sa.select(*COLUMNS).where(rolls.c.of > sa.bindparam("behind")).order_by(rolls.c.of).limit(PAGE)
_RULES = sa.select(
    egress_rules.c.id, egress_rules.c.scope, sa.type_coerce(egress_rules.c.body, sa.Text).label("body")
).where(sa.text(LIVE))
_BINDINGS = sa.select(
    credential_bindings.c.id,
    credential_bindings.c.user,
    credential_bindings.c.credential,
    sa.type_coerce(credential_bindings.c.body, sa.Text).label("body"),
).where(sa.text(LIVE))
_GRANTS = sa.select(credential_grants.c.credential, credential_grants.c.user)


class SqlRolls:
    """kernel.outward.rolls.Rolls."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seals = database.world.seals
        self._generation = 0
        self._known: dict[str, Altered] = {}
        self._fresh: dict[str, Altered] = {}

    # --- for the other nouns -----------------------------------------------------------------------------------------

    async def judged(self, question: Callable[[Connection], tuple[T, Sequence[Roll]]]) -> tuple[T, Judged]:
        """The answer, and the rolls. Unavailable: the vault is sealed."""
        before: list[tuple[str, int]] | None = None
        while True:
            answer, found = await self._database.read(question)
            said = await self._seals.judge(found, await self._of_store())
            editions = [(roll.of, roll.edition) for roll in found]
            # A newer one may have been stored, and noted, since it was read: then it is not put back, but read early.
            if not any(said.values()) or editions == before:
                return answer, {roll.of: (roll, said[roll.of]) for roll in found}
            before = editions

    async def ready(self, *which: str) -> None:
        """Before a write that changes them: the keys that it needs are at hand, and what was seen of them is known."""
        with suppress(Unavailable):  # the write says so, if it needs one
            await self.judged(lambda connection: (None, rolls_of(connection, which)))

    def compared(self, of: str, rows: Mapping[str, str], said: Judged, *, whole: bool = True) -> Compared:
        """Which of the rows count; what does not is noticed, where they are the whole of what is there."""
        found = compare(said[of][0], rows, said[of][1])
        if whole or found.why:
            self._notice(of, _told(of, found))
        return found

    # --- kernel.outward.rolls.Rolls ----------------------------------------------------------------------------------

    async def news(self, after: int | None) -> tuple[int, list[str]]:
        return await self._database.read(lambda connection: news(connection, after))

    async def altered(self) -> list[Altered]:
        def question(connection: Connection) -> tuple[dict[str, dict[str, str]], list[Roll]]:
            rows = _every(connection)
            there = [roll_from(row) for row in connection.execute(sa.select(*COLUMNS))]
            return rows, [*there, *(Roll(of) for of in rows.keys() - {roll.of for roll in there})]

        rows, said = await self.judged(question)
        for of in said:
            self.compared(of, rows.get(of, {}), said)
        return self.known()

    def known(self) -> list[Altered]:
        return [self._known[of] for of in sorted(self._known)]

    def noticed(self) -> list[Altered]:
        found, self._fresh = self._fresh, {}
        return [found[of] for of in sorted(found)]

    async def resign(self) -> Mapping[str, int]:
        counts, present, behind = {"resigned": 0, "left": 0}, [], ""
        while page := await self._page(behind):
            for roll in page:
                await self._resign(roll, counts)
            present += [roll.of for roll in page]
            behind = page[-1].of
        await self._seals.prune(present)
        return counts

    async def _page(self, behind: str) -> list[Roll]:
        rows = await self._database.read(lambda connection: connection.execute(_AFTER, {"behind": behind}).all())
        return [roll_from(row) for row in rows]

    async def _resign(self, roll: Roll, counts: dict[str, int]) -> None:
        """One roll, in a transaction of its own: whenever this ends, each is genuine by the key that it names."""
        new = self._seals.resigned(roll)
        if new is None:
            counts["left"] += 1
            return
        if new.kek == roll.kek:
            return
        exchange = (
            sa.update(rolls)
            .where(rolls.c.of == roll.of, rolls.c.mac == roll.mac, rolls.c.edition == roll.edition)
            .values(kek=new.kek, mac=new.mac)
        )

        def work(tx: Tx) -> int:
            return tx.connection.execute(exchange).rowcount

        counts["resigned"] += await self._database.write(work)
        await self._seals.judge([new], await self._of_store())

    async def _of_store(self) -> int:
        """Its generation, which is another one only when no kernel works."""
        if not self._generation:
            self._generation = await self._database.read(generation_of)
        return self._generation

    def _notice(self, of: str, found: Altered | None) -> None:
        if found is None:
            self._known.pop(of, None)
        elif self._known.get(of) != found:
            self._known[of] = self._fresh[of] = found


def _told(of: str, found: Compared) -> Altered | None:
    """What is missing of bindings and grants opens nothing, and is no more than what was ended while the vault was sealed."""
    told = altered(of, found)
    if told is None or of.startswith(RULES) or told.odd or found.why:
        return told
    return None


def _every(connection: Connection) -> dict[str, dict[str, str]]:
    """Live rows by roll."""
    rows: dict[str, dict[str, str]] = {}

    def add(of: str, name: str, said: str) -> None:
        rows.setdefault(of, {})[name] = said

    for row in connection.execute(_RULES):
        add(RULES + row.scope, *rule_entry(row))
    for row in connection.execute(_BINDINGS):
        add(BINDINGS + row.user, *binding_entry(row))
    for row in connection.execute(_GRANTS):
        add(GRANTS + row.credential, row.user, "")
    return rows


def rule_entry(row: Any) -> tuple[str, str]:
    """(id, what its roll has if it counts)."""
    return row.id, digest(row.id, row.body)


def binding_entry(row: Any) -> tuple[str, str]:
    return row.id, digest(row.id, row.credential, row.body)
