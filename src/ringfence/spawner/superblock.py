"""What an ext4 image says of itself, read from its superblock (Documentation/filesystems/ext4/super.rst). Pure but for
one read. It was written by mkfs, the host's kernel or e2fsprogs, never by a box; what does not add up is said all the same.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

OFFSET, SIZE = 1024, 1024
_MAGIC = 0xEF53
_64BIT = 0x80  # s_feature_incompat
_LEAST_DESCRIPTOR, _MOST_DESCRIPTOR = 32, 1024
BLOCK = 4096  # the one size that images are made with, and a sector of their devices
_LOG_BLOCK = 2  # 1024 << 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Bytes of the file system, and how many it can grow to with the room for group descriptors that it has."""

    size: int
    reach: int


def read(image: int) -> Shape | None:
    """None: no ext4 of ours. Raises OSError."""
    return of(os.pread(image, SIZE, OFFSET))


def of(raw: bytes) -> Shape | None:
    if len(raw) < SIZE or _number(raw, 0x38, "H") != _MAGIC or _number(raw, 0x18, "I") != _LOG_BLOCK:
        return None
    wide = _number(raw, 0x60, "I") & _64BIT
    blocks = _number(raw, 0x4, "I") | (_number(raw, 0x150, "I") << 32 if wide else 0)
    descriptor = max(_LEAST_DESCRIPTOR, _number(raw, 0xFE, "H")) if wide else _LEAST_DESCRIPTOR
    group = _number(raw, 0x20, "I")
    if not blocks or not group or descriptor > _MOST_DESCRIPTOR:
        return None
    each = BLOCK // descriptor * group  # blocks that one block of descriptors is enough for
    # Growing takes a reserved block for each that it adds, so that the sum stays what it was made with.
    room = -(-blocks // each) + _number(raw, 0xCE, "H")
    return Shape(blocks * BLOCK, max(blocks, room * each) * BLOCK)


def _number(raw: bytes, at: int, kind: str) -> int:
    value: int = struct.unpack_from(f"<{kind}", raw, at)[0]
    return value
