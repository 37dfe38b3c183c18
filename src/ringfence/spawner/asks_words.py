"""The request for what boxes' PID 1 have said, and its answer. protocol.py names them again. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Said:
    """What every box's PID 1 has written to stderr since this was asked last; nothing is told twice. `box`, or "": one that an
    earlier server started, which is heard again from now on."""

    op: ClassVar[str] = "said"
    box: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """Lines of printable characters. `dropped`: bytes between head and tail."""

    box: str
    head: str
    tail: str
    dropped: int


@dataclass(frozen=True, slots=True)
class Heard:
    said: list[Words]
    more: bool  # ask again
