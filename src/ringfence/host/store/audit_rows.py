"""Rows and heads of the audit as the tables keep them, and the statements that read them. Must never write.

The chain `first` lies in tables of its own, which a release that had one chain made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.audit import FIRST_CHAIN, AuditRow, Head, Lane, parse_row_id
from ringfence.host.kernel.errors import NotFound
from ringfence.host.store.schema import audit, audit_chains, audit_head, audit_rows
from ringfence.host.store.text import storable

T = TypeVar("T")

_CHAIN: sa.BindParameter[str] = sa.bindparam("of_chain")
_SEQ: sa.BindParameter[int] = sa.bindparam("after_seq")
_MOST: sa.BindParameter[int] = sa.bindparam("at_most")

HEAD = sa.select(audit_chains).where(audit_chains.c.chain == _CHAIN)
_HEADS = sa.select(audit_chains).where(audit_chains.c.chain > _CHAIN).order_by(audit_chains.c.chain).limit(_MOST)
_PAGE = (
    sa.select(audit_rows)
    .where(audit_rows.c.chain == _CHAIN, audit_rows.c.seq > _SEQ)
    .order_by(audit_rows.c.seq)
    .limit(_MOST)
)
_FIRST_PAGE = sa.select(audit).where(audit.c.seq > _SEQ).order_by(audit.c.seq).limit(_MOST)
_HASH = sa.select(audit_rows.c.hash).where(audit_rows.c.chain == _CHAIN, audit_rows.c.seq == _SEQ)
_FIRST_HASH = sa.select(audit.c.hash).where(audit.c.seq == _SEQ)
_NEXT_CHAIN = sa.select(sa.func.min(audit_rows.c.chain)).where(audit_rows.c.chain > _CHAIN)
_OUTCOMES = sa.select(audit_rows).where(audit_rows.c.ref == sa.bindparam("of_intent")).order_by(audit_rows.c.at)


class Reader(Protocol):
    """What can be asked: a store's database, or one that only reads."""

    async def read(self, question: Callable[[Connection], T]) -> T: ...


def head_of(row: Row[Any]) -> Head:
    names = ("chain", "generation", "key", "seq", "hash", "ended", "closed_by", "cut_seq", "cut_hash", "mac")
    return Head(**{name: getattr(row, name) for name in names})


def row_of(row: Row[Any]) -> AuditRow:
    return AuditRow(
        row.chain, row.seq, row.at, row.lane, row.actor, row.action, row.subject, row.ref, row.details,
        row.previous, row.hash, row.mac,
    )  # fmt: skip


def first_row_of(row: Row[Any]) -> AuditRow:
    """Of the one chain of before: all its rows were acts."""
    return AuditRow(
        FIRST_CHAIN, row.seq, row.at, Lane.ACT.value, row.actor, row.action, row.subject, None, row.details,
        row.previous, row.hash, "",
    )  # fmt: skip


def find_head(connection: Connection, chain: str) -> Head | None:
    row = connection.execute(HEAD, {"of_chain": chain}).one_or_none()
    if row is not None:
        return head_of(row)
    return first_head(connection) if chain == FIRST_CHAIN else None


def first_head(connection: Connection) -> Head | None:
    """Where the release with one chain has come to, as it says itself. None: it never wrote."""
    row = connection.execute(sa.select(audit_head)).one_or_none()
    return None if row is None else Head(FIRST_CHAIN, 1, "", row.seq, row.hash, False, None, 0, "", "")


def heads_after(connection: Connection, chain: str, limit: int) -> list[Head]:
    """By name."""
    return [head_of(row) for row in connection.execute(_HEADS, {"of_chain": chain, "at_most": limit})]


def page(connection: Connection, chain: str, after: int, limit: int) -> Sequence[AuditRow]:
    """The rows behind `after`, by their number."""
    which = {"of_chain": chain, "after_seq": after, "at_most": limit}
    if chain == FIRST_CHAIN:
        return [first_row_of(row) for row in connection.execute(_FIRST_PAGE, which)]
    return [row_of(row) for row in connection.execute(_PAGE, which)]


def find_row(connection: Connection, chain: str, seq: int) -> AuditRow | None:
    found = page(connection, chain, seq - 1, 1)
    return found[0] if found and found[0].seq == seq else None


def hash_at(connection: Connection, chain: str, seq: int) -> str | None:
    query = _FIRST_HASH if chain == FIRST_CHAIN else _HASH
    found: str | None = connection.execute(query, {"of_chain": chain, "after_seq": seq}).scalar_one_or_none()
    return found


def next_chain(connection: Connection, after: str) -> str | None:
    """The name of the next chain that has rows, whether it is known or not: one look at an index for each."""
    found: str | None = connection.execute(_NEXT_CHAIN, {"of_chain": after}).scalar_one()
    return found


def outcomes(connection: Connection, intent: str) -> list[AuditRow]:
    """What was recorded of an intent since, oldest first."""
    return [row_of(row) for row in connection.execute(_OUTCOMES, {"of_intent": intent})]


@dataclass(frozen=True, slots=True)
class Wish:
    """Which rows somebody wants to see: newest first, by time, chain and number."""

    lanes: frozenset[Lane]
    since: datetime | None
    before: tuple[datetime, str, int] | None  # the place of the last row of the page before
    limit: int


def newest(connection: Connection, wish: Wish) -> list[AuditRow]:
    rows = [row_of(row) for row in connection.execute(_rows_of(wish))]
    if Lane.ACT in wish.lanes:
        rows += [first_row_of(row) for row in connection.execute(_first_rows_of(wish))]
    rows.sort(key=lambda row: (row.at, row.chain, row.seq), reverse=True)
    return rows[: wish.limit]


def _rows_of(wish: Wish) -> sa.Select[Any]:
    at, chain, seq = audit_rows.c.at, audit_rows.c.chain, audit_rows.c.seq
    query = sa.select(audit_rows).order_by(at.desc(), chain.desc(), seq.desc()).limit(wish.limit)
    query = query.where(audit_rows.c.lane.in_(sorted(wish.lanes)))
    if wish.since is not None:
        query = query.where(at >= wish.since)
    if wish.before is not None:
        when, name, number = wish.before
        query = query.where(
            sa.or_(at < when, sa.and_(at == when, sa.or_(chain < name, sa.and_(chain == name, seq < number))))
        )
    return query


def _first_rows_of(wish: Wish) -> sa.Select[Any]:
    query = sa.select(audit).order_by(audit.c.at.desc(), audit.c.seq.desc()).limit(wish.limit)
    if wish.since is not None:
        query = query.where(audit.c.at >= wish.since)
    if wish.before is not None:
        when, name, number = wish.before
        below = number if name == FIRST_CHAIN else 1 << 62 if name > FIRST_CHAIN else 0
        query = query.where(sa.or_(audit.c.at < when, sa.and_(audit.c.at == when, audit.c.seq < below)))
    return query


async def page_of(
    reader: Reader, lanes: Collection[Lane], since: datetime | None, before: str | None, limit: int
) -> list[dict[str, Any]]:
    """Rows as JSON, newest first; behind the row with the id `before`. NotFound: no such row. Invalid: no id."""
    place = parse_row_id(before) if before is not None else None

    def question(connection: Connection) -> list[dict[str, Any]]:
        behind = None
        if place is not None:
            row = find_row(connection, *place) if storable(place[0]) else None
            if row is None:
                raise NotFound(f"no such row: {before!r}", remedy="ringfence audit ls")
            behind = (row.at, row.chain, row.seq)
        wish = Wish(frozenset(lanes), since, behind, limit)
        return [row.as_json() for row in newest(connection, wish)]

    return await reader.read(question)
