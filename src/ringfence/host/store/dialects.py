"""What differs between SQLite and PostgreSQL, and nothing else: opening, locking, upsert, the clock that leases count.

Must never hold a query of a noun. PostgreSQL is the same code above this file; it is not tested before issue 4.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.sql.dml import Insert

from ringfence.host.kernel.errors import Invalid, Unavailable
from ringfence.host.kernel.ports import Clock
from ringfence.host.store.failures import corrupt
from ringfence.host.store.pools import LoopPool, Pool, ThreadPool

Use = Literal["probe", "read", "write"]  # probe and read cannot write

_READERS = 4  # connections (one thread each on SQLite): two cores' worth of reads and as many that wait for the disk
_CHECKED_BYTES = 256 << 20  # quick_check reads it all, about 1 GiB/s when cached: a quarter of a second at most


class LeaseClock:
    """Time that no change of the wall clock moves: wall time at the start plus the seconds that have passed since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = clock.now()
        self._start = clock.monotonic()

    def now(self) -> datetime:
        return self._wall + timedelta(seconds=self._clock.monotonic() - self._start)


class Dialect(Protocol):
    url: URL
    one_kernel: bool  # the database belongs to one kernel at a time: whoever else holds a lease in it is gone

    def prepare(self) -> None:
        """Before the first connection; may block. OSError, Unavailable."""

    def pool(self, use: Use) -> Pool: ...
    def lease_now(self, connection: Connection, clock: LeaseClock) -> datetime: ...
    def for_claim(self, query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
        """Locks the rows of `table` that another kernel has not locked."""

    def upsert(self, table: sa.Table, key: Sequence[str]) -> Insert:
        """A whole row of `table`, in the place of the one with the same `key`. Built once for each table."""

    def check(self, connection: Connection) -> None:
        """Unavailable: damaged."""

    def size(self, connection: Connection) -> int:
        """Bytes."""


def dialect_of(url: str, busy_seconds: float) -> Dialect:
    """Invalid: no database that ringfence speaks to. `busy_seconds`: how long to wait for another process's lock."""
    try:
        parsed = make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise Invalid("the database address cannot be read", remedy="write it as sqlite:////path/to/file.db") from error
    backend = parsed.get_backend_name()
    if backend == "sqlite" and parsed.database and parsed.database != ":memory:":
        return Sqlite(parsed.set(drivername="sqlite+pysqlite"), busy_seconds)
    if backend == "postgresql":
        return Postgres(parsed.set(drivername="postgresql+asyncpg"), busy_seconds)
    raise Invalid(
        f"no such kind of database: {parsed.drivername!r}",
        remedy="write it as sqlite:////path/to/file.db or postgresql://user@host/name",
    )


class Sqlite:
    """One file; WAL; every commit on disk (synchronous=FULL) before it is acknowledged."""

    def __init__(self, url: URL, busy_seconds: float) -> None:
        self.url = url
        self.one_kernel = True
        self._busy_seconds = busy_seconds
        self._upserts: dict[str, Insert] = {}

    def prepare(self) -> None:
        """Makes the file 0600 (SQLite gives -wal and -shm the same mode). Follows no symlink."""
        path = Path(self.url.database or "")
        if path.is_symlink():
            raise Unavailable(f"the database {path} is a symlink", remedy="name the file itself")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))

    def pool(self, use: Use) -> Pool:
        arguments = {"timeout": self._busy_seconds, "isolation_level": None}
        size = _READERS if use == "read" else 1
        engine = sa.create_engine(self.url, connect_args=arguments, pool_size=size, max_overflow=0)

        def connected(connection: Any, record: object) -> None:
            cursor = connection.cursor()
            cursor.execute("PRAGMA foreign_keys=ON")
            cursor.execute("PRAGMA synchronous=FULL")
            # Debian's default writes zeroes over each freed page: to drop a blob of 32 MiB took 0.5 s of everybody's
            # time and 34 MiB of journal, this takes 0.1 s and none. What was dropped stays in free pages of a 0600 file.
            cursor.execute("PRAGMA secure_delete=FAST")
            if use == "write":
                _to_wal(cursor, self._busy_seconds)
            else:
                cursor.execute("PRAGMA query_only=ON")
            cursor.close()

        def begun(connection: Connection) -> None:
            # A deferred transaction that turns into a write fails at once when somebody else wrote meanwhile.
            _begin(connection, "BEGIN IMMEDIATE" if use == "write" else "BEGIN")

        event.listen(engine, "connect", connected)
        event.listen(engine, "begin", begun)
        return ThreadPool(engine, size)

    def lease_now(self, connection: Connection, clock: LeaseClock) -> datetime:
        return clock.now()

    def for_claim(self, query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
        return query  # BEGIN IMMEDIATE: there is one writer

    def upsert(self, table: sa.Table, key: Sequence[str]) -> Insert:
        if table.name not in self._upserts:
            insert = sqlite.insert(table)
            others = _others(table, insert.excluded, key)
            self._upserts[table.name] = insert.on_conflict_do_update(index_elements=list(key), set_=others)
        return self._upserts[table.name]

    def check(self, connection: Connection) -> None:
        if self.size(connection) > _CHECKED_BYTES:
            return
        found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            raise corrupt("; ".join(found))

    def size(self, connection: Connection) -> int:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


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


class Postgres:
    """A server that several kernels may share; leases count its clock."""

    def __init__(self, url: URL, busy_seconds: float) -> None:
        self.url = url
        self.one_kernel = False
        self._busy_seconds = busy_seconds
        self._upserts: dict[str, Insert] = {}

    def prepare(self) -> None:
        """The database is made by its operator."""

    def pool(self, use: Use) -> Pool:
        settings = {"lock_timeout": str(int(self._busy_seconds * 1000)), "synchronous_commit": "on"}
        if use != "write":
            settings["default_transaction_read_only"] = "on"
        size = _READERS if use == "read" else 1
        arguments = {"server_settings": settings}
        engine = create_async_engine(
            self.url, connect_args=arguments, pool_size=size, max_overflow=0, pool_pre_ping=True
        )
        return LoopPool(engine)

    def lease_now(self, connection: Connection, clock: LeaseClock) -> datetime:
        now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return now

    def for_claim(self, query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
        return query.with_for_update(skip_locked=True, of=table)

    def upsert(self, table: sa.Table, key: Sequence[str]) -> Insert:
        if table.name not in self._upserts:
            insert = postgresql.insert(table)
            others = _others(table, insert.excluded, key)
            self._upserts[table.name] = insert.on_conflict_do_update(index_elements=list(key), set_=others)
        return self._upserts[table.name]

    def check(self, connection: Connection) -> None:
        """The server checks its pages itself."""

    def size(self, connection: Connection) -> int:
        return int(connection.execute(sa.select(sa.func.pg_database_size(sa.func.current_database()))).scalar_one())


def _begin(connection: Connection, words: str) -> None:
    """At the driver: SQLAlchemy takes 0.1 ms for a statement without a cache, and a turn has twenty of these."""
    raw: Any = connection.connection.dbapi_connection
    try:
        raw.execute(words)
    except sqlite3.Error as error:
        raise exc.DBAPIError.instance(words, None, error, sqlite3.Error) from error


def _others(
    table: sa.Table, new: sa.ColumnCollection[str, sa.ColumnElement[Any]], key: Sequence[str]
) -> dict[str, Any]:
    """The columns beside the key, each with its new value."""
    return {column.name: new[column.name] for column in table.columns if column.name not in key}
