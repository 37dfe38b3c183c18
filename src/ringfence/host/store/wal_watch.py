"""How large the write-ahead log of SQLite is, and who keeps it from being written over.

SQLite writes the log into the database at every 1,000 pages (4 MiB) and begins it anew, unless somebody reads: what a reader
may still look at stays, and the log grows with each write. Above BOUND a checkpoint is tried here, and whoever holds a
reader's lock on the -shm file is named, as far as it can be known. It must never wait for a lock, open a file of the
database other than through SQLite (closing it would drop the locks of this process), or end anybody.

A reader's lock: one of the five bytes from 123 on of the -shm file (sqlite.org/walformat.html, section 2.3.1).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from ringfence.host.kernel.ports import Clock
from ringfence.host.store.dialect import Dialect
from ringfence.host.store.sqlite_files import SHM, WAL, beside, path_of

BOUND = 64 << 20  # sixteen times what SQLite lets it have by itself; a large write is 8 MiB
_READERS = range(123, 128)
_MOST_NAMED = 4

Lock = tuple[int, str, int, int]  # pid, inode, first byte, last byte


class WalWatch:
    """kernel.retention.Log."""

    def __init__(self, dialect: Dialect, clock: Clock) -> None:
        self._path = path_of(dialect.url) if dialect.one_kernel else None  # None: a server has it, and a log of its own
        self._clock = clock
        self._since: dict[int, float] = {}  # by pid: when it was first seen to hold a reader's lock
        self._log = logging.getLogger("ringfence.store")
        self._warning = ""

    async def look(self) -> str:
        if self._path is None:
            return ""
        size, pids = await asyncio.to_thread(self._looked, self._path)
        now = self._clock.monotonic()
        self._since = {pid: self._since.get(pid, now) for pid in pids}
        self._warning = self._told(size, now) if size > BOUND else ""
        if self._warning:
            self._log.warning("%s", self._warning)
        return self._warning

    async def facts(self) -> dict[str, Any]:
        """For status: {"wal_bytes", "wal_warning" when there is one}; nothing where a server has the database."""
        if self._path is None:
            return {}
        facts: dict[str, Any] = {"wal_bytes": await asyncio.to_thread(_size, beside(self._path, WAL))}
        return {**facts, "wal_warning": self._warning} if self._warning else facts

    def _looked(self, path: Path) -> tuple[int, list[int]]:
        """(bytes of the log, after a checkpoint if there were too many; who reads now)."""
        log = beside(path, WAL)
        if _size(log) > BOUND:
            _checkpoint(path)
        return _size(log), _readers(beside(path, SHM))

    def _told(self, size: int, now: float) -> str:
        others = [pid for pid in self._since if pid != os.getpid()]
        named = [f"{pid} ({_name(pid)}), for {now - self._since[pid]:.0f} s" for pid in others[:_MOST_NAMED]]
        who = f"it is read by process {', '.join(named)}" if named else "who reads it cannot be seen from here"
        return f"the log of the database has {size >> 20} MiB and cannot be written over: {who}; end that reader"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _checkpoint(path: Path) -> None:
    """Writes into the database what may be; when that was everything, the log is cut off. Waits for nobody."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None)) as there:
            _, pages, done = there.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages == done:
                there.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        pass  # locked, or the disk takes nothing: the size tells


def _readers(shared: Path) -> list[int]:
    try:
        inode = str(os.stat(shared).st_ino)
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    return readers_of(inode, lines)


def readers_of(inode: str, lines: Iterable[str]) -> list[int]:
    """Processes with a reader's lock, of the lines of /proc/locks (proc(5)); those of other pid namespaces have no pid."""
    found = (_lock(line) for line in lines)
    return sorted({pid for pid, of, low, high in filter(None, found) if of == inode and pid > 0 and _reads(low, high)})


def _reads(low: int, high: int) -> bool:
    """Whether the bytes are readers' alone. A connection holds byte 128 for as long as it is open."""
    return low in _READERS and high in _READERS


def _lock(line: str) -> Lock | None:
    """`1: POSIX  ADVISORY  READ 4711 fe:00:1234 123 123`."""
    words = line.split()
    try:
        pid, file, low, high = int(words[-4]), words[-3], int(words[-2]), int(words[-1])
    except (ValueError, IndexError):
        return None  # a lock to the end of a file, or one that waits
    return pid, file.rpartition(":")[2], low, high


def _name(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"
    return "".join(letter if letter.isalnum() or letter in "._-" else "?" for letter in name)
