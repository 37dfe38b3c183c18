"""Head and tail of an output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfence.guest.kept import HEAD, TAIL, Kept


@given(st.lists(st.integers(0, 300_000), max_size=8))
def test_what_is_kept_is_the_head_and_the_tail(sizes: list[int]) -> None:
    data = b"".join(bytes([65 + n]) * size for n, size in enumerate(sizes))
    kept, start = Kept(), 0
    for size in sizes:
        kept.add(data[start : start + size])
        start += size
    head, tail, dropped = kept.parts()
    assert kept.total == len(data)
    assert len(head) + dropped + len(tail) == len(data)
    assert head == data[:HEAD]
    assert tail == data[HEAD:][-TAIL:]
    assert dropped == max(0, len(data) - HEAD - TAIL)


def test_memory_is_bounded() -> None:
    kept = Kept()
    for _ in range(200):
        kept.add(b"x" * 65_536)
    assert len(kept._head) + len(kept._tail) <= HEAD + 2 * TAIL + 65_536
    assert kept.total == 200 * 65_536
