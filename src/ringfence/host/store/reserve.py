"""A file of 16 MiB beside a SQLite database, made at the start and removed when the volume is full.

What it frees is for ending what is under way and for the operator: while it is gone, `low` says that no new work is to be
taken. It comes back when there is room for it four times, so that a volume at its edge does not flap; where it is missing and
there is less room than that, it is gone, also for a server that has just been started. A database server has its own volume:
there is none then. It must never hold anything but zeroes, or stand in the way of opening a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading

from ringfence.host.store.dialect import Dialect
from ringfence.host.store.failures import disk_full
from ringfence.host.store.sqlite_files import path_of

BYTES = 16 << 20  # ends some 1,000 runs at a page or three each, and a WAL of 4 MiB beside
ROOM = 4 * BYTES
NAME = "reserve"


class FileReserve:
    """kernel.retention.Reserve."""

    def __init__(self, dialect: Dialect) -> None:
        # None: a server has the database.
        self._path = path_of(dialect.url).with_name(NAME) if dialect.one_kernel else None
        self._low = False
        self._missing = False  # though there is room
        # Whoever finds the volume full and whoever looks after the file are in threads: `low` is as the file is for each.
        self._lock = threading.Lock()
        self._log = logging.getLogger("ringfence.store")

    @property
    def low(self) -> bool:
        return self._low

    @property
    def state(self) -> str:
        """ "kept", "released" (new work is refused), "missing" (it could not be made: the log says why) or "none" (a database
        server has its own volume)."""
        if self._path is None:
            return "none"
        return "released" if self._low else "missing" if self._missing else "kept"

    def check(self) -> None:
        """DiskFull: new work is refused now."""
        if self._low:
            raise disk_full(f"its reserve is for what is under way, and comes back when {ROOM >> 20} MiB are free")

    async def keep(self) -> bool:
        return await asyncio.to_thread(self._keep)

    def release(self) -> None:
        """At once, from whichever thread found the volume full."""
        with self._lock:
            if self._path is None or self._low:
                return
            try:
                self._path.unlink()
            except OSError:  # there was none, or the volume takes not even that: nothing was freed
                return
            self._lower("its reserve is released")

    def _keep(self) -> bool:
        with self._lock:
            return self._path is None or self._kept()

    def _kept(self) -> bool:
        if self._size() != BYTES:
            try:
                if self._free() < ROOM:
                    self._lower(f"less than {ROOM >> 20} MiB are free, and there is no reserve")
                    return False
                self._make()
            except OSError as error:
                self._give_up(error)
                return False
        if self._low:
            self._log.warning("there is room for the database again")
        self._low = self._missing = False
        return True

    def _lower(self, why: str) -> None:
        if not self._low:
            self._log.error("the volume of the database is full: %s; new work is refused", why)
        self._low = True

    def _give_up(self, error: OSError) -> None:
        """Whether there is room is not known, or it is there and cannot be had: work goes on as it did."""
        if not self._missing:
            self._log.warning("no reserve for the database: %s", error)
        self._missing = True
        with contextlib.suppress(OSError):
            os.unlink(self._path or "")

    def _size(self) -> int:
        try:
            return os.lstat(self._path or "").st_size
        except OSError:
            return 0

    def _free(self) -> int:
        assert self._path is not None
        volume = os.statvfs(self._path.parent)
        return volume.f_bavail * volume.f_frsize

    def _make(self) -> None:
        """Blocks, not a hole: that is what it is for."""
        assert self._path is not None
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, BYTES)
        finally:
            os.close(fd)
