"""Whether a chain of the audit is whole: rows in, findings out. Pure: reads nothing, so that memory stays that of a row.

The first thing that is wrong in a chain ends its walk: what follows a broken row cannot be told from it. Must never take a
row's word for what its place in the chain says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ringfence.host.kernel.audit import (
    FIRST_CHAIN,
    GENESIS,
    OPEN,
    AuditRow,
    Head,
    Keys,
    Lane,
    hash_of,
    head_mac,
    row_mac,
    same,
)
from ringfence.host.kernel.errors import Invalid

UNREADABLE = (
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    Invalid,
)  # of a column with a value of another type
MAX_FINDINGS = 1000  # of one walk; a chain has at most one


class Wrong(StrEnum):
    """What a finding says of its row."""

    MISSING = "missing"  # taken out of the middle
    CUT = "cut"  # the newest rows are gone
    UNLINKED = "unlinked"  # does not follow from the row before: put in, moved or exchanged
    CHANGED = "changed"  # is not what its hash says, or cannot be read as a row
    FORGED = "forged"  # its hash was made without the key
    SURPLUS = "surplus"  # behind the head
    HEAD = "head"  # the head was changed, or made without the key
    KEY = "key"  # a chain of a key that is not here, or of none
    UNKNOWN = "unknown_chain"  # rows of a chain that was never opened
    GONE = "missing_chain"  # another chain names it, and it is not there
    ROLLED_BACK = "rolled_back"  # the database is older than what was seen outside it


@dataclass(frozen=True, slots=True)
class Finding:
    chain: str
    seq: int  # the first bad row; 0: the chain as a whole
    wrong: Wrong
    what: str

    def as_json(self) -> dict[str, Any]:
        return {"chain": self.chain, "seq": self.seq, "wrong": self.wrong.value, "what": self.what}


@dataclass(frozen=True, slots=True)
class Named:
    """A row of `chain` as it was seen by somebody else."""

    chain: str
    seq: int
    hash: str
    by: str  # id of the row that says so, or where else it was kept


@dataclass(slots=True)
class ChainCheck:
    """A walk along one chain. Feed it every row in the order of seq, then `end`."""

    head: Head
    keys: Keys
    seq: int = field(init=False)
    hash: str = field(init=False)
    finding: Finding | None = field(init=False, default=None)
    _key: bytes = field(init=False, repr=False, default=b"")

    def __post_init__(self) -> None:
        self.seq, self.hash = self.head.cut_seq, self.head.cut_hash or GENESIS
        self.finding = self._head_finding()

    def _head_finding(self) -> Finding | None:
        if self.head.chain == FIRST_CHAIN and not self.head.mac:
            return None  # of a database that no kernel of this release has opened yet
        key = self.keys.by_id(self.head.key)
        if key is None:
            return self._says(0, Wrong.KEY, f"made with the key {self.head.key}, which is not in this vault")
        if not key and self.keys.mine:
            return self._says(0, Wrong.KEY, "made without a key: anybody who writes to the database can have made it")
        self._key = key
        if not same(self.head.mac, head_mac(key, self.head)):
            return self._says(0, Wrong.HEAD, "its head was changed, or made without the key")
        return None

    @property
    def done(self) -> bool:
        """Nothing more is to be learned of it by walking on."""
        return self.finding is not None and self.finding.seq > 0

    def feed(self, row: AuditRow) -> None:
        if self.done:
            return
        try:
            found = self._row_finding(row)
        except UNREADABLE:
            found = self._unreadable()
        if found is not None:
            self.finding = found  # the row says more than its head
            return
        self.seq, self.hash = row.seq, row.hash

    def _row_finding(self, row: AuditRow) -> Finding | None:
        due = self.seq + 1
        if row.seq != due:
            return self._says(due, Wrong.MISSING, f"rows {due} to {row.seq - 1} are missing")
        if row.previous != self.hash:
            return self._says(due, Wrong.UNLINKED, "does not follow from the row before it")
        if not same(row.hash, hash_of(row)):
            return self._says(due, Wrong.CHANGED, "is not what its hash says")
        if row.chain == FIRST_CHAIN:
            return None  # made before there was a key
        if due == 1 and (row.lane, row.action) != (Lane.CHAIN, OPEN):
            return self._says(due, Wrong.UNLINKED, "a chain that does not begin with its opening")
        if self._key and not same(row.mac, row_mac(self._key, row.chain, row.seq, row.hash)):
            return self._says(due, Wrong.FORGED, "its hash was made without the key")
        return None

    def unreadable(self) -> None:
        """The next row is there, and is none: a column holds what no kernel writes there."""
        if not self.done:
            self.finding = self._unreadable()

    def _unreadable(self) -> Finding:
        return self._says(self.seq + 1, Wrong.CHANGED, "cannot be read: a column holds what does not belong there")

    def end(self) -> Finding | None:
        """After the last row: the first bad row, or None."""
        if self.done:
            return self.finding
        if self.seq < self.head.seq:
            return self._says(self.seq + 1, Wrong.CUT, f"rows {self.seq + 1} to {self.head.seq} were cut off")
        if self.seq > self.head.seq:
            return self._says(self.head.seq + 1, Wrong.SURPLUS, "behind the head of its chain: put in afterwards")
        if self.hash != self.head.hash:
            return self._says(self.seq, Wrong.HEAD, "is not the row that the chain's head names")
        return self.finding

    def _says(self, seq: int, wrong: Wrong, what: str) -> Finding:
        return Finding(self.head.chain, seq, wrong, what)


def names_in(row: AuditRow) -> Iterator[Named]:
    """The rows of other chains that a row of the lane `chain` signs."""
    heads = row.details.get("heads") if row.lane == Lane.CHAIN else None
    if not isinstance(heads, Mapping):
        return
    for chain, named in heads.items():
        if isinstance(named, list) and len(named) == 2 and isinstance(named[0], int):
            yield Named(str(chain), named[0], str(named[1]), row.id)


def judged(named: Named, head: Head | None, found: str | None) -> Finding | None:
    """What somebody else saw of a row against what is there: `found`, its hash; None: no such row."""
    if named.seq == 0 or (head is not None and named.seq < head.cut_seq):
        return None  # nothing was seen, or retention has taken it since
    if head is None:
        return Finding(named.chain, 0, Wrong.GONE, f"{named.by} names its row {named.seq}, and the chain is not there")
    if head.cut_seq == named.seq:
        found = head.cut_hash
    if found is None:
        return Finding(named.chain, named.seq, Wrong.CUT, f"{named.by} names this row, and it is not there")
    if found != named.hash:
        return Finding(named.chain, named.seq, Wrong.FORGED, f"{named.by} names another row in its place")
    return None


@dataclass(slots=True)
class Unchecked:
    """Chains of another installation on the same database: their links and hashes are looked at, their MACs cannot be."""

    key: str  # id of the key that is not here
    installation: str  # as the database says; empty: nobody knows any more
    chains: int = 0

    @property
    def says(self) -> str:
        of = f"installation {self.installation}" if self.installation else "an installation that is not known here"
        chains = f"{self.chains} chain{'s' if self.chains != 1 else ''}"
        return (
            f"{chains} of {of} (key {self.key}) cannot be checked here: "
            "copy its vault/audit.key to vault/audit.key.NAME of this one"
        )


@dataclass(slots=True)
class Report:
    """What a walk along all chains found."""

    rows: int = 0
    chains: int = 0
    first: dict[str, Finding] = field(default_factory=dict)  # by chain: its first bad row
    notes: list[str] = field(default_factory=list)
    open: list[Head] = field(default_factory=list)  # chains that no other has closed
    unchecked: dict[tuple[str, str], Unchecked] = field(default_factory=dict)  # by key and installation

    @property
    def ok(self) -> bool:
        """What nobody could check is not broken, and not well either."""
        return not self.first and not self.unchecked

    def leave(self, head: Head, installation: str) -> None:
        """A chain of another installation whose key is not here."""
        kept = self.unchecked.setdefault((head.key, installation), Unchecked(head.key, installation))
        kept.chains += 1

    def add(self, finding: Finding | None) -> None:
        """Keeps the first bad row of each chain: one that names a row before one that speaks of the whole."""
        if finding is None:
            return
        kept = self.first.get(finding.chain)
        if kept is None and len(self.first) >= MAX_FINDINGS:
            return
        if kept is None or (finding.seq > 0 and (kept.seq == 0 or finding.seq < kept.seq)):
            self.first[finding.chain] = finding

    def as_json(self) -> dict[str, Any]:
        """`{"ok", "rows", "chains", "findings": [{"chain", "seq", "wrong", "what"}], "notes": [text],
        "open": [{"chain", "seq", "hash"}], "unchecked": [{"key", "installation", "chains", "says"}]}`."""
        return {
            "ok": self.ok,
            "rows": self.rows,
            "chains": self.chains,
            "findings": [self.first[chain].as_json() for chain in sorted(self.first)],
            "notes": list(self.notes),
            "open": [{"chain": head.chain, "seq": head.seq, "hash": head.hash} for head in self.open],
            "unchecked": [
                {"key": one.key, "installation": one.installation, "chains": one.chains, "says": one.says}
                for _, one in sorted(self.unchecked.items())
            ],
        }
