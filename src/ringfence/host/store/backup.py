"""`ringfence db backup`: every row of one snapshot as a file, while the server writes.

SQLite: a read transaction in WAL mode keeps no writer waiting; the -wal file grows until it ends. PostgreSQL: one
REPEATABLE READ transaction. It must never write to the database. Tables are found by reflection, so none can be
forgotten, and a database of an earlier schema is kept as it is, which is what an operator wants before an upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.store import migrate
from ringfence.host.store.backup_format import Manifest, Sealed, TableHead, Writing
from ringfence.host.store.generation import generation_of

_PAGE = 200  # rows that are fetched at once; of blob chunks of 512 KiB 100 MiB
_OWN_ROWS = (migrate.VERSION_TABLE, migrate.EXPANDED_TABLE)  # what migrations write when it is put back
_KINDS: tuple[tuple[type[sa.types.TypeEngine[Any]], str], ...] = (
    (sa.Boolean, "bool"),
    (sa.DateTime, "time"),
    (sa.LargeBinary, "bytes"),
    (sa.Integer, "int"),
    (sa.Float, "float"),
    (sa.String, "text"),
)


def dump(
    connection: Connection,
    file: IO[bytes],
    *,
    installation: str,
    release: str,
    at: str,
    seen: Callable[[str, sa.Row[Any]], None] | None = None,
) -> tuple[Manifest, Sealed]:
    """`connection`: of a pool that reads (on PostgreSQL REPEATABLE READ), so that its transaction sees one moment. `seen`:
    is shown each row that is written, with its table's name. Unavailable: nothing to back up, not ringfence's, newer than this release, or the file cannot be written. DiskFull: of
    the file."""
    with connection.begin():
        migrate.check(connection)
        schema, floor = migrate.current(connection), migrate.floor_now(connection)
        if schema is None or floor is None:
            raise Unavailable("the database is empty: there is nothing to back up", remedy="ringfence init")
        manifest = Manifest(
            made_at=at,
            release=release,
            schema=schema,
            floor=floor,
            generation=generation_of(connection),
            installation=installation,
            dialect=connection.dialect.name,
            audit=audit_heads(connection),
        )
        out = Writing(file, manifest)
        for table in tables_of(connection):
            head = TableHead(table.name, tuple((column.name, kind_of(column)) for column in table.columns))
            out.table(head)
            for row in _rows(connection, table):
                out.row(table.name, row)
                if seen is not None:
                    seen(table.name, row)
        return manifest, out.seal()


def tables_of(connection: Connection) -> list[sa.Table]:
    """What is there, each after those that it refers to."""
    there = sa.MetaData()
    there.reflect(connection)
    return [table for table in there.sorted_tables if table.name not in _OWN_ROWS]


def kind_of(column: sa.Column[Any]) -> str:
    for known, kind in _KINDS:
        if isinstance(column.type, known):
            return kind
    raise Unavailable(f"column {column} has a type that no backup holds: {column.type}", remedy="please report it")


def audit_heads(connection: Connection) -> tuple[tuple[str, int, str], ...]:
    """(chain, seq, hash) of each, also of the one chain of the first release."""
    there = sa.inspect(connection).get_table_names()
    heads: list[tuple[str, int, str]] = []
    if "audit_head" in there:
        heads += [("", row.seq, row.hash) for row in connection.execute(sa.text("SELECT seq, hash FROM audit_head"))]
    if "audit_chains" in there:
        query = sa.text("SELECT chain, seq, hash FROM audit_chains ORDER BY chain")
        heads += [(row.chain, row.seq, row.hash) for row in connection.execute(query)]
    return tuple(heads)


def _rows(connection: Connection, table: sa.Table) -> Iterator[sa.Row[Any]]:
    """By key, so that two backups of the same rows are the same file; a row that refers to its own table (an agent to
    its owner, who is a person) after those that do not."""
    own = [key.parent for key in table.foreign_keys if key.column.table is table]
    order = [*(column.is_not(None) for column in own), *table.primary_key.columns]
    query = sa.select(table).order_by(*order)
    result = connection.execute(query, execution_options={"yield_per": _PAGE})
    yield from result
