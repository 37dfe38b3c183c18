"""Looks at a SQLite database whose last process did not close it, before anything is opened: is the -wal beside it its own?

SQLite replays whatever valid -wal lies beside a database. One of another database, or of a newer copy of this one, is taken
without a word (its salts say only that its frames belong together), and `quick_check` may find nothing. So the two are
copied, replayed there, and looked at: pages, references, and rows that must agree. What the database had wrong without the
-wal is not held against it. It must never open the database itself: closing it would already write the -wal into it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from pathlib import Path

from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from ringfence.host.kernel.errors import DiskFull, Unavailable
from ringfence.host.store.check import Finding, mixed_up
from ringfence.host.store.dialect import Dialect
from ringfence.host.store.dialects import dialect_of
from ringfence.host.store.failures import no_room, translate
from ringfence.host.store.sqlite import WAL_HEADER
from ringfence.host.store.sqlite_files import SHM, WAL, beside, path_of

_FOLDER = ".looking-"  # and the pid of who looks
# Copied and read twice: 64 MiB take 0.3 s. A larger one is left to `ringfence db check`: a start must not take minutes.
MOST = 64 << 20


async def check_unclean(dialect: Dialect) -> None:
    """Unavailable: the -wal is not this database's, or one of the two is damaged. Both files are left as they are. Where
    there is no room for the copies nobody looks: a full volume is when a server is started again."""
    path = path_of(dialect.url)
    await asyncio.to_thread(_sweep, path.parent)
    if not await asyncio.to_thread(_due, path):
        return
    try:
        new = await _added(path)
    except (OSError, DiskFull) as error:
        if not no_room(error):
            raise
        logging.getLogger("ringfence.store").warning("no room to look whether %s-wal is the database's own", path)
        return
    if new:
        raise Unavailable(
            f"{path}-wal does not fit the database beside it ({new[0].rule}: {new[0].id}: {new[0].says})",
            remedy=f"was {path.name} exchanged? Move {path.name}-wal and {path.name}-shm aside together with the database "
            "that they belong to, and put a backup back: ringfence db restore FILE",
        )


async def _added(path: Path) -> list[Finding]:
    """What is wrong with the two together, and not with the database alone."""
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-", dir=path.parent) as folder:
        together = await _look(path, Path(folder) / "with.db", wal=True)
        if not together:
            return []
        known = {(one.rule, one.id) for one in await _look(path, Path(folder) / "without.db", wal=False)}
    return [one for one in together if (one.rule, one.id) not in known]


def _sweep(folder: Path) -> None:
    """Copies of one who was killed while he looked."""
    for left in folder.glob(f"{_FOLDER}*"):
        pid = left.name.removeprefix(_FOLDER).partition("-")[0]
        if not (pid.isdigit() and _alive(int(pid))):
            shutil.rmtree(left, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another account's
        return True
    return True


def _due(path: Path) -> bool:
    try:
        wal = os.stat(beside(path, WAL)).st_size
        size = os.stat(path).st_size
    except OSError:
        return False
    return wal > WAL_HEADER and size > 0 and wal + size <= MOST and not _in_use(path)


def _in_use(path: Path) -> bool:
    """Whether somebody has it open now: then its -wal is live, and a copy would be torn. Read from the kernel's list,
    because opening and closing one of its files would drop the locks that this very process has on it."""
    inodes = set()
    for each in (path, beside(path, SHM)):
        try:
            inodes.add(str(os.stat(each).st_ino))
        except OSError:
            continue
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return True
    return any(field.rpartition(":")[2] in inodes for line in lines for field in line.split() if field.count(":") == 2)


async def _look(path: Path, copy: Path, *, wal: bool) -> list[Finding]:
    await asyncio.to_thread(_copy, path, copy, wal)
    pool = dialect_of(f"sqlite:///{copy}", 0.0).pool("probe")
    try:
        return await pool.run(_findings)
    except SQLAlchemyError as error:
        told = translate(error)
        if isinstance(told, DiskFull):
            raise told from error
        return [Finding("readable", "database", str(getattr(error, "orig", error)))]
    finally:
        await pool.close()


def _findings(connection: Connection) -> list[Finding]:
    with connection.begin():
        return mixed_up(connection)


def _copy(path: Path, copy: Path, wal: bool) -> None:
    shutil.copyfile(path, copy)
    if wal:
        shutil.copyfile(beside(path, WAL), beside(copy, WAL))
