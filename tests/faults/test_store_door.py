"""Whoever opens a SQLite database comes in by one door: `serve`, each `db` verb, the audit without a server. What is not one
database, or is on its way to be another, is neither changed nor made by a look at it. A control beside each."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path

import pytest

from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import NotFound, Unavailable
from ringfence.host.store import audit_reading, restore_swap, unclean
from ringfence.host.store.audit_keys import Signer
from tests.support.clocks import HandClock
from tests.support.left_behind import NAME, contents, left_behind
from tests.support.store import address
from tests.support.store_work import KEYS, Db, a_signed_team, signed

Look = Callable[[Path], Awaitable[object]]
LOOKS: dict[str, Look] = {
    "check": lambda folder: Db(folder, HandClock()).run("check"),
    "backup": lambda folder: Db(folder, HandClock()).backup(),
    "rebuild --dry-run": lambda folder: Db(folder, HandClock()).run("rebuild", dry_run=True),
    "audit verify": lambda folder: audit_reading.verify(address(folder), Signer("", KEYS)),
    "audit ls": lambda folder: audit_reading.rows(address(folder), [Lane.ACT], None, None, 10),
}
WRITES: dict[str, Look] = {
    "upgrade": lambda folder: Db(folder, HandClock()).run("upgrade"),
    "upgrade --contract": lambda folder: Db(folder, HandClock()).run("upgrade", contract=True),
    "rebuild": lambda folder: Db(folder, HandClock()).run("rebuild"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `a` and `b`, each as a kill left it."""
    folder = tmp_path_factory.mktemp("made")
    asyncio.run(left_behind(folder / "a", 24, 0))
    asyncio.run(left_behind(folder / "b", 12, 1 << 30))
    return folder


@pytest.fixture
def killed(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "a", tmp_path / "killed")


@pytest.fixture
def mixed(made: Path, killed: Path) -> Path:
    """A database, and the -wal of another one beside it."""
    shutil.copyfile(made / "b" / f"{NAME}-wal", killed / f"{NAME}-wal")
    return killed


@pytest.mark.parametrize("verb", [*LOOKS, *WRITES])
async def test_a_foreign_wal_is_not_written_into_the_database(mixed: Path, verb: str) -> None:
    before = contents(mixed)
    if verb == "check":
        facts = await Db(mixed, HandClock()).run("check")
        assert not facts["ok"]
        assert "does not fit the database" in facts["findings"][0]["says"]
        assert "db restore" in facts["findings"][0]["says"]
    else:
        with pytest.raises(Unavailable, match="does not fit the database") as error:
            await (LOOKS | WRITES)[verb](mixed)
        assert "db restore" in error.value.remedy
    assert contents(mixed) == before


async def test_a_wal_of_another_program_is_named(killed: Path, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "recipes.db")
    other.execute("PRAGMA journal_mode=WAL")
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.commit()
    shutil.copyfile(tmp_path / "recipes.db-wal", killed / f"{NAME}-wal")
    other.close()
    facts = await Db(killed, HandClock()).run("check")
    assert not facts["ok"]
    assert f"{NAME}-wal does not fit the database" in facts["findings"][0]["says"]


def test_what_sqlite_does_by_itself(mixed: Path) -> None:
    """The control: `query_only` keeps nobody from writing a -wal into the database as he goes."""
    before = contents(mixed)
    connection = sqlite3.connect(mixed / NAME)
    connection.execute("PRAGMA query_only=ON")
    connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchall()
    connection.close()
    assert not (mixed / f"{NAME}-wal").exists()
    assert contents(mixed)[NAME] != before[NAME]


@pytest.mark.parametrize("verb", LOOKS)
async def test_a_look_at_one_that_is_too_large_to_be_copied_changes_nothing(
    killed: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(unclean, "MOST", 0)
    before = contents(killed)
    await LOOKS[verb](killed)
    assert contents(killed) == before


async def test_its_own_wal_is_read_and_left(killed: Path) -> None:
    before = contents(killed)
    assert (await Db(killed, HandClock()).run("check"))["ok"]
    assert contents(killed) == before
    async with signed(killed, HandClock(), 1 << 40) as store:
        [tenant] = await store.tenants.all()
        assert len(await store.threads.of_tenant(tenant.id)) == 25


async def test_a_restore_over_a_foreign_wal_keeps_both_as_they_are(tmp_path: Path, mixed: Path) -> None:
    """It is the remedy that everybody is told."""
    whole = tmp_path / "whole"
    whole.mkdir()
    async with a_signed_team(whole, HandClock()):
        backup = await Db(whole, HandClock()).backup()
    before = contents(mixed)
    facts = await Db(mixed, HandClock()).restore(backup)
    kept = Path(facts["replaced"])
    assert kept.read_bytes() == before[NAME]
    assert kept.with_name(f"{kept.name}-wal").read_bytes() == before[f"{NAME}-wal"]
    assert (await Db(mixed, HandClock()).run("check"))["ok"]


# --- a change-over that was begun ---------------------------------------------------------------------------------------


async def begun(tmp_path: Path) -> Path:
    """A restore that was killed between moving the old database away and putting the new one in its place."""
    folder = tmp_path / "home"
    folder.mkdir()
    async with a_signed_team(folder, HandClock()):
        pass
    shutil.copyfile(folder / NAME, folder / f"{NAME}.restoring")
    (folder / NAME).rename(folder / f"{NAME}.replaced-2")
    (folder / f"{NAME}.swap").write_text(f"{NAME}.replaced-2")
    return folder


@pytest.mark.parametrize("verb", [*LOOKS, *WRITES])
async def test_whoever_comes_first_finishes_it(tmp_path: Path, verb: str) -> None:
    folder = await begun(tmp_path)
    old = (folder / f"{NAME}.replaced-2").read_bytes()
    if verb == "check":
        facts = await Db(folder, HandClock()).run("check")
        assert "cut short before is finished now" in facts["notes"][0]
        assert f"{NAME}.replaced-2" in facts["notes"][0]
        assert (await Db(folder, HandClock()).run("check"))["notes"] == [], "control: nothing is left to finish"
    else:
        await (LOOKS | WRITES)[verb](folder)
    assert (folder / f"{NAME}.replaced-2").read_bytes() == old
    assert not (folder / f"{NAME}.swap").exists()
    async with signed(folder, HandClock(), 1 << 40) as store:
        assert [tenant.name for tenant in await store.tenants.all()] == ["default"]


async def test_what_was_replaced_is_never_overwritten(tmp_path: Path) -> None:
    """Another program has made an empty database meanwhile."""
    folder = await begun(tmp_path)
    (folder / NAME).touch()
    before = contents(folder)
    for finish in (restore_swap.finish, restore_swap.new_file):
        with pytest.raises(Unavailable, match="came to be while a restore was under way") as error:
            finish(folder / NAME)
        assert NAME in error.value.remedy
    assert not (await Db(folder, HandClock()).run("check"))["ok"]
    with pytest.raises(Unavailable):
        async with signed(folder, HandClock(), 1 << 40):
            pass
    assert contents(folder) == before
    (folder / NAME).rename(tmp_path / "aside")
    assert (await Db(folder, HandClock()).run("check"))["ok"], "control: as the remedy says"


# --- nothing is there ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [*LOOKS, "upgrade --contract", "rebuild"])
async def test_a_look_at_nothing_makes_nothing(tmp_path: Path, verb: str) -> None:
    with pytest.raises(NotFound, match="no database at"):
        await (LOOKS | WRITES)[verb](tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_restore_needs_none(tmp_path: Path) -> None:
    whole, empty = tmp_path / "whole", tmp_path / "empty"
    whole.mkdir()
    empty.mkdir()
    async with a_signed_team(whole, HandClock()):
        backup = await Db(whole, HandClock()).backup()
    assert (await Db(empty, HandClock()).run("restore", BytesIO(backup)))["replaced"] is None
    assert (await Db(empty, HandClock()).run("check"))["ok"]


# --- what a look leaves -------------------------------------------------------------------------------------------------


async def test_copies_of_one_who_was_killed_while_he_looked_are_taken_away(killed: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, others = killed / f".looking-{gone.pid}-x", killed / f".looking-{os.getppid()}-x"
    for folder in (left, others):
        folder.mkdir()
        (folder / "with.db").write_bytes(bytes(4096))
    async with signed(killed, HandClock(), 1 << 40):
        assert not left.exists()
        assert others.exists(), "the control: somebody looks at this moment"
