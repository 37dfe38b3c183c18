"""The price of a commit on this host, and how many of them something took.

A probe of its own beside the server's database, made as the server makes it (WAL, synchronous=FULL), and the count of
commits in the server's write-ahead log, read from outside. Must never open the server's database itself.
"""

from __future__ import annotations

import sqlite3
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from ringfence.host.store.sqlite_files import WAL, beside

ROW_BYTES = 1000  # about what a step's row has
_HEADER, _FRAME_HEADER = 32, 24  # bytes (sqlite.org/fileformat2.html, section 4.1)
_BIG = ">2I"  # everything in the log's headers is big-endian


class Probe:
    """A database that nobody reads. Blocks."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS probe (row BLOB)")

    def commits(self, count: int) -> list[float]:
        """Milliseconds of each COMMIT."""
        return [self._commit() for _ in range(count)]

    def _commit(self) -> float:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO probe VALUES (zeroblob(?))", (ROW_BYTES,))
        begun = time.perf_counter()
        self._connection.execute("COMMIT")
        return (time.perf_counter() - begun) * 1e3

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Log:
    """How far a write-ahead log is: `salts` change when it starts anew."""

    salts: tuple[int, int]
    commits: int


def log_of(database: Path) -> Log:
    """The frames of the log's present round that end a transaction: those with a size of the database in them."""
    data = beside(database, WAL).read_bytes()
    if len(data) < _HEADER:
        return Log((0, 0), 0)
    (page_size,) = struct.unpack_from(">I", data, 8)
    salts = struct.unpack_from(_BIG, data, 16)
    commits = 0
    for at in range(_HEADER, len(data) - _FRAME_HEADER + 1, _FRAME_HEADER + page_size):
        if struct.unpack_from(_BIG, data, at + 8) != salts:
            break  # left over from the round before
        commits += struct.unpack_from(">I", data, at + 4)[0] != 0
    return Log((salts[0], salts[1]), commits)


def between(before: Log, after: Log) -> int | None:
    """Commits; None when the log was started anew in between."""
    return after.commits - before.commits if before.salts == after.salts else None
