"""SQLite: one file of one kernel process; WAL; every commit on disk (synchronous=FULL) before it is acknowledged."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, Connection
from sqlalchemy.sql.dml import Insert

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.ids import ThreadId
from ringfence.host.store.dialect import READERS, WRITING, LeaseClock, Upserts, Use
from ringfence.host.store.failures import corrupt
from ringfence.host.store.pools import Pool, ThreadPool
from ringfence.host.store.quick import (
    DriverSavepoint,
    Quick,
    Values,
    at_driver,
    many_at_driver,
    one_at_driver,
    pairs_at_driver,
    scalar_at_driver,
)
from ringfence.host.store.sqlite_files import WAL, beside, path_of
from ringfence.host.store.wakes import Wakes

WAL_HEADER = 32  # bytes of a -wal without a frame (sqlite.org/fileformat2.html, section 4.1)
# What a large write or a long reader made of the -wal is given back at the next checkpoint that begins it anew. Four times
# what SQLite lets it have by itself (1,000 pages): to cut it off and grow it again each time costs every batch a write.
_WAL_KEPT_BYTES = 16 << 20
_CHECKED_BYTES = 256 << 20  # quick_check reads it all, about 1 GiB/s when cached: a quarter of a second at most


class Silence:
    """dialect.Bell for nobody: no other process works on the file."""

    def ring(self, grown: Mapping[ThreadId, int], offered: Sequence[str]) -> None:
        """Nobody hears it."""

    async def close(self) -> None:
        """Nothing is open."""


class Sqlite:
    """dialect.Dialect."""

    def __init__(self, url: URL, busy_seconds: float) -> None:
        self.url = url
        self.one_kernel = True
        self._busy_seconds = busy_seconds
        self._upserts = Upserts(sqlite.insert)

    def prepare(self) -> None:
        """Makes the file 0600 (SQLite gives -wal and -shm the same mode). Follows no symlink."""
        path = path_of(self.url)
        if path.is_symlink():
            raise Unavailable(f"the database {path} is a symlink", remedy="name the file itself")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))

    def pool(self, use: Use) -> Pool:
        arguments = {"timeout": self._busy_seconds, "isolation_level": None}
        size = READERS if use == "read" else 1
        engine = sa.create_engine(self._address(use), connect_args=arguments, pool_size=size, max_overflow=0)

        def connected(connection: Any, record: object) -> None:
            cursor = connection.cursor()
            cursor.execute("PRAGMA foreign_keys=ON")
            cursor.execute("PRAGMA synchronous=FULL")
            # Debian's default writes zeroes over each freed page: to drop a blob of 32 MiB took 0.5 s of everybody's
            # time and 34 MiB of journal, this takes 0.1 s and none. What was dropped stays in free pages of a 0600 file.
            cursor.execute("PRAGMA secure_delete=FAST")
            if use in WRITING:
                _to_wal(cursor, self._busy_seconds)
                # A savepoint keeps what pages were before it: without this, in a file of its own from 64 KiB on. Of 16 events
                # in as many threads that took 0.1 ms of 0.3.
                cursor.execute("PRAGMA temp_store=MEMORY")
                cursor.execute(f"PRAGMA journal_size_limit={_WAL_KEPT_BYTES}")
            else:
                cursor.execute("PRAGMA query_only=ON")
            cursor.close()

        def begun(connection: Connection) -> None:
            # A deferred transaction that turns into a write fails at once when somebody else wrote meanwhile.
            # At the driver: SQLAlchemy takes 0.1 ms for a statement without a cache, and a turn has twenty of these.
            at_driver(connection, "BEGIN IMMEDIATE" if use in WRITING else "BEGIN")

        event.listen(engine, "connect", connected)
        event.listen(engine, "begin", begun)
        return ThreadPool(engine, size)

    def _address(self, use: Use) -> URL:
        """Never such that a connection makes the file. `query_only` keeps nobody from writing a -wal into the database: the
        last connection to close does. Who only looks has a descriptor that cannot, as long as there is anything in it;
        where there is nothing, closing takes -wal and -shm away as it should."""
        path = path_of(self.url)
        looks = use in ("probe", "scan") and has_frames(path)
        query = {"uri": "true", "mode": "ro" if looks else "rw"}
        return self.url.set(database=f"file:{quote(str(path))}", query=query)

    def bell(self, wakes: Wakes) -> Silence:
        return Silence()

    def lease_now(self, connection: Connection, clock: LeaseClock) -> datetime:
        return clock.now()

    def scalar(self, connection: Connection, quick: Quick, values: Values) -> Any:
        return scalar_at_driver(connection, quick, values)

    def pairs(self, connection: Connection, quick: Quick, values: Values) -> Sequence[tuple[Any, Any]]:
        return pairs_at_driver(connection, quick, values)

    def one(self, connection: Connection, quick: Quick, values: Values) -> Sequence[Any] | None:
        return one_at_driver(connection, quick, values)

    def many(self, connection: Connection, quick: Quick, rows: Sequence[Values]) -> None:
        many_at_driver(connection, quick, rows)

    def savepoint(self, connection: Connection) -> DriverSavepoint:
        return DriverSavepoint(connection)

    def several(self, connection: Connection) -> None:
        """BEGIN IMMEDIATE: there is one writer."""

    def lock(self, connection: Connection, name: str) -> None:
        """BEGIN IMMEDIATE: there is one writer."""

    def for_claim(self, query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
        return query  # BEGIN IMMEDIATE: there is one writer

    def upsert(self, table: sa.Table, key: Sequence[str]) -> Insert:
        return self._upserts(table, key)

    def check(self, connection: Connection) -> None:
        if self.size(connection) > _CHECKED_BYTES:
            return
        found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            raise corrupt("; ".join(found))

    def size(self, connection: Connection) -> int:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


def has_frames(path: Path) -> bool:
    """Whether there is a -wal beside the database, with anything in it."""
    try:
        return os.stat(beside(path, WAL)).st_size > WAL_HEADER
    except OSError:
        return False


def _to_wal(cursor: sqlite3.Cursor, seconds: float) -> None:
    """SQLite waits for nobody's lock when it changes the journal mode, which another process may be doing as well."""
    until = time.monotonic() + seconds
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)
