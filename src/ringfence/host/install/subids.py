"""An ordinary user's further host ids: /etc/subuid and /etc/subgid, and the two programs that may use them.

Reads and decides; changes nothing.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Inside the map id 0 is the user, ids below 8 are kept free, and a box takes 8: one box needs 15 further ids.
LEAST = 15
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Range:
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Choice:
    mode: Literal["subuid", "shared"]
    uids: Range | None
    gids: Range | None
    lacks: str  # why it is not subuid, "" when it is
    remedy: str  # the commands that would make it so


def parse(text: str, name: str, uid: int) -> list[Range]:
    """Ranges of one user in a subuid(5) text, by name or by number. Lines that are none are passed over, as the tools do."""
    found = []
    for line in text.splitlines():
        parts = line.strip().split(":")
        if len(parts) == 3 and parts[0] in (name, str(uid)) and parts[1].isdecimal() and parts[2].isdecimal():
            found.append(Range(int(parts[1]), int(parts[2])))
    return [r for r in found if r.count > 0 and r.start > 0 and r.start + r.count <= 1 << 32]


def largest(ranges: list[Range]) -> Range | None:
    return max(ranges, key=lambda r: r.count, default=None)


def choose(name: str, uid: int, *, etc: Path = Path("/etc"), path: str = PATH) -> Choice:
    """How this user's boxes get their ids, and what to do to get own ones."""
    lacks, commands = [], []
    if not (shutil.which("newuidmap", path=path) and shutil.which("newgidmap", path=path)):
        lacks.append("newuidmap and newgidmap are not installed")
        commands.append("apt-get install -y uidmap")
    uids = largest(parse(_text(etc / "subuid"), name, uid))
    gids = largest(parse(_text(etc / "subgid"), name, uid))
    enough = uids is not None and gids is not None and min(uids.count, gids.count) >= LEAST
    if not enough:
        lacks.append(f"{name} has no subordinate ids in /etc/subuid and /etc/subgid")
        commands.append(f"usermod --add-subuids 1000000-1065535 --add-subgids 1000000-1065535 {name}")
    if lacks:
        return Choice("shared", None, None, "; ".join(lacks), "as root: " + " && ".join(commands))
    return Choice("subuid", uids, gids, "", "")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
