"""This process's chain of the audit, written inside the store's transactions: opened, extended, signed, ended.

Only its own process writes to a chain; another one may close it, once it has ended or was not seen for long, and names its
last row when it does. What is written into a closed chain would be unsigned, so a process that was closed opens a new one.
Must never put its own MAC under a head that the key did not make: that would make a forgery good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ringfence.host.kernel.audit import (
    END,
    FIRST_CHAIN,
    GENESIS,
    OPEN,
    SIGN,
    Head,
    Keys,
    Lane,
    head_mac,
    key_id,
    row_hash,
    row_mac,
    same,
)
from ringfence.host.store.audit_rows import HEAD, first_head, head_of
from ringfence.host.store.generation import generation_of
from ringfence.host.store.quick import Quick
from ringfence.host.store.schema import audit_chains, audit_rows
from ringfence.host.store.transaction import Tx

UNSEEN = timedelta(minutes=10)  # a kernel signs once a minute: ten times in a row it did not
_ENDED_NAMED = 16  # chains that were closed before: each is named by the one that closed it already

_LOCKED = HEAD.with_for_update()
_FREE = HEAD.with_for_update(skip_locked=True)
_SET = sa.update(audit_chains).where(audit_chains.c.chain == sa.bindparam("of_chain"))
# A row and its head are part of whatever is released or intended: at the driver (quick.py).
_MINE = Quick(
    sa.select(*(audit_chains.c[name] for name in Head.__dataclass_fields__))
    .where(audit_chains.c.chain == sa.bindparam("of_chain"))
    .with_for_update()
)
_ROW = Quick(sa.insert(audit_rows))
_GROWN = ("seq", "hash", "ended", "mac")
_GROW, _GROW_NEWS = (
    Quick(
        sa.update(audit_chains)
        .where(audit_chains.c.chain == sa.bindparam("of_chain"))
        .values({name: sa.bindparam(f"to_{name}") for name in names})
    )
    for names in (_GROWN, (*_GROWN, "news"))
)
_OTHERS = (
    sa.select(audit_chains)
    .where(audit_chains.c.closed_by.is_(None), audit_chains.c.chain != sa.bindparam("mine"))
    .order_by(audit_chains.c.chain)
)
_CLOSED = (
    sa.select(audit_chains)
    .where(audit_chains.c.closed_by.is_not(None), audit_chains.c.chain != sa.bindparam("mine"))
    .order_by(audit_chains.c.opened_at.desc(), audit_chains.c.chain)
    .limit(_ENDED_NAMED)
)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a row is to say."""

    lane: Lane
    actor: Mapping[str, Any] | None
    action: str
    subject: str
    details: Mapping[str, Any]
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class Signed:
    """What came of a look at the other chains."""

    heads: dict[str, list[Any]] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # their heads are not what the key made

    def details(self) -> dict[str, Any]:
        named: dict[str, Any] = {"heads": self.heads, "closed": self.closed, "refused": self.refused}
        return {name: value for name, value in named.items() if value or name == "heads"}


class Chain:
    def __init__(self, worker: str, keys: Keys) -> None:
        """`worker`: id of this process; empty: one is made with the first row."""
        self._keys = keys
        self._chain = worker
        self._named: dict[str, int] = {}  # heads that this chain has signed: their numbers

    @property
    def name(self) -> str:
        return self._chain

    @property
    def key_ids(self) -> list[str]:
        """Of the keys that are here; empty: of a chain without MACs."""
        return sorted({"", *(key_id(key) for key in (self._keys.mine, *self._keys.others))})

    def append(self, tx: Tx, draft: Draft) -> Head:
        """The chain's head after it. On disk when the transaction is."""
        return self._extend(tx, self._mine(tx) or self._open(tx, {}), draft)

    def open(self, tx: Tx, more: Mapping[str, Any]) -> Head:
        """Opens it unless it is. `more`: of the opening's details."""
        return self._mine(tx) or self._open(tx, more)

    def sign(self, tx: Tx) -> tuple[Head, dict[str, int]]:
        """Names the heads of the others that have news, closes those that have ended. To be told back to `signed` when it
        is on disk: the numbers of the heads that were named."""
        mine = self._mine(tx) or self._open(tx, {})
        signed = self._signed(tx, mine.chain, anew=False)
        if not tx.world.dialect.one_kernel:
            tx.connection.execute(_SET, {"of_chain": mine.chain, "seen_at": tx.lease_now()})
        if not signed.heads:
            return mine, {}
        grown = self._extend(tx, mine, Draft(Lane.CHAIN, None, SIGN, "audit", signed.details()))
        return grown, {chain: named[0] for chain, named in signed.heads.items()}

    def signed(self, names: Mapping[str, int]) -> None:
        self._named.update(names)

    def end(self, tx: Tx) -> Head | None:
        """Its last row, which names the others once more. None: it was never opened, or is over."""
        mine = self._mine(tx)
        if mine is None:
            return None
        signed = self._signed(tx, mine.chain, anew=True)
        return self._extend(tx, mine, Draft(Lane.CHAIN, None, END, "audit", signed.details()), ended=True)

    def take_away(self, tx: Tx, head: Head, through: int, hash_: str) -> None:
        """Moves the start of a chain behind `through`: what is before it may go. The caller holds the head's lock and has
        seen that it is genuine."""
        key = self._keys.by_id(head.key) or b""
        cut = replace(head, cut_seq=through, cut_hash=hash_)
        values = {"cut_seq": cut.cut_seq, "cut_hash": cut.cut_hash, "mac": head_mac(key, cut)}
        tx.connection.execute(_SET, {"of_chain": head.chain, **values})

    def _mine(self, tx: Tx) -> Head | None:
        """Locked. None: it is not open; a name that is used up is dropped."""
        if not self._chain:
            return None
        row = tx.world.dialect.one(tx.connection, _MINE, {"of_chain": self._chain})
        if row is None:
            return None
        chain, generation, key, seq, hash_, ended, closed_by, cut_seq, cut_hash, mac = row
        if ended or closed_by is not None:
            self._chain = ""
            return None
        return Head(chain, generation, key, seq, hash_, False, None, cut_seq, cut_hash, mac)

    def _open(self, tx: Tx, more: Mapping[str, Any]) -> Head:
        self._chain = self._chain or tx.new_id("krn")
        of, key = generation_of(tx.connection), key_id(self._keys.mine)
        head = Head(self._chain, of, key, 0, GENESIS, False, None, 0, "", "")
        values = {name: getattr(head, name) for name in head.__dataclass_fields__}
        times = {"opened_at": tx.now(), "seen_at": tx.lease_now()}
        tx.connection.execute(sa.insert(audit_chains), {**values, **times, "news": 0})
        first, older = self._close_first(tx)
        signed = self._signed(tx, self._chain, anew=True)
        signed.heads.update(first)
        details = {"generation": of, "key": key, **signed.details(), **older, **more}
        return self._extend(tx, head, Draft(Lane.CHAIN, None, OPEN, "audit", details))

    def _extend(self, tx: Tx, head: Head, draft: Draft, ended: bool = False) -> Head:
        seq, at, key = head.seq + 1, tx.now(), self._keys.mine
        said = (draft.lane.value, draft.actor, draft.action, draft.subject, draft.ref, draft.details)
        hash_ = row_hash(head.hash, (head.chain, seq), at, *said)
        lane, actor, action, subject, ref, details = said
        row = {"chain": head.chain, "seq": seq, "at": at, "lane": lane, "actor": actor, "action": action,
               "subject": subject, "ref": ref, "details": details, "previous": head.hash, "hash": hash_,
               "mac": row_mac(key, head.chain, seq, hash_)}  # fmt: skip
        tx.world.dialect.many(tx.connection, _ROW, [row])
        grown = replace(head, seq=seq, hash=hash_, ended=ended)
        grown = replace(grown, mac=head_mac(key, grown))
        values = {"to_seq": seq, "to_hash": hash_, "to_ended": ended, "to_mac": grown.mac}
        if draft.action == SIGN:  # a signature alone is no news: else two kernels would sign each other's for ever
            tx.world.dialect.many(tx.connection, _GROW, [{"of_chain": head.chain, **values}])
        else:
            tx.world.dialect.many(tx.connection, _GROW_NEWS, [{"of_chain": head.chain, **values, "to_news": seq}])
        return grown

    def _signed(self, tx: Tx, mine: str, *, anew: bool) -> Signed:
        """`anew`: all that are not closed, and the newest of those that are; else what has news since it was named."""
        signed = Signed()
        for row in tx.connection.execute(_OTHERS, {"mine": mine}).all():
            head = head_of(row)
            if not self.genuine(head):
                signed.refused.append(row.chain)
            elif self._over(tx, row) and (last := self._close(tx, row.chain, mine)) is not None:
                signed.heads[row.chain] = last.named
                signed.closed.append(row.chain)
            elif anew or row.news > self._named.get(row.chain, 0):
                signed.heads[row.chain] = head.named
        if anew:
            ended = tx.connection.execute(_CLOSED, {"mine": mine}).all()
            signed.heads.update({row.chain: [row.seq, row.hash] for row in ended if self.genuine(head_of(row))})
        return signed

    def _over(self, tx: Tx, row: sa.Row[Any]) -> bool:
        """Whether nobody will write to it any more."""
        return bool(tx.world.dialect.one_kernel or row.ended or row.seen_at < tx.lease_now() - UNSEEN)

    def _close(self, tx: Tx, chain: str, mine: str) -> Head | None:
        """Its last head. None: somebody holds it at this moment, so it is not over."""
        row = tx.connection.execute(_FREE, {"of_chain": chain}).one_or_none()
        if row is None or row.closed_by is not None or not self._over(tx, row):
            return None
        head = head_of(row)
        key = self._keys.by_id(head.key)
        if key is None or not self.genuine(head):
            return None
        closed = replace(head, closed_by=mine)
        tx.connection.execute(_SET, {"of_chain": chain, "closed_by": mine, "mac": head_mac(key, closed)})
        return closed

    def genuine(self, head: Head) -> bool:
        """Whether the key made it."""
        key = self._keys.by_id(head.key)
        return key is not None and same(head.mac, head_mac(key, head))

    def _close_first(self, tx: Tx) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """The one chain of an older release, closed under our key; once more when that release has written since.
        How it is named, and what the opening says of it."""
        told = first_head(tx.connection)
        if told is None:
            return {}, {}
        row = tx.connection.execute(_LOCKED, {"of_chain": FIRST_CHAIN}).one_or_none()
        before = head_of(row) if row is not None else replace(told, seq=0)
        if row is not None and (before.seq >= told.seq or not self.genuine(before)):
            return {}, {}
        key = self._keys.mine
        closed = replace(before, seq=told.seq, hash=told.hash, key=key_id(key), ended=True, closed_by=self._chain)
        closed = replace(closed, mac=head_mac(key, closed))
        times = {"opened_at": tx.now(), "seen_at": tx.lease_now()}
        values = {name: getattr(closed, name) for name in closed.__dataclass_fields__}
        tx.connection.execute(tx.world.dialect.upsert(audit_chains, ["chain"]), {**values, **times, "news": 0})
        since = {"older_release": [before.seq + 1, told.seq]} if row is not None else {}
        return {FIRST_CHAIN: closed.named}, since


def free_head(tx: Tx, chain: str) -> Head | None:
    """Locked. None: it is not there, or somebody else holds it at this moment."""
    row = tx.connection.execute(_FREE, {"of_chain": chain}).one_or_none()
    return head_of(row) if row is not None else None
