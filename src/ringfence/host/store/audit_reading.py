"""The audit read without a server: by the own commands, on a database that nobody writes to at that moment.

Must never write, nor bring a schema up to date: whoever looks for a forgery changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.audit_check import Report
from ringfence.host.kernel.errors import Unavailable
from ringfence.host.store import audit_rows, migrate
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.audit_verify import Walk
from ringfence.host.store.audit_witness import keeper
from ringfence.host.store.door import entered
from ringfence.host.store.failures import translate
from ringfence.host.store.pools import Pool

T = TypeVar("T")
_BUSY_SECONDS = 5.0


class ReadOnly:
    """A database by one connection that cannot write. Errors of kernel.errors only."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read(self, question: Callable[[Connection], T]) -> T:
        try:
            return await self._pool.run(question)
        except Exception as error:
            raise translate(error) from error


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[ReadOnly]:
    """Unavailable: no database of ringfence's, or one from before the chains. Otherwise as `door.entered`."""
    async with entered(url, "scan", _BUSY_SECONDS) as database:
        reader = ReadOnly(database.pool)
        await reader.read(_checked)
        yield reader


def _checked(connection: Connection) -> None:
    migrate.check(connection)
    if not sa.inspect(connection).has_table("audit_chains"):
        raise Unavailable(
            "the database is of an older release", remedy="bring it up to date first: ringfence db upgrade"
        )


async def verify(url: str, signer: Signer, installation: str = "") -> Report:
    """A walk along all chains, with the witnesses of the vault. `installation`: this one, where several share it."""
    witnesses = keeper(signer)
    seen = [] if witnesses is None else await asyncio.to_thread(witnesses.all)
    async with reading(url) as reader:
        return await Walk(reader, signer.keys, seen, installation).run()


async def rows(
    url: str, lanes: Collection[Lane], since: datetime | None, before: str | None, limit: int
) -> list[dict[str, Any]]:
    """As `SqlAudit.page`. Also NotFound, Invalid: `before`."""
    async with reading(url) as reader:
        return await audit_rows.page_of(reader, lanes, since, before, limit)
