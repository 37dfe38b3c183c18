"""What the store needs of a database beside SQL that both speak, and the clock that leases count on SQLite.

Must never hold a query of a noun. sqlite.py and postgres.py do what is asked for here; dialects.py chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection
from sqlalchemy.sql.dml import Insert

from ringfence.host.kernel.ids import ThreadId
from ringfence.host.kernel.ports import Clock
from ringfence.host.store.pools import Pool
from ringfence.host.store.quick import Quick, Values
from ringfence.host.store.wakes import Wakes

# probe (one short look), read and scan cannot write; scan and verb (a whole database is read, changed or put back) may take
# hours, and be kept waiting as long by who takes what they read.
Use = Literal["probe", "read", "scan", "write", "verb"]
WRITING: frozenset[Use] = frozenset({"write", "verb"})
UNHURRIED: frozenset[Use] = frozenset({"scan", "verb"})

READERS = 4  # connections (one thread each on SQLite): two cores' worth of reads and as many that wait for the disk


class LeaseClock:
    """Time that no change of the wall clock moves: wall time at the start plus the seconds that have passed since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = clock.now()
        self._start = clock.monotonic()

    def now(self) -> datetime:
        return self._wall + timedelta(seconds=self._clock.monotonic() - self._start)


class Bell(Protocol):
    """What one kernel process tells the others on its database, as soon as it can and without a promise."""

    def ring(self, grown: Mapping[ThreadId, int], offered: Sequence[str]) -> None:
        """Never waits. `grown`: threads with a new event; `offered`: installations that may have a run to claim, "" for
        all."""

    async def close(self) -> None: ...


class Savepoint(Protocol):
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class Dialect(Protocol):
    url: URL
    one_kernel: bool  # the database belongs to one kernel at a time: whoever else holds a lease in it is gone

    def prepare(self) -> None:
        """Before the first connection; may block. OSError, Unavailable."""

    def pool(self, use: Use) -> Pool: ...
    def bell(self, wakes: Wakes) -> Bell: ...
    def lease_now(self, connection: Connection, clock: LeaseClock) -> datetime: ...
    def scalar(self, connection: Connection, quick: Quick, values: Values) -> Any:
        """The first column of the only row, as the driver has it; None: there is none."""

    def pairs(self, connection: Connection, quick: Quick, values: Values) -> Sequence[tuple[Any, Any]]:
        """Every row, of two columns, as the driver has it."""

    def one(self, connection: Connection, quick: Quick, values: Values) -> Sequence[Any] | None:
        """The only row, as the driver has it; None: there is none."""

    def many(self, connection: Connection, quick: Quick, rows: Sequence[Values]) -> None:
        """The same statement for each. At least one."""

    def savepoint(self, connection: Connection) -> Savepoint:
        """Begins one. Never within another."""

    def several(self, connection: Connection) -> None:
        """First in a transaction that holds the writes of many callers."""

    def lock(self, connection: Connection, name: str) -> None:
        """Nobody else passes the lock of this name before the transaction has ended. First in a write, before any row."""

    def for_claim(self, query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
        """Locks the rows of `table` that another kernel has not locked."""

    def upsert(self, table: sa.Table, key: Sequence[str]) -> Insert:
        """A whole row of `table`, in the place of the one with the same `key`. Built once for each table."""

    def check(self, connection: Connection) -> None:
        """Unavailable: damaged."""

    def size(self, connection: Connection) -> int:
        """Bytes."""


class Upserts:
    """`Dialect.upsert` over a dialect's own kind of INSERT."""

    def __init__(self, insert: Callable[[sa.Table], Any]) -> None:
        self._insert = insert
        self._made: dict[str, Insert] = {}

    def __call__(self, table: sa.Table, key: Sequence[str]) -> Insert:
        if table.name not in self._made:
            insert = self._insert(table)
            others = {column.name: insert.excluded[column.name] for column in table.columns if column.name not in key}
            self._made[table.name] = insert.on_conflict_do_update(index_elements=list(key), set_=others)
        return self._made[table.name]
