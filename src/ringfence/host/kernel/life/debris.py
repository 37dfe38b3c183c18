"""What an installation has left behind on its host and in its store, and what may be done about it. Pure.

The store says which boxes exist. One that it does not know is told and never taken away by itself: it may belong to a store that
is about to be restored. And while the directory of a box that it knows is missing, whatever cannot be told from that box's is
left as it is: a volume that is not mounted looks like a house that was moved out of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from ringfence.host.kernel.boxes import Box, Desired, Observed, Rest
from ringfence.host.kernel.ids import BoxId

MISSING = "the directory of the box is missing"
PUT_IT_BACK = "mount the volume that has it, or put it back; of the whole installation: ringfence backup restore FILE"
OF_STORE = ("box", "row", "user", "snapshot", "reference")  # kinds that the store tells, beside those of a driver


class Deed(StrEnum):
    REMOVED = "removed"
    REPORTED = "reported"  # told and left
    FAILED = "failed"  # it was tried


@dataclass(frozen=True, slots=True)
class Left:
    """One thing; of a box and a kind there is one at most. `ours`: proven to be this installation's and nobody's any more."""

    kind: str
    box: BoxId | None
    what: str
    why: str
    bytes: int = 0
    ours: bool = True
    of_host: str = ""  # what only an operator is told
    id: str = ""  # of what is no box: the row


@dataclass(frozen=True, slots=True)
class Seen:
    """By a driver. `boxes`: those that it has. `ids`: host ids given, held, free, spent, left."""

    found: list[Left] = field(default_factory=list)
    boxes: frozenset[BoxId] = frozenset()
    ids: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    left: Left
    owner: str  # tenant/user; "": nobody is known
    deed: Deed
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        left = self.left
        return {
            "kind": left.kind,
            "what": left.what,
            "box": left.box,
            "owner": self.owner or None,
            "bytes": left.bytes,
            "why": left.why,
            "action": self.deed.value,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Report:
    found: list[Found]
    dry_run: bool
    ids: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        found = [each.as_json() for each in self.found]
        return {"found": found, "dry_run": self.dry_run, "ids": dict(self.ids)}


class References(Protocol):
    """Of the store."""

    async def broken(self) -> list[Left]:
        """Rows that refer to a user, tenant or box that is removed, or that break another rule of `db check` about that."""

    async def end(self, left: Left) -> bool:
        """Ends what of it belongs to somebody who is removed, as his removal would have. Whether the rule holds now."""


def without_row(boxes: Collection[BoxId], rows: Iterable[Box]) -> list[Left]:
    """`rows` are read after the driver was asked, so that a box which is just being made has one."""
    known = {row.id for row in rows}
    why = "the store does not know it: of a database that was put back, or of a removal that was cut short"
    return [Left("box", box, "a box without an owner", why, ours=False) for box in sorted(set(boxes) - known)]


def without_box(boxes: Collection[BoxId], here: Iterable[Box]) -> list[Box]:
    """Rows that say that there is something where the driver has nothing. A packed tree has no directory."""
    return [
        row
        for row in here
        if row.observed is not Observed.ABSENT and row.rest is not Rest.ARCHIVED and row.id not in boxes
    ]


def lost(row: Box) -> Left:
    """Told and left, unless it was to go anyway."""
    if row.desired is Desired.REMOVED:
        return Left("row", row.id, "a row of a removed box", "its directory is gone, and it was to go")
    return Left("row", row.id, "a box without its directory", f"{MISSING}: {PUT_IT_BACK}", ours=False)


def withheld(left: Left, missing: Collection[BoxId]) -> str:
    """Why it is left although it is ours; "": it is not."""
    if missing and (left.box is None or left.box in missing) and left.kind in ("processes", "cgroup"):
        return f"the directory of {len(missing)} box(es) is missing, and this may be of one: see above"
    return ""
