"""F21, F23: the files of a SQLite database as hands, disks and other processes leave them. A control beside each."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.store import restore_swap
from ringfence.host.store.store import open_store
from tests.support.clocks import CountingIds, HandClock
from tests.support.left_behind import contents
from tests.support.store import a_team, address, opened

ROOT = Path(__file__).parents[2]
NAME = "ringfence.db"
# Writes for a while, checkpoints in between, and is killed with its -wal beside it.
WORKER = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.support.store import a_team
async def main():
    async with a_team(Path(sys.argv[1])) as team:
        for number in range(int(sys.argv[2])):
            thread = await team.store.threads.add(team.tenant.id, f"{sys.argv[3]}{number}", [team.alice.id], False)
            for word in range(5):
                await team.store.turns.accept(thread.id, team.alice.id, f"{word} " + "x" * 300, "queue", None)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def killed_at_work(folder: Path, threads: int, tag: str) -> Path:
    folder.mkdir()
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": os.environ["PATH"]}
    words = [sys.executable, "-c", WORKER, str(folder), str(threads), tag]
    assert subprocess.run(words, env=environment, check=False).returncode == -signal.SIGKILL
    assert (folder / f"{NAME}-wal").stat().st_size > 1000
    return folder


async def refused(folder: Path) -> str:
    before = contents(folder)
    with pytest.raises(Unavailable) as error:
        async with opened(folder, first=1 << 41):
            pass
    assert contents(folder) == before, "what is refused is left as it was"
    return error.value.message


async def test_its_own_wal_is_taken(tmp_path: Path) -> None:
    folder = killed_at_work(tmp_path / "a", 20, "a")
    async with opened(folder, first=1 << 41) as store:
        [tenant] = await store.tenants.all()
        assert len(await store.threads.of_tenant(tenant.id)) == 21


async def test_the_wal_of_another_database(tmp_path: Path) -> None:
    """SQLite takes it; this does not. The control is SQLite by itself."""
    mine, other = killed_at_work(tmp_path / "a", 45, "a"), killed_at_work(tmp_path / "b", 38, "b")
    async with opened(mine, first=1 << 41):
        pass
    before = sqlite3.connect(mine / NAME)
    names = before.execute("SELECT name FROM threads ORDER BY name").fetchall()
    before.close()
    shutil.copy(other / f"{NAME}-wal", mine / f"{NAME}-wal")
    assert "does not fit the database" in await refused(mine)
    alone = sqlite3.connect(mine / NAME)
    assert alone.execute("SELECT name FROM threads ORDER BY name").fetchall() != names, "two databases became one"
    alone.close()


async def test_an_older_copy_under_a_newer_wal(tmp_path: Path) -> None:
    """Somebody put yesterday's file back by hand and forgot the -wal."""
    folder = tmp_path / "a"
    folder.mkdir()
    async with a_team(folder) as team:
        await team.say("yesterday")
    old = (folder / NAME).read_bytes()
    (folder / NAME).unlink()
    newer = killed_at_work(tmp_path / "b", 40, "b")
    (newer / NAME).write_bytes(old)
    (newer / f"{NAME}-shm").unlink()
    assert "does not fit" in await refused(newer)


async def test_a_wal_cut_in_the_middle_of_a_frame(tmp_path: Path) -> None:
    """Harmless: its frames have checksums, and what is behind the last whole commit was never acknowledged... unless it
    was: then the disk lost what it had promised, and the rows still agree."""
    folder = killed_at_work(tmp_path / "a", 3, "a")
    wal = folder / f"{NAME}-wal"
    os.truncate(wal, wal.stat().st_size - 2000)
    async with opened(folder, first=1 << 41) as store:
        [tenant] = await store.tenants.all()
        for thread in await store.threads.of_tenant(tenant.id):
            events = await store.events.after(thread.id, 0, 1000)
            assert [event.cursor for event in events] == list(range(1, len(events) + 1))


async def test_a_torn_page_under_a_wal(tmp_path: Path) -> None:
    folder = killed_at_work(tmp_path / "a", 60, "a")
    content = bytearray((folder / NAME).read_bytes())
    wal = (folder / f"{NAME}-wal").read_bytes()
    frames = {int.from_bytes(wal[at : at + 4], "big") for at in range(32, len(wal) - 24, 4096 + 24)}
    page = next(number for number in range(len(content) // 4096 - 2, 2, -1) if number not in frames)
    content[(page - 1) * 4096 : page * 4096] = os.urandom(4096)
    (folder / NAME).write_bytes(content)
    with pytest.raises(Unavailable, match=r"damaged|does not fit"):
        async with opened(folder, first=1 << 41):
            pass


async def test_locked_for_longer_than_anybody_waits(tmp_path: Path) -> None:
    """F21, with 1 s in the place of 30: refused in time with what to do, nothing half done, and whoever waits for the
    event wakes when the retry is written."""
    async with a_team(tmp_path) as team:
        pass
    store = await open_store(address(tmp_path), HandClock(), CountingIds(1 << 41), busy_seconds=1.0)
    other = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    try:
        cursor = 0
        waiting = asyncio.create_task(store.events.changed(team.thread.id, cursor, 60.0))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable) as error:
            await store.turns.accept(team.thread.id, team.alice.id, "hello", "queue", "key")
        assert error.value.http_status == 503
        assert "try again" in error.value.remedy
        assert await store.events.after(team.thread.id, 0, 10) == [], "reads go on"
        assert not waiting.done()
        other.execute("ROLLBACK")
        accepted = await store.turns.accept(team.thread.id, team.alice.id, "hello", "queue", "key")
        assert not accepted.repeated
        assert await asyncio.wait_for(waiting, 30.0)
    finally:
        other.close()
        await store.close()


# --- the change-over of a restore, killed anywhere ----------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from ringfence.host.store import restore_swap
left = int(sys.argv[2])
def counted(real):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call
for name in ("replace", "fsync", "open"):
    setattr(os, name, counted(getattr(os, name)))
restore_swap.swap(Path(sys.argv[1]), 2)
"""


def test_a_change_over_killed_anywhere_is_finished_or_not_begun(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": os.environ["PATH"]}
    outcomes = []
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        database = folder / NAME
        for suffix in restore_swap.SUFFIXES:
            (folder / f"{NAME}{suffix}").write_text(f"old{suffix}")
        (folder / f"{NAME}.restoring").write_text("new")
        words = [sys.executable, "-c", KILLED, str(database), str(number)]
        ended = subprocess.run(words, env=environment, check=False).returncode
        begun = (folder / f"{NAME}.swap").exists() or not (folder / f"{NAME}.restoring").exists()
        restore_swap.finish(database)
        restore_swap.finish(database)
        outcomes.append(begun)
        if begun:
            assert database.read_text() == "new"
            kept = folder / f"{NAME}.replaced-2"
            assert {s: kept.with_name(kept.name + s).read_text() for s in restore_swap.SUFFIXES} == {
                s: f"old{s}" for s in restore_swap.SUFFIXES
            }
            assert not (folder / f"{NAME}-wal").exists(), "no old -wal beside the new database"
            assert restore_swap.highest_generation(database) == 2
        else:
            assert database.read_text() == "old"
            assert (folder / f"{NAME}-wal").read_text() == "old-wal"
        if ended == 0:
            break
    assert ended == 0
    assert False in outcomes and True in outcomes[:-1], "killed before and after the mark"
