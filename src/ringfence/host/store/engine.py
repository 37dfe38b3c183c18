"""Opens the database: checks that it is ours, brings its schema up to date, makes the two pools.

Writes have one connection and go through writer.py only; reads have their own and cannot write (SQLite: query_only).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from ringfence.host.store import migrate
from ringfence.host.store.dialect import Dialect
from ringfence.host.store.door import approach
from ringfence.host.store.failures import translate
from ringfence.host.store.pools import Pool

SCHEMA_LOCK = "schema"  # two kernels that start together bring it up to date one after the other


@dataclass(frozen=True, slots=True)
class Engines:
    dialect: Dialect
    write: Pool
    read: Pool

    async def close(self) -> None:
        await self.read.close()
        await self.write.close()


async def open_engines(url: str, busy_seconds: float) -> Engines:
    """Unavailable: foreign, damaged, newer or unreachable database; the file is left as it was. DiskFull. Invalid."""
    dialect = await approach(url, busy_seconds)
    try:
        await asyncio.to_thread(dialect.prepare)
        if await _probe(dialect):
            await _upgrade(dialect)
        engines = Engines(dialect, dialect.pool("write"), dialect.pool("read"))
        try:
            await engines.write.run(_begin)
        except BaseException:
            await engines.close()
            raise
    except Exception as error:
        raise translate(error) from error
    return engines


async def _probe(dialect: Dialect) -> bool:
    """Looks before anything is changed: setting WAL would already be a change to somebody else's file. Whether the schema
    is behind."""
    pool = dialect.pool("probe")
    try:
        await pool.run(dialect.check)
        await pool.run(migrate.check)
        return await pool.run(migrate.behind)
    finally:
        await pool.close()


def _begin(connection: Connection) -> None:
    """What cannot be written is not opened."""
    with connection.begin():
        pass


async def _upgrade(dialect: Dialect) -> None:
    """By a connection that may take its time: an index over millions of rows is no statement of a second."""

    def work(connection: Connection) -> None:
        with connection.begin():
            dialect.lock(connection, SCHEMA_LOCK)
            migrate.upgrade(connection)

    pool = dialect.pool("verb")
    try:
        await pool.run(work)
    finally:
        await pool.close()
