"""Which database a test's folder stands for: a SQLite file in it, or a database of the session's PostgreSQL.

A test asks `address(folder)` and cannot tell the two apart; `outside` is somebody else's connection to the same database.
On PostgreSQL the server's clock, which leases count, can be held by a test: `public.clock_timestamp()` comes before
PostgreSQL's own in the cluster's search path, and says what `hand.clock` says when there is a row in it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ringfence.bench.cluster import Cluster, account, programs
from ringfence.host.store.store import open_store
from tests.support.clocks import CountingIds, HandClock

SEARCH_PATH = {"search_path": "'public, pg_catalog'"}
TEMPLATE = "migrated"
FILE = "ringfence.db"
_MARK = "postgresql"  # file in the folder: name of the cluster's folder and of the database
_HAND = """
CREATE SCHEMA hand;
CREATE TABLE hand.clock (at timestamptz NOT NULL);
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    $$ SELECT coalesce((SELECT at FROM hand.clock), pg_catalog.clock_timestamp()) $$;
"""


# What migrations put into tables stays: a copy of it is kept. Deleting is thirty times as fast as a new database.
_KEEP = """
DO $$ DECLARE name text; filled boolean; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', name) INTO filled;
        IF filled THEN EXECUTE format('CREATE TABLE hand.%I AS TABLE public.%I', 'kept_' || name, name); END IF;
    END LOOP;
END $$;
"""
_RESET = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
SET session_replication_role = replica;
DELETE FROM hand.clock;
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('DELETE FROM public.%I', name);
        IF to_regclass('hand.kept_' || name) IS NOT NULL THEN
            EXECUTE format('INSERT INTO public.%I TABLE hand.%I', name, 'kept_' || name);
        END IF;
    END LOOP;
END $$;
"""


async def _migrate(url: str) -> None:
    await (await open_store(url, HandClock(), CountingIds())).close()


@functools.cache
def _migrated_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_migrate(address(Path(folder))))
        return (Path(folder) / FILE).read_bytes()


def put_migrated_file(folder: Path) -> None:
    """Blocks. A SQLite database in it that is migrated already: a copy is five times as fast as migrations."""
    file = folder / FILE
    file.touch(0o600)
    file.write_bytes(_migrated_file())


@dataclass(frozen=True)
class Databases:
    """Databases of one cluster, migrated already; each is used by one test after another."""

    cluster: Cluster
    numbers: Iterator[int]
    free: list[str]

    @classmethod
    def over(cls, cluster: Cluster) -> Databases:
        """Blocks. Makes the template, by the product's own migrations."""
        asyncio.run(_migrate(cluster.create(TEMPLATE)))
        cluster.sql(TEMPLATE, _HAND)
        cluster.sql(TEMPLATE, _KEEP)
        return cls(cluster, itertools.count(), [])

    @contextmanager
    def within(self, folder: Path, *, empty: bool = False, alone: bool = False) -> Iterator[None]:
        """`folder` stands for a database until the end. `empty`: one that nobody ever opened. `alone`: one that no other
        test is given after it, because this one changes more than rows."""
        name = self.free.pop() if self.free and not (empty or alone) else self._made("template0" if empty else TEMPLATE)
        (folder / _MARK).write_text(f"{self.cluster.folder} {name}")
        try:
            yield
        finally:
            if empty or alone:
                self.cluster.drop(name)
            else:
                self.cluster.sql(name, _RESET)
                self.free.append(name)

    def _made(self, template: str) -> str:
        name = f"test{next(self.numbers)}"
        self.cluster.create(name, template)
        return name


def _place(folder: Path) -> tuple[str, str] | None:
    """Folder of the cluster, name of the database; None: SQLite."""
    mark = folder / _MARK
    if not mark.exists():
        return None
    cluster, name = mark.read_text().split()
    return cluster, name


def address(folder: Path) -> str:
    """As `serve --db` takes it."""
    place = _place(folder)
    if place is None:
        return f"sqlite:///{folder / FILE}"
    return _cluster(place[0]).url(place[1])


def is_postgres(folder: Path) -> bool:
    return _place(folder) is not None


def _cluster(folder: str) -> Cluster:
    return Cluster(Path(folder), programs(), account())


def outside(folder: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    """The rows of a statement that another process runs and commits. `?` stands for a value. CommandFailed (PostgreSQL),
    sqlite3.Error: what the database does not let through."""
    place = _place(folder)
    if place is None:
        return _sqlite(folder, statement, values)
    parts = statement.split("?")
    literals = [*(_literal(value) for value in values), ""]
    text = "".join(itertools.chain.from_iterable(zip(parts, literals, strict=True)))
    return [tuple(map(_value, row)) for row in _cluster(place[0]).sql(place[1], text)]


def _sqlite(folder: Path, statement: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(folder / FILE)
    try:
        rows = connection.execute(statement, values).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


def _value(text: str) -> object:
    """psql says everything as text."""
    return int(text) if text.isdigit() and text == str(int(text)) else text


def _literal(value: object) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


def hold_clock(folder: Path) -> Callable[[datetime], None] | None:
    """What sets the clock of the folder's PostgreSQL; None: there is none to set."""
    place = _place(folder)
    if place is None:
        return None
    cluster, name = _cluster(place[0]), place[1]

    def set_clock(now: datetime) -> None:
        cluster.sql(name, f"DELETE FROM hand.clock; INSERT INTO hand.clock VALUES ('{now.isoformat()}')")

    return set_clock
