"""Which database an address names."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from ringfence.host.kernel.errors import Invalid
from ringfence.host.store.dialect import Dialect
from ringfence.host.store.postgres import Postgres
from ringfence.host.store.sqlite import Sqlite


def dialect_of(url: str, busy_seconds: float) -> Dialect:
    """Invalid: no database that ringfence speaks to. `busy_seconds`: how long to wait for another process's lock."""
    try:
        parsed = make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # whose words may have a piece of the password
        raise Invalid(
            "the database address cannot be read",
            remedy="write it as sqlite:////path/to/file.db or postgresql://user:password@host/name, with /, @, :, # and ? "
            "of the password as %2F, %40, %3A, %23 and %3F",
        ) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite" and parsed.database and parsed.database != ":memory:":
        return Sqlite(parsed.set(drivername="sqlite+pysqlite"), busy_seconds)
    if backend == "postgresql":
        return Postgres(parsed.set(drivername="postgresql+asyncpg"), busy_seconds)
    raise Invalid(
        f"no such kind of database: {parsed.drivername!r}",
        remedy="write it as sqlite:////path/to/file.db or postgresql://user@host/name",
    )
