"""Opening: what is made, migrated or refused. A database that is refused is left exactly as it was."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from ringfence.host.kernel.errors import Invalid, RingfenceError, Unavailable
from ringfence.host.store.dialects import dialect_of
from ringfence.host.store.migrate import VERSION_TABLE, newest, upgrade_to
from ringfence.host.store.schema import metadata
from ringfence.host.store.store import SqlStore, open_store
from tests.support.store import CountingIds, HandClock, address, opened


async def refused(url: str) -> RingfenceError:
    with pytest.raises(RingfenceError) as error:
        await open_store(url, HandClock(), CountingIds())
    assert error.value.remedy
    return error.value


def state_of(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


async def test_from_nothing_and_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.tenants.add("kept")
        assert (await store.health())["schema"] == newest()
    before = state_of(tmp_path)
    async with opened(tmp_path) as store:
        assert [tenant.name for tenant in await store.tenants.all()] == ["kept"]
        assert store.commits == 0
    assert state_of(tmp_path) == before, "a migrated database is not written to"


@pytest.mark.sqlite
async def test_from_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "ringfence.db").touch()
    async with opened(tmp_path) as store:
        await store.tenants.add("made")


async def test_several_open_the_new_database_at_once(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(open_store(address(tmp_path), HandClock(), CountingIds(n << 40)) for n in range(4)))
    for number, store in enumerate(stores):
        await store.tenants.add(f"t{number}")
    for store in stores:
        assert len(await store.tenants.all()) == 4
        await store.close()


@pytest.mark.sqlite
async def test_the_migrations_make_what_the_code_expects(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    engine = sa.create_engine(address(tmp_path))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
        kept = {row.sql for row in connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    engine.dispose()
    fresh = sa.create_engine("sqlite://")
    metadata.create_all(fresh)
    with fresh.connect() as connection:
        wanted = {row.sql for row in connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    fresh.dispose()
    # alembic's comparison sees no CHECK and no WHERE of an index; the database's own words do.
    assert {_words(sql) for sql in kept if VERSION_TABLE not in sql} == {
        _words(sql) for sql in wanted if VERSION_TABLE not in sql
    }


def _words(sql: str) -> str:
    """Without order, and a column that was added later has no line of its own."""
    lines = sql.rstrip().removesuffix(")").splitlines()
    parts = [part for line in lines for part in ([line] if "(" in line else line.split(", "))]
    return "; ".join(sorted(filter(None, (" ".join(part.split()).strip(", ") for part in parts))))


@pytest.mark.sqlite
async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """F40."""
    async with opened(tmp_path):
        pass
    outside = sqlite3.connect(tmp_path / "ringfence.db")
    outside.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0999'")
    outside.commit()
    outside.close()
    before = state_of(tmp_path)
    error = await refused(address(tmp_path))
    assert isinstance(error, Unavailable)
    assert "0999" in error.message
    assert newest() in error.message
    assert state_of(tmp_path) == before


@pytest.mark.sqlite
async def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    outside = sqlite3.connect(tmp_path / "ringfence.db")
    outside.execute("CREATE TABLE recipes (name TEXT)")
    outside.commit()
    outside.close()
    before = state_of(tmp_path)
    error = await refused(address(tmp_path))
    assert "belongs to something else" in error.message
    assert "recipes" in error.message
    assert state_of(tmp_path) == before


@pytest.mark.sqlite
async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ringfence.db").write_bytes(b"once upon a time " * 1000)
    before = state_of(tmp_path)
    error = await refused(address(tmp_path))
    assert "damaged" in error.message
    assert "backup" in error.remedy
    assert state_of(tmp_path) == before


@pytest.mark.sqlite
async def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    """F23: a torn page in the middle."""
    async with opened(tmp_path) as store:
        for number in range(200):
            await store.audit.record(None, "filler", str(number), {"text": "x" * 500})
    path = tmp_path / "ringfence.db"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = os.urandom(4096)
    path.write_bytes(content)
    error = await refused(address(tmp_path))
    assert isinstance(error, Unavailable)
    assert "damaged" in error.message


@pytest.mark.sqlite
async def test_a_truncated_database_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for number in range(50):
            await store.audit.record(None, "filler", str(number), {"text": "x" * 500})
    path = tmp_path / "ringfence.db"
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    assert "damaged" in (await refused(address(tmp_path))).message


@pytest.mark.sqlite
async def test_places_that_are_none(tmp_path: Path) -> None:
    assert "cannot be opened" in (await refused(f"sqlite:///{tmp_path}/none/ringfence.db")).message
    assert "cannot be opened" in (await refused(f"sqlite:///{tmp_path}")).message
    (tmp_path / "real.db").touch()
    (tmp_path / "ringfence.db").symlink_to(tmp_path / "real.db")
    assert "symlink" in (await refused(address(tmp_path))).message
    for url in ("mysql://x/y", "sqlite://", "sqlite:///:memory:", "what", ""):
        assert isinstance(await refused(url), Invalid), url


async def test_a_database_server_that_is_not_there() -> None:
    error = await refused("postgresql://nobody@127.0.0.1:1/ringfence")
    assert isinstance(error, Unavailable)


@pytest.mark.sqlite
async def test_a_folder_that_alembic_would_misread(tmp_path: Path) -> None:
    """Percent signs, blanks and colons are syntax to configuration files."""
    folder = tmp_path / "a %(x)s b:c ü"
    folder.mkdir()
    async with opened(folder) as store:
        await store.tenants.add("made")


@pytest.mark.sqlite
def test_it_migrates_from_anywhere_without_a_configuration_file(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from tests.support.store import *\n"
        "from pathlib import Path\n"
        "async def main():\n"
        "    async with opened(Path(sys.argv[1])) as store: print((await store.health())['schema'])\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path)],
        cwd="/",
        env={"PYTHONPATH": f"{root}:{root / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == (f"{newest()}\n", "")


@pytest.mark.empty
@pytest.mark.parametrize("at", ["nothing", "0001"])
async def test_several_bring_it_up_to_date_at_once(tmp_path: Path, at: str) -> None:
    """Each sees that it is behind before any has begun: one does it, the others find it done."""
    if at != "nothing":
        dialect = dialect_of(address(tmp_path), 30.0)
        dialect.prepare()
        pool = dialect.pool("verb")
        await pool.run(lambda connection: _at(connection, at))
        await pool.close()
    many = (open_store(address(tmp_path), HandClock(), CountingIds(n << 40)) for n in range(4))
    stores = await asyncio.gather(*many, return_exceptions=True)
    assert [type(store) for store in stores] == [SqlStore] * 4, stores
    for number, store in enumerate(stores):
        assert isinstance(store, SqlStore)
        await store.tenants.add(f"t{number}")
        assert (await store.health())["schema"] == newest()
        await store.close()


def _at(connection: sa.Connection, revision: str) -> None:
    with connection.begin():
        upgrade_to(connection, revision)
