"""Who did what, and what left: rows in chains, one chain for each kernel process. Nouns, hashes and MACs; pure.

A row's `hash` is SHA-256 of the hash before it (64 zeroes before the first) and of the canonical JSON of the row; its
`mac` is HMAC-SHA256 of (chain, seq, hash) under the key of the vault. So anybody can follow a chain, and only who has the key
can make a row of it: whoever holds the database alone changes nothing unseen. What a chain cannot show of itself, that its
newest rows were cut off, shows in the other chains, which sign its head (lane `chain`), and in a witness outside the
database.

Must never hold a key longer than a call, and never decide what is to be recorded.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from ringfence.host.kernel.canonical import canonical_json
from ringfence.host.kernel.errors import Invalid

GENESIS = "0" * 64
FIRST_CHAIN = "first"  # of the release that had one chain, in tables of its own
OPEN, SIGN, END, CUT = "audit.open", "audit.sign", "audit.end", "audit.cut"  # the actions of the lane `chain`


class Lane(StrEnum):
    """All but traffic are rows of a chain, durable before their effect. Evidence are release and intent; act says what
    people and the server did; chain is the chains' own."""

    ACT = "act"
    RELEASE = "release"
    INTENT = "intent"
    CHAIN = "chain"
    TRAFFIC = "traffic"


class Outcome(StrEnum):
    """Of an intent, as far as the host knows."""

    DONE = "done"
    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AuditRow:
    chain: str
    seq: int  # from 1, without gaps in its chain
    at: datetime
    lane: str
    actor: Mapping[str, Any] | None
    action: str
    subject: str
    ref: str | None  # of an outcome: the id of its intent
    details: Mapping[str, Any]
    previous: str
    hash: str
    mac: str  # empty: a row without a key

    @property
    def id(self) -> str:
        return row_id(self.chain, self.seq)

    def as_json(self) -> dict[str, Any]:
        at = self.at.isoformat().replace("+00:00", "Z")
        names = ("chain", "seq", "lane", "actor", "action", "subject", "ref", "details", "previous", "hash")
        return {"id": self.id, "at": at, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True)
class Head:
    """Where a chain has come to."""

    chain: str
    generation: int  # of the store when the chain was opened; a restored store has a higher one
    key: str  # id of the key that made its MACs; empty: none
    seq: int
    hash: str
    ended: bool  # by its own process, in order
    closed_by: str | None  # the chain that names its last row
    cut_seq: int  # rows up to this one were taken away by retention
    cut_hash: str  # of that row
    mac: str

    @property
    def named(self) -> list[Any]:
        """How another chain names it."""
        return [self.seq, self.hash]


@dataclass(frozen=True, slots=True)
class Keys:
    """The key of this installation, and those that made older or other hosts' chains."""

    mine: bytes = field(default=b"", repr=False)  # empty: chains without MACs
    others: tuple[bytes, ...] = field(default=(), repr=False)

    def by_id(self, wanted: str) -> bytes | None:
        """None: not one of these. An empty id is no key."""
        return next((key for key in (self.mine, *self.others) if key_id(key) == wanted), b"" if not wanted else None)


def key_id(key: bytes) -> str:
    """16 hex digits that name a key and tell nothing of it; empty for no key."""
    return hashlib.sha256(b"ringfence audit key\0" + key).hexdigest()[:16] if key else ""


def row_id(chain: str, seq: int) -> str:
    return f"{chain}:{seq}"


def parse_row_id(text: str) -> tuple[str, int]:
    """Invalid."""
    chain, _, seq = text.rpartition(":")
    if not chain or not (seq.isascii() and seq.isdigit()) or len(seq) > 18:
        raise Invalid(f"no id of an audit row: {text[:64]!r}", remedy="it looks like krn_...:12")
    return chain, int(seq)


def row_hash(
    previous: str,
    place: tuple[str, int],
    at: datetime,
    lane: str,
    actor: Mapping[str, Any] | None,
    action: str,
    subject: str,
    ref: str | None,
    details: Mapping[str, Any],
) -> str:
    """64 hex digits. Invalid: details that are no JSON."""
    whole = [*place, at.isoformat(timespec="microseconds"), lane, actor, action, subject, ref, details]
    return hashlib.sha256(previous.encode() + canonical_json(whole)).hexdigest()


def hash_of(row: AuditRow) -> str:
    """What the row's hash has to be."""
    if row.chain == FIRST_CHAIN:
        return _first_hash(row)
    place = (row.chain, row.seq)
    return row_hash(row.previous, place, row.at, row.lane, row.actor, row.action, row.subject, row.ref, row.details)


def _first_hash(row: AuditRow) -> str:
    """As the release that had one chain made it."""
    fields = {
        "seq": row.seq,
        "at": row.at.isoformat(timespec="microseconds"),
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "details": row.details,
    }
    return hashlib.sha256(row.previous.encode() + canonical_json(fields)).hexdigest()


def row_mac(key: bytes, chain: str, seq: int, hash_: str) -> str:
    """64 hex digits; empty without a key."""
    return _mac(key, b"row", [chain, seq, hash_])


def head_mac(key: bytes, head: Head) -> str:
    """Never that of a row: else the MAC of row n would be a head that cuts off what came after it."""
    fields = [head.chain, head.generation, head.key, head.seq, head.hash, head.ended, head.closed_by]
    return _mac(key, b"head", [*fields, head.cut_seq, head.cut_hash])


def witness_mac(key: bytes, chain: str, generation: int, seq: int, hash_: str) -> str:
    return _mac(key, b"witness", [chain, generation, seq, hash_])


def same(one: str, other: str) -> bool:
    """In a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def _mac(key: bytes, kind: bytes, fields: list[Any]) -> str:
    return hmac.digest(key, kind + b"\0" + canonical_json(fields), "sha256").hex() if key else ""
