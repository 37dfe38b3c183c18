"""Carries a restore out: builds the new database beside the old one, verifies it, and changes over at the very end.

SQLite: another file, then restore_swap.py. PostgreSQL: one transaction, in which the old tables move into a schema of their
own (`ringfence_replaced_N`). Until the change-over, whatever goes wrong leaves the old database as it was; the row of the
audit that declares it is in the new one already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.audit import Head
from ringfence.host.kernel.errors import Conflict, RingfenceError
from ringfence.host.store import migrate, restore_swap
from ringfence.host.store.backup_format import Reading
from ringfence.host.store.check import Finding, examine
from ringfence.host.store.declaring import Declarer
from ringfence.host.store.dialect import Dialect, LeaseClock
from ringfence.host.store.dialects import dialect_of
from ringfence.host.store.door import entered
from ringfence.host.store.failures import translate
from ringfence.host.store.generation import generation_of
from ringfence.host.store.kernels import check_nobody_works
from ringfence.host.store.restore import check_manifest, fence, fill
from ringfence.host.store.sqlite_files import beside, path_of

_BUSY_SECONDS = 30.0


async def put_back(url: str, file: IO[bytes], declarer: Declarer, *, anyway: bool) -> dict[str, Any]:
    """{"generation", "rows", "runs_to_redrive", "replaced", "findings", "notes", "backup": manifest}.

    Invalid: no whole backup. Refused: another installation's. Unavailable: a newer release's. Conflict: its rows do not
    agree (`anyway`: put back nevertheless), or a kernel works on the database. DiskFull.
    """
    dialect = dialect_of(url, _BUSY_SECONDS)
    backup = await asyncio.to_thread(Reading, file)
    check_manifest(backup.manifest, declarer.installation)
    work = _Work(backup, declarer, anyway)
    facts = await (_file(work, url, path_of(dialect.url)) if dialect.one_kernel else _server(work, url))
    await asyncio.to_thread(declarer.witness, work.head)
    return facts


class _Work:
    """One restore, whatever the database."""

    def __init__(self, backup: Reading, declarer: Declarer, anyway: bool) -> None:
        self.backup, self._declarer, self._anyway = backup, declarer, anyway
        self.clock = LeaseClock(declarer.clock)
        self.head: Head | None = None  # of the chain that declares it

    def build(
        self, connection: Connection, dialect: Dialect, before: int, replaced: Callable[[int], str | None]
    ) -> dict[str, Any]:
        """In an empty database, inside a transaction. `before`: the highest generation that is known here. `replaced`: by
        the new one, where the old database is then."""
        rows = fill(connection, self.backup)
        manifest = self.backup.manifest
        migrate.upgrade(connection)  # Unavailable: it needs a contraction first, by the release that made it
        looked = examine(connection, self._declarer.signer.keys, self._declarer.installation)
        found = looked.findings
        self._judge(found)
        number = max(manifest.generation, before) + 1
        source = {"made_at": manifest.made_at, "sha256": self.backup.sealed.sha256, "generation": manifest.generation}
        runs = fence(connection, number, self._declarer.clock.now(), source, manifest.installation)
        facts = {
            "generation": number,
            "rows": rows,
            "runs_to_redrive": runs,
            "replaced": replaced(number),
            "findings": [asdict(finding) for finding in found],
            "notes": looked.notes,
            "backup": {**asdict(manifest), "sha256": self.backup.sealed.sha256},
        }
        self.head = self._declarer.declare(connection, dialect, facts)
        return facts

    def _judge(self, found: list[Finding]) -> None:
        if found and not self._anyway:
            first = found[0]
            raise Conflict(
                f"the backup's rows do not agree ({len(found)} findings; {first.rule}: {first.id}: {first.says})",
                remedy="take an older backup; or put it back as it is: --anyway",
                findings=[asdict(finding) for finding in found],
            )


async def _file(work: _Work, url: str, path: Path) -> dict[str, Any]:
    new = await asyncio.to_thread(restore_swap.new_file, path)
    before = max(restore_swap.highest_generation(path), await _generation(url))
    dialect = dialect_of(f"sqlite:///{new}", _BUSY_SECONDS)

    def kept(number: int) -> str | None:
        return str(restore_swap.kept_name(path, number)) if path.exists() else None

    def transact(connection: Connection) -> dict[str, Any]:
        with connection.begin():
            return work.build(connection, dialect, before, kept)

    try:
        facts = await _build_file(dialect, transact)
    except BaseException:
        for suffix in restore_swap.SUFFIXES:
            beside(new, suffix).unlink(missing_ok=True)
        raise
    await asyncio.to_thread(restore_swap.swap, path, facts["generation"])
    return facts


async def _build_file(dialect: Dialect, transact: Callable[[Connection], dict[str, Any]]) -> dict[str, Any]:
    await asyncio.to_thread(dialect.prepare)
    pool = dialect.pool("verb")
    try:
        facts = await pool.run(transact)
        await pool.run(_into_one_file)
    finally:
        await pool.close()
    return facts


def _into_one_file(connection: Connection) -> None:
    """Without a -wal beside it, so that one rename is the whole change-over."""
    raw = connection.connection.dbapi_connection
    assert raw is not None
    cursor = raw.cursor()
    cursor.execute("PRAGMA journal_mode=DELETE")
    cursor.close()


async def _generation(url: str) -> int:
    """Of the database that is to be replaced; 0: there is none, or it cannot be read, which may be why it is replaced."""
    try:
        async with entered(url, "scan", _BUSY_SECONDS) as database:
            return await database.ask(generation_of)
    except (sa.exc.SQLAlchemyError, RingfenceError, OSError, ValueError):
        return 0


async def _server(work: _Work, url: str) -> dict[str, Any]:
    async with entered(url, "verb", _BUSY_SECONDS) as database:
        dialect = database.dialect

        def transact(connection: Connection) -> dict[str, Any]:
            with connection.begin():
                check_nobody_works(connection, dialect.lease_now(connection, work.clock))
                before = generation_of(connection)
                kept = _move_aside(connection, before)
                return work.build(connection, dialect, before, lambda _: kept)

        try:
            return await database.ask(transact)
        except Exception as error:
            raise translate(error) from error


def _move_aside(connection: Connection, generation: int) -> str | None:
    """The schema that has the old tables now; None: the database was empty."""
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        return None
    migrate.check(connection)
    schema = f"ringfence_replaced_{generation}"
    there = set(sa.inspect(connection).get_schema_names())
    name = next(each for each in (schema, *(f"{schema}_{n}" for n in range(2, 1000))) if each not in there)
    connection.execute(sa.schema.CreateSchema(name))
    quote = connection.dialect.identifier_preparer.quote
    for table in tables:
        connection.execute(sa.text(f"ALTER TABLE {quote(table)} SET SCHEMA {quote(name)}"))
    return name
