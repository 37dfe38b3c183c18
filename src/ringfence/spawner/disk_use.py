"""What a box's tree uses, and the volume of all of them, as they are told to the kernel. Looks only."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ringfence.spawner import disk_parts
from ringfence.spawner.protocol import DiskBy

STUCK = "the box's disk image turned read-only after an error"
WHEN = "it is mounted anew when the box stops or starts and nothing else has it"


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes and inodes of one tree now; -1: not known without a walk."""

    by: DiskBy
    used: int = -1
    free: int = -1
    inodes: int = -1
    inode_limit: int = 0
    problem: str = ""  # why the image cannot be used
    holder: str = ""  # who of the host keeps it so


@dataclass(frozen=True, slots=True)
class Volume:
    """The one that holds all boxes. Bytes."""

    free: int
    promised: int  # that images may still grow by
    reserve: int
    broken: list[str]  # boxes whose image is known to be of no use, 20 at most


def of_image(box: int, problem: str, holder: str = "") -> Use:
    """Of one that is mounted. `problem`, `holder`: what is known of it already."""
    seen = os.statvfs(disk_parts.tree_path(box))
    used = (seen.f_blocks - seen.f_bfree) * seen.f_frsize
    if not problem and disk_parts.looks_read_only(box):
        problem = f"{STUCK}; {WHEN}"
    return Use("image", used, seen.f_bavail * seen.f_frsize, seen.f_files - seen.f_ffree, seen.f_files, problem, holder)
