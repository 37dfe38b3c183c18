"""Retention of the audit: takes the oldest rows of chains away, and signs what it took.

A chain keeps the hash of the last row that was taken, so what is left still follows from it. Must never take a row of a chain
that another process writes, nor of one whose head the key did not make.
"""

from __future__ import annotations

from collections.abc import Set
from datetime import datetime
from itertools import takewhile
from typing import Any

import sqlalchemy as sa

from ringfence.host.kernel.audit import CUT, FIRST_CHAIN, Head, Lane
from ringfence.host.store.audit_chain import Chain, Draft, free_head
from ringfence.host.store.schema import audit, audit_chains, audit_rows
from ringfence.host.store.transaction import Tx


def cut(tx: Tx, chain: Chain, before: datetime, limit: int) -> int:
    """Rows that went: older than `before`, `limit` at the most, each chain's oldest first."""
    mine = chain.open(tx, {}).chain
    taken: dict[str, list[Any]] = {}
    rows, seen, names = 0, set[str](), [FIRST_CHAIN]
    while names and rows < limit:
        for name in names:
            head = free_head(tx, name)
            if head is None or not (head.closed_by is not None or name == mine) or not chain.genuine(head):
                continue
            went, last = _cut_one(tx, head, before, limit - rows)
            if last is not None:
                chain.take_away(tx, head, *last)
                taken[name], rows = list(last), rows + went
        seen.update(names)
        names = _oldest(tx, _ours(chain, mine), seen, before, limit)
    if taken:
        details = {"before": before.isoformat(), "rows": rows, "cut": taken}
        chain.append(tx, Draft(Lane.CHAIN, None, CUT, "audit", details))
    return rows


def _ours(chain: Chain, mine: str) -> sa.ColumnElement[bool]:
    """Of the chains: written by nobody else, under a key that is here."""
    nobody_else = sa.or_(audit_chains.c.closed_by.is_not(None), audit_chains.c.chain == mine)
    return sa.and_(nobody_else, audit_chains.c.key.in_(chain.key_ids))


def _oldest(tx: Tx, ours: sa.ColumnElement[bool], seen: Set[str], before: datetime, limit: int) -> list[str]:
    """Chains of the oldest rows, beside those that were `seen`. Of `ours` only: however many rows of others are older, they
    stand in nobody's way."""
    some = (
        sa.select(audit_rows.c.chain)
        .join(audit_chains, audit_chains.c.chain == audit_rows.c.chain)
        .where(audit_rows.c.at < before, ours, audit_rows.c.chain.not_in(sorted(seen)))
        .order_by(audit_rows.c.at)
        .limit(limit)
    )
    return sorted(set(tx.connection.execute(some).scalars()))


def _cut_one(tx: Tx, head: Head, before: datetime, limit: int) -> tuple[int, tuple[int, str] | None]:
    """How many rows went, and the last of them."""
    table: sa.Table = audit if head.chain == FIRST_CHAIN else audit_rows
    own = sa.true() if head.chain == FIRST_CHAIN else audit_rows.c.chain == head.chain
    query = sa.select(table.c.seq, table.c.at, table.c.hash).where(own, table.c.seq > head.cut_seq)
    found = tx.connection.execute(query.order_by(table.c.seq).limit(max(limit, 0))).all()
    old = list(takewhile(lambda row: row.at < before, found))
    if not old:
        return 0, None
    last = old[-1]
    tx.connection.execute(sa.delete(table).where(own, table.c.seq <= last.seq))
    return len(old), (last.seq, last.hash)
