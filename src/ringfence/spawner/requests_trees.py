"""Requests about a box's whole tree. Data only; protocol.py names them again, as part of all that may be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ringfence.spawner.bounds import Limits


@dataclass(frozen=True, slots=True)
class Pack:
    """An archive (archive.py) of a box that is stopped or frozen comes through the stream socket of the reply, in chunks of the
    files wire; behind its end `{"ok": {"entries", "bytes", "left_out": {kind: count}}}`. Refused: it runs."""

    op: ClassVar[str] = "pack"
    box: str


@dataclass(frozen=True, slots=True)
class Unpack:
    """Takes an archive, in chunks through the stream socket of the reply, into an empty tree beside that of a stopped box, of
    these disk, inodes and fsize. Answered there, as `pack`, once all of it is on disk, or with an error as soon as there is
    one. Nothing changes for the box."""

    op: ClassVar[str] = "unpack"
    box: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Settle:
    """The tree beside that of a stopped box takes its place, and the old one is deleted; Refused: no unpacking came to its end
    well. Or, not `whole`, it is thrown away: idempotent, whatever is there. `limits`: of the tree that stays."""

    op: ClassVar[str] = "settle"
    box: str
    limits: Limits
    whole: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """An empty tree takes the place of that of a stopped box. Refused: it runs."""

    op: ClassVar[str] = "reset"
    box: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Repair:
    """What bounds the tree of a stopped box: its image is checked and mended, its quota set to these limits."""

    op: ClassVar[str] = "repair"
    box: str
    limits: Limits
