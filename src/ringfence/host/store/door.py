"""The one door to a database: who opens one comes through here first, whatever for.

A SQLite database is more than its file: a change-over that a restore has begun is finished before anything is opened, and a
-wal that nobody closed is looked at. Nobody may open it without that: SQLite replays whatever -wal it finds, the last
connection to close writes it into the database, and a path at which nothing lies becomes an empty database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import NotFound
from ringfence.host.store import restore_swap
from ringfence.host.store.dialect import Dialect, Use
from ringfence.host.store.dialects import dialect_of
from ringfence.host.store.failures import translate
from ringfence.host.store.pools import Pool
from ringfence.host.store.sqlite_files import path_of
from ringfence.host.store.unclean import check_unclean

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """A database by one pool."""

    dialect: Dialect
    pool: Pool

    def ask(self, function: Callable[[Connection], T]) -> Awaitable[T]:
        """Errors as they come."""
        return self.pool.run(function)


async def approach(url: str, busy_seconds: float) -> Dialect:
    """Whatever has to be done before the first connection, but not the file itself. Invalid: the url. Unavailable: the -wal
    is not this database's, or what lies there is in the way of a restore that was begun. DiskFull."""
    dialect = dialect_of(url, busy_seconds)
    if dialect.one_kernel:
        try:
            await asyncio.to_thread(restore_swap.finish, path_of(dialect.url))
            await check_unclean(dialect)
        except Exception as error:
            raise translate(error) from error
    return dialect


@asynccontextmanager
async def entered(url: str, use: Use, busy_seconds: float) -> AsyncIterator[Opened]:
    """A database that is there. NotFound: it is not. Otherwise as `approach`."""
    dialect = await approach(url, busy_seconds)
    if dialect.one_kernel and not await asyncio.to_thread(path_of(dialect.url).exists):
        raise NotFound(
            f"there is no database at {path_of(dialect.url)}",
            remedy="name the one that the server uses (ringfence config show); or put a backup back: "
            "ringfence db restore FILE",
        )
    pool = dialect.pool(use)
    try:
        yield Opened(dialect, pool)
    finally:
        await pool.close()
