"""Who holds a reader's lock, from the lines of /proc/locks."""

from __future__ import annotations

import pytest

from ringfence.host.store.wal_watch import readers_of


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("1: POSIX  ADVISORY  READ 4711 fe:00:99 124 124", [4711]),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:99 123 123", [4711]),
        ("1: POSIX  ADVISORY  READ 4711 fe:00:98 124 124", []),  # another file
        ("1: POSIX  ADVISORY  READ 4711 fe:00:99 128 128", []),  # it has it open
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:99 120 120", []),  # it writes
        ("1: POSIX  ADVISORY  READ 0 fe:00:99 124 124", []),  # of another pid namespace
        ("1: POSIX  ADVISORY  READ 4711 fe:00:99 0 EOF", []),
        ("1: FLOCK  ADVISORY  WRITE 4711 fe:00:99", []),
        ("", []),
    ],
)
def test_a_line(line: str, found: list[int]) -> None:
    assert readers_of("99", [line]) == found


def test_each_process_once() -> None:
    lines = [f"{n}: POSIX  ADVISORY  READ {pid} fe:00:99 124 124" for n, pid in enumerate((9, 7, 9))]
    assert readers_of("99", lines) == [7, 9]
