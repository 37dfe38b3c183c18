"""Copies of a box's tree: what is kept of one, and the ports behind which they are made, kept and put back.

A copy holds home and workspace, nothing of /tmp, /run or memory, and nothing of the box's identity, which is not in its tree. Its
file is an archive that is taken for hostile whenever it is read, whoever made it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from ringfence.host.kernel.boxes import Box, Limits
from ringfence.host.kernel.ids import BoxId, UserId

MAX_ASKED = (
    32  # copies that are kept of one box, beside the one before its last change; each may be as large as its tree
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


class CopyKind(StrEnum):
    ASKED = "asked"  # by a person
    ARCHIVE = "archive"  # of a box at rest; it is its tree
    BEFORE = "before"  # a reset or restore, so that it can be undone; the newest is kept


@dataclass(frozen=True, slots=True)
class How:
    """A verb that puts another tree in the place of a box's. `force`: what is at work is ended. `drain`: seconds to wait for its end.
    `keep`: a copy of the tree that goes is made first."""

    force: bool = False
    drain: float = 0.0
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Copied:
    """What an archive holds, as the end that made or took it counted."""

    entries: int
    bytes: int  # of content; holes are none
    left_out: Mapping[str, int] = field(default_factory=dict)  # kind of thing -> how many


@dataclass(frozen=True, slots=True)
class Kept:
    """The file of a copy, on disk."""

    stored: int  # bytes
    digest: str  # SHA-256, in hex


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: str
    tenant: str
    user: UserId  # whose tree it is of; who may have it
    box: BoxId
    name: str  # "" when it has none
    kind: CopyKind
    whole: bool  # else it is still made
    image: str
    installation: str  # where its file is
    entries: int
    bytes: int
    stored: int
    digest: str
    created_at: datetime


def is_name(text: str) -> bool:
    return _NAME.match(text) is not None


class Packing(Protocol):
    """The bytes of an archive, which are whole once the iteration has ended without an error. Refused, Failed, DiskFull."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    @property
    def copied(self) -> Copied:
        """Once it has ended."""


class Unpacking(Protocol):
    async def __call__(self, data: AsyncIterator[bytes]) -> Copied:
        """Takes all of an archive; once. It is on disk beside the box's tree when this returns. Refused: something in it is not to be
        had. TooLarge. DiskFull: more than the limits. Errors of `data` come through."""


class Trees(Protocol):
    """What a driver does with the whole tree of a box that does not run. Refused: it runs. Conflict: it is being copied.
    Unavailable, DiskFull, Failed. Killed at any moment, it leaves the box with the old tree or the new one, whole."""

    def pack(self, box: BoxId) -> AbstractAsyncContextManager[Packing]:
        """Also of one that is frozen."""

    def unpack(self, box: BoxId, limits: Limits) -> AbstractAsyncContextManager[Unpacking]:
        """What was taken becomes the box's tree, bounded by `limits`, when the block ends well, and the old one is deleted. Else
        nothing has changed."""

    async def reset(self, box: BoxId, limits: Limits) -> None:
        """An empty tree."""

    async def forget_copy(self, box: BoxId, limits: Limits) -> None:
        """Takes away what an unpacking that was cut short has left beside the box's tree. Idempotent."""

    async def repair(self, box: BoxId, limits: Limits) -> str:
        """What bounds its tree: `clean`, `mended`, `limits` (its quota was set anew), `nothing` (there is nothing)."""


class Shelf(Protocol):
    """Where the files of copies lie, by id. DiskFull, Unavailable, Failed."""

    async def ready(self) -> None:
        """Failed: there is no place for them, and why."""

    async def keep(self, copy: str, data: AsyncIterator[bytes]) -> Kept:
        """On disk, whole, when this returns; errors of `data` come through, and nothing is left then. DiskFull: before it takes what is
        kept back of its volume."""

    def read(self, copy: str, digest: str) -> AsyncGenerator[bytes, None]:
        """To be closed by who does not read it to its end. What was kept. NotFound. Failed: the file is not the one that was kept; nothing of it is given out then."""

    async def check(self, copy: str, digest: str) -> None:
        """NotFound, Failed: as `read`, and nothing is unpacked."""

    async def drop(self, copy: str) -> None:
        """Idempotent."""

    async def ids(self) -> set[str]:
        """Of all files."""

    async def tidy(self) -> None:
        """Takes away what never became whole. Before anything is kept."""


class Snapshots(Protocol):
    """Rows of copies. NotFound. Removed ones are tombstoned."""

    async def begin(self, copy: str, box: Box, kind: CopyKind, name: str) -> Snapshot:
        """Conflict: the user has one of that name, or MAX_ASKED of them."""

    async def whole(self, copy: str, copied: Copied, kept: Kept) -> Snapshot: ...
    async def get(self, copy: str) -> Snapshot: ...
    async def find(self, user: UserId, wanted: str) -> Snapshot:
        """By id or name, a whole one, of that user."""

    async def of(self, user: UserId) -> list[Snapshot]:
        """Whole ones but archives, oldest first."""

    async def archive(self, box: BoxId) -> Snapshot | None: ...
    async def here(self) -> list[Snapshot]:
        """All whose files are on this installation, made or in the making."""

    async def removed(self, copies: Collection[str]) -> set[str]:
        """Those of them that were there and are removed."""

    async def remove(self, copy: str) -> None:
        """Idempotent."""
