"""Rolls in the store: read, and changed in the transaction of what they are about. Write functions only; and news of such changes.

Must never sign over what it has not found genuine: an alteration would be made right by the next honest change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.outward.rolls import Roll, broken
from ringfence.host.store.outward import outward_news, rolls
from ringfence.host.store.transaction import Tx

# The text as it stands there: who altered it may have left no JSON.
COLUMNS = (
    rolls.c.of,
    rolls.c.edition,
    sa.type_coerce(rolls.c.entries, sa.Text).label("entries"),
    rolls.c.kek,
    rolls.c.mac,
)
_ONE = sa.select(*COLUMNS).where(rolls.c.of == sa.bindparam("which"))
_LOCKED = _ONE.with_for_update()
_SEVERAL = sa.select(*COLUMNS).where(rolls.c.of.in_(sa.bindparam("which", expanding=True)))
_ADD = sa.insert(rolls)
_CHANGE = sa.update(rolls).where(rolls.c.of == sa.bindparam("which"))
_DROP = sa.delete(rolls).where(rolls.c.of == sa.bindparam("which"))
_NEWEST = ""  # of news: the number of the newest of all
_NEXT = (
    sa.update(outward_news)
    .where(outward_news.c.of == _NEWEST)
    .values(n=outward_news.c.n + 1)
    .returning(outward_news.c.n)
)
_FIRST = sa.insert(outward_news).values(of=_NEWEST, n=1)
_NUMBER = sa.select(outward_news.c.n).where(outward_news.c.of == _NEWEST)
_SINCE = sa.select(outward_news.c.of).where(outward_news.c.n > sa.bindparam("behind"), outward_news.c.of != _NEWEST)


def roll_from(row: Row[Any]) -> Roll:
    """Of a row with COLUMNS. What is no roll has entries that no MAC is right for."""
    try:
        said = json.loads(row.entries)
        entries = {str(name): str(value) for name, value in said.items()}
    except (ValueError, AttributeError, TypeError):
        entries = {"": "unreadable"}
    return Roll(row.of, row.edition, entries, row.kek, row.mac)


def roll_of(connection: Connection, of: str, *, lock: bool = False) -> Roll:
    """Edition 0: there is none. `lock`: nobody else changes it before our commit."""
    row = connection.execute(_LOCKED if lock else _ONE, {"which": of}).one_or_none()
    return Roll(of) if row is None else roll_from(row)


def rolls_of(connection: Connection, which: Iterable[str]) -> list[Roll]:
    """Of each, as `roll_of`."""
    wanted = sorted(set(which))
    there = {row.of: roll_from(row) for row in connection.execute(_SEVERAL, {"which": wanted})} if wanted else {}
    return [there.get(of) or Roll(of) for of in wanted]


def enter(tx: Tx, of: str, entries: Mapping[str, str], among: Callable[[], Collection[str]] | None = None) -> None:
    """These count from now on. `among`: ids of the rows that there are; what else is named goes, and a roll that is not genuine is
    made anew when there are no others: none of what is lost denied anything. Broken. Unavailable: the vault is sealed."""
    roll = roll_of(tx.connection, of, lock=True)
    there = None if among is None else among()  # with the roll locked: what another kernel has added is among them
    if not tx.world.seals.genuine(roll):
        tx.world.seals.sign(roll)  # sealed: that is why
        if there is None or {*there} - entries.keys():
            raise broken(of)
        roll = replace(roll, entries={})
    kept = {name: said for name, said in roll.entries.items() if there is None or name in there}
    _put(tx, roll, {**kept, **entries})


def strike(tx: Tx, of: str, gone: Collection[str], left: Callable[[], bool]) -> None:
    """These do not count any more. `left`: whether rows of it are there still; a roll that is not genuine is made anew when there
    are none. Sealed: the roll stays as it is, and its rows are gone all the same."""
    roll, seals = roll_of(tx.connection, of, lock=True), tx.world.seals
    try:
        if seals.genuine(roll):
            kept = {name: said for name, said in roll.entries.items() if name not in gone}
            if len(kept) < len(roll.entries):
                _put(tx, roll, kept)
        elif not left():
            _put(tx, roll, {})
    except Unavailable:
        pass
    tell(tx, of)


def drop(tx: Tx, of: str) -> None:
    """Whose it is has gone for good."""
    tx.connection.execute(_DROP, {"which": of})
    tell(tx, of)


def _put(tx: Tx, before: Roll, entries: Mapping[str, str]) -> None:
    seals, of = tx.world.seals, before.of
    roll = seals.sign(Roll(of, max(before.edition + 1, seals.least(of)), entries))
    values = {"edition": roll.edition, "entries": dict(roll.entries), "kek": roll.kek, "mac": roll.mac}
    if before.edition:
        tx.connection.execute(_CHANGE, {"which": of, **values})
    else:
        tx.connection.execute(_ADD, {"of": of, **values})
    tell(tx, of)


# --- news ------------------------------------------------------------------------------------------------------------


def tell(tx: Tx, of: str) -> None:
    """Other kernels, once this is committed. The row of the newest number is locked until then, so numbers are seen in order."""
    number = tx.connection.execute(_NEXT).scalar_one_or_none()
    if number is None:
        tx.connection.execute(_FIRST)
        number = 1
    tx.connection.execute(tx.world.dialect.upsert(outward_news, ["of"]), {"of": of, "n": number})


def news(connection: Connection, after: int | None) -> tuple[int, list[str]]:
    newest = connection.execute(_NUMBER).scalar_one_or_none() or 0
    if after is None or newest == after:
        return newest, []
    if newest < after:  # put back: whatever was told since is not there
        after = 0
    return newest, list(connection.execute(_SINCE, {"behind": after}).scalars())
