"""What is read of an image, whatever stands in it."""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from ringfence.spawner import superblock


def raw(**at: tuple[int, str, int]) -> bytes:
    """A superblock of 16384 blocks of 4096 bytes in one group, with these (offset, format, value)."""
    data = bytearray(superblock.SIZE)
    usual = [(0x38, "H", 0xEF53), (0x18, "I", 2), (0x4, "I", 16384), (0x20, "I", 32768), (0xCE, "H", 3)]
    for offset, kind, value in (*usual, *at.values()):
        struct.pack_into(f"<{kind}", data, offset, value)
    return bytes(data)


def test_size_and_reach() -> None:
    """32 bytes of descriptor for a group of 128 MiB: a block has 128, and there are 1 + 3."""
    assert superblock.of(raw()) == superblock.Shape(64 << 20, 4 * 128 * 32768 * 4096)
    assert superblock.of(raw(magic=(0x38, "H", 1))) is None
    assert superblock.of(raw(block=(0x18, "I", 0xFFFFFFF0))) is None
    assert superblock.of(raw(wide=(0x60, "I", 0x80), descriptor=(0xFE, "H", 8192))) is None


@given(st.binary(min_size=superblock.SIZE, max_size=superblock.SIZE))
@example(b"")
def test_nothing_breaks_it(data: bytes) -> None:
    marked = bytearray(data.ljust(superblock.SIZE, b"\0"))
    struct.pack_into("<H", marked, 0x38, 0xEF53)
    struct.pack_into("<I", marked, 0x18, 2)
    for given_data in (data, bytes(marked)):
        found = superblock.of(given_data)
        assert found is None or 0 < found.size <= found.reach
