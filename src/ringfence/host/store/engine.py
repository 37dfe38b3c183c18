"""Opens the database: checks that it is ours, brings its schema up to date, makes the two pools.

Writes have one connection and go through writer.py only; reads have their own and cannot write (SQLite: query_only).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from ringfence.host.store import migrate
from ringfence.host.store.dialects import Dialect, dialect_of
from ringfence.host.store.failures import translate
from ringfence.host.store.pools import Pool


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
    dialect = dialect_of(url, busy_seconds)
    try:
        await asyncio.to_thread(dialect.prepare)
        await _probe(dialect)
        engines = Engines(dialect, dialect.pool("write"), dialect.pool("read"))
        try:
            await engines.write.run(_upgrade)
        except BaseException:
            await engines.close()
            raise
    except Exception as error:
        raise translate(error) from error
    return engines


async def _probe(dialect: Dialect) -> None:
    """Looks before anything is changed: setting WAL would already be a change to somebody else's file."""
    pool = dialect.pool("probe")
    try:
        await pool.run(dialect.check)
        await pool.run(migrate.check)
    finally:
        await pool.close()


def _upgrade(connection: Connection) -> None:
    with connection.begin():
        migrate.upgrade(connection)
