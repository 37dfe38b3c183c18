"""A backup of the whole installation at one point in time: what is in it, and in what order. Values and ports; pure.

The database comes first, then tree after tree: whatever a row says of a tree is true of the tree that is in the backup, as it was
read later. A box that is archived both times is in it as that archive, every other one as its tree, also when it was archived in
between, so that its content is in it once. Between the two a tree may have gone further than the rows know, so a restore takes every run that had begun for one
whose tree is another (store/trees.py): it goes on only where nothing was recorded after its checkpoint. Each tree is read while
nothing of its box moves. Must never name a member by anything but ids that were checked here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

from ringfence.host.kernel.boxes import BoxKind, Limits
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.backup_tar import bad

DATABASE = "database"  # as `db backup` makes it
BOXES = "boxes.json"
SETTINGS = "ringfence.toml"
VAULT = "vault/"
SNAPSHOTS = "snapshots/"
MOST_SMALL = 64 << 20  # bytes of an item that is held as a whole
SEEN = "seen.json"

_TREE = re.compile(r"boxes/([a-z2-7]{16})/tree")
_SNAPSHOT = re.compile(r"snapshots/([a-z]{1,8}_[a-z2-7]{20}\.tar\.(?:gz|zst))")
_VAULT = re.compile(r"vault/((?:audit|master)\.key(?:\.[A-Za-z0-9_-]{1,48})?|seen\.json)")
_COPY = re.compile(r"[a-z]{1,8}_[a-z2-7]{20}")
_FILE = re.compile(r"[a-z]{1,8}_[a-z2-7]{20}\.tar\.(?:gz|zst)")
SUFFIXES = (".tar.zst", ".tar.gz")  # of files of copies


@dataclass(frozen=True, slots=True)
class Wish:
    with_key: bool = False  # of the vault: whoever has the file then has every secret
    snapshots: bool = False  # copies of trees that people asked for; those of archived boxes are there always
    force: bool = False  # ends what is at work in boxes that this host cannot freeze


@dataclass(frozen=True, slots=True)
class Held:
    """A box of the database that is in the backup."""

    id: BoxId
    kind: BoxKind
    limits: Limits
    archive: str = (
        ""  # of one that is archived: the copy that is its tree, where the backup has its file and no tree of the box
    )

    def as_json(self) -> dict[str, Any]:
        limits = {name: getattr(self.limits, name) for name in Limits.__dataclass_fields__}
        return {"id": self.id, "kind": self.kind.value, "limits": limits, "archive": self.archive}


def held_of(said: Any) -> Held:
    """Invalid."""
    try:
        box = Held(BoxId(said["id"]), BoxKind(said["kind"]), Limits(**said["limits"]), said["archive"])
        numbers = [getattr(box.limits, name) for name in Limits.__dataclass_fields__]
        if not re.fullmatch("[a-z2-7]{16}", box.id) or any(type(each) is not int for each in numbers):
            raise ValueError("id or limits")
        if not _COPY.fullmatch(box.archive) and box.archive != "":
            raise ValueError("archive")
        return box
    except (KeyError, TypeError, ValueError) as error:
        raise bad("what it says of a box has another shape") from error


def tree_item(box: BoxId) -> str:
    return f"boxes/{box}/tree"


def box_of(item: str) -> BoxId | None:
    """Whose tree an item is; None: it is none."""
    match = _TREE.fullmatch(item)
    return None if match is None else BoxId(match[1])


def snapshot_of(item: str) -> str | None:
    """The file's name below snapshots/."""
    match = _SNAPSHOT.fullmatch(item)
    return None if match is None else match[1]


def vault_of(item: str) -> str | None:
    """The name of what is to lie in the vault."""
    match = _VAULT.fullmatch(item)
    return None if match is None else match[1]


def is_snapshot_file(name: str) -> bool:
    return _FILE.fullmatch(name) is not None


def check_item(item: str) -> None:
    """Invalid: it is nothing that belongs into a backup."""
    known = item in (DATABASE, BOXES, SETTINGS) or box_of(item) or snapshot_of(item) or vault_of(item)
    if not known:
        raise Invalid(
            f"the backup has something in it that this release does not know: {item}",
            remedy="take the release that made it, which `tar -xOf FILE manifest.json` names",
        )


@dataclass(frozen=True, slots=True)
class Dumped:
    """`file`: the rows, whole, at its beginning. `facts`: of `db backup`; `seen`: of the very same rows, for what follows."""

    file: IO[bytes]
    facts: Mapping[str, Any]
    seen: Mapping[str, Any]


class State(Protocol):
    """What an installation has besides trees. Every method: Unavailable, DiskFull, Failed."""

    @property
    def owners(self) -> frozenset[int]:
        """Uids of those who may have all of it: who runs the server, and root."""

    async def dump(self) -> Dumped:
        """All rows of one moment."""

    async def small(self, with_key: bool) -> list[tuple[str, bytes]]:
        """(item, content): settings, keys, what was seen of the vault."""

    async def file_of(self, snapshot: str) -> str | None:
        """The name below snapshots/ of that copy's file; None: it is not there."""

    def snapshot(self, name: str) -> AsyncGenerator[bytes, None]:
        """A file below snapshots/, in pieces: as it was when the first of them was taken, also when it is removed. NotFound."""
