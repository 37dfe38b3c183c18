"""PostgreSQL: a server that several kernel processes share; leases count its clock.

Reads are REPEATABLE READ, so one function sees one snapshot. Writes are READ COMMITTED: a statement sees what others have
committed before it, so a write that waited for a row, or lost a race for a unique value, decides anew on what is there now
(transact.py runs it again).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL, Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.sql.dml import Insert

from ringfence.host.store.bell import ListenBell
from ringfence.host.store.dialect import READERS, UNHURRIED, WRITING, LeaseClock, Savepoint, Upserts, Use
from ringfence.host.store.pools import LoopPool, Pool
from ringfence.host.store.quick import Quick, Values
from ringfence.host.store.wakes import Wakes

CONNECT_SECONDS = 10.0
# A kernel that is stopped in the middle of a transaction holds rows that others wait for (30 s at most): it loses its
# connection first. Between two statements of a transaction nothing of ours takes more than a few milliseconds.
IDLE_SECONDS = 10
_READ_SECONDS = 60  # of one statement: a forgotten reader keeps the server from cleaning up
# A batch holds the rows of up to 64 writes: it does not wait long for one, and is then taken apart (transact.py).
_BATCH_LOCK_MS = 200
_LOCK = sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(sa.bindparam("name"), 0)))
_NOW = sa.select(sa.func.clock_timestamp())


class Postgres:
    """dialect.Dialect."""

    def __init__(self, url: URL, busy_seconds: float) -> None:
        self.url = url
        self.one_kernel = False
        self._busy_seconds = busy_seconds
        self._upserts = Upserts(postgresql.insert)

    def prepare(self) -> None:
        """The database is made by its operator."""

    def pool(self, use: Use) -> Pool:
        writes = use in WRITING
        seconds = 0.0 if use in UNHURRIED else self._busy_seconds * 2 if writes else _READ_SECONDS
        settings = {
            "application_name": f"ringfence {use}",
            "timezone": "UTC",
            "jit": "off",  # statements of a millisecond
            "lock_timeout": str(int(self._busy_seconds * 1000)),
            "statement_timeout": str(int(seconds * 1000)),
            "idle_in_transaction_session_timeout": str(IDLE_SECONDS * 1000 if seconds else 0),
            "synchronous_commit": "on",
            "default_transaction_read_only": "off" if writes else "on",
        }
        arguments = {
            "server_settings": settings,
            "timeout": CONNECT_SECONDS,
            # A server that says nothing at all any more; of one that may take hours the operator ends the verb.
            "command_timeout": seconds + CONNECT_SECONDS if seconds else None,
        }
        engine = create_async_engine(
            self.url,
            connect_args=arguments,
            pool_size=READERS if use == "read" else 1,
            max_overflow=0,
            isolation_level="READ COMMITTED" if writes else "REPEATABLE READ",
        )
        return LoopPool(engine)

    def bell(self, wakes: Wakes) -> ListenBell:
        return ListenBell(self.url, wakes)

    def lease_now(self, connection: Connection, clock: LeaseClock) -> datetime:
        now: datetime = connection.execute(_NOW).scalar_one()
        return now

    def scalar(self, connection: Connection, quick: Quick, values: Values) -> Any:
        return connection.execute(quick.elsewhere, values).scalar_one_or_none()

    def pairs(self, connection: Connection, quick: Quick, values: Values) -> Sequence[tuple[Any, Any]]:
        return [(first, second) for first, second in connection.execute(quick.elsewhere, values)]

    def one(self, connection: Connection, quick: Quick, values: Values) -> Sequence[Any] | None:
        return connection.execute(quick.elsewhere, values).one_or_none()

    def many(self, connection: Connection, quick: Quick, rows: Sequence[Values]) -> None:
        connection.execute(quick.elsewhere, list(rows))

    def savepoint(self, connection: Connection) -> Savepoint:
        return connection.begin_nested()

    def several(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_BATCH_LOCK_MS}")

    def lock(self, connection: Connection, name: str) -> None:
        connection.execute(_LOCK, {"name": name})

    def for_claim(self, query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
        return query.with_for_update(skip_locked=True, of=table)

    def upsert(self, table: sa.Table, key: Sequence[str]) -> Insert:
        return self._upserts(table, key)

    def check(self, connection: Connection) -> None:
        """The server checks its pages itself."""

    def size(self, connection: Connection) -> int:
        return int(connection.execute(sa.select(sa.func.pg_database_size(sa.func.current_database()))).scalar_one())
