"""The files of a SQLite store as a kill leaves them: the database, and beside it a -wal that nobody closed."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.clocks import HandClock
from tests.support.databases import outside
from tests.support.store_work import a_signed_team

NAME = "ringfence.db"


async def left_behind(folder: Path, threads: int, first: int) -> Path:
    """Of a process that is at work in another folder at this moment. The first half of the threads is in the database already,
    the others in the -wal alone. `first`: of its ids."""
    source = folder.with_name(f"{folder.name}-work")
    source.mkdir()
    folder.mkdir()
    async with a_signed_team(source, HandClock(), first) as team:
        for number in range(threads):
            thread = await team.store.threads.add(team.tenant.id, f"t{number}", [team.alice.id], False)
            for word in range(5):
                await team.store.turns.accept(thread.id, team.alice.id, f"{word} " + "x" * 300, "queue", None)
            if number == threads // 2:
                outside(source, "PRAGMA wal_checkpoint(TRUNCATE)")
        for suffix in ("", "-wal"):
            shutil.copyfile(source / f"{NAME}{suffix}", folder / f"{NAME}{suffix}")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Of its files, without the -shm, which any reader makes."""
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.endswith("-shm"))
    return {path.name: path.read_bytes() for path in files}
