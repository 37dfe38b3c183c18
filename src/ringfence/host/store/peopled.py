"""Whether a database has anybody in it, asked without a server. Must never write, nor bring a schema up to date."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.store import schema
from ringfence.host.store.door import entered
from ringfence.host.store.failures import translate

_BUSY_SECONDS = 5.0


async def has_tenants(url: str) -> bool:
    """Of those that were not removed. Otherwise as `door.entered`; RingfenceError."""
    async with entered(url, "scan", _BUSY_SECONDS) as database:
        try:
            return await database.ask(_asked)
        except Exception as error:
            raise translate(error) from error


def _asked(connection: Connection) -> bool:
    if not sa.inspect(connection).has_table(schema.tenants.name):
        return False
    live = sa.select(schema.tenants.c.id).where(schema.tenants.c.removed_at.is_(None)).limit(1)
    return connection.execute(live).first() is not None
