"""Puts a restored SQLite file in the place of the one that is there, which is kept beside it. Survives a kill anywhere.

A database is up to three files (NAME, NAME-wal, NAME-shm), and a -wal beside another database would be replayed into it:
SQLite cannot tell that it belongs elsewhere. So the whole set moves, and a mark says that it is moving until it has. Whoever
opens the database finishes what the mark says first. It must never delete a database, nor move one over another.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.store.sqlite_files import SHM, WAL, beside

SUFFIXES = (WAL, SHM, "")  # the database last: as long as it stands, its place is taken
_NEW = ".restoring"
_MARK = ".swap"
_GENERATION = ".generation"


def new_file(database: Path) -> Path:
    """Where the restored one is made; removed first when an earlier restore was killed before its mark."""
    finish(database)
    made = beside(database, _NEW)
    for suffix in SUFFIXES:
        beside(made, suffix).unlink(missing_ok=True)
    return made


def swap(database: Path, generation: int) -> Path:
    """The new file is whole, alone and closed. Returns where the replaced one is."""
    sync(beside(database, _NEW))
    kept = kept_name(database, generation)
    mark = beside(database, _MARK)
    _write(beside(database, _GENERATION), str(generation))
    _write(mark, kept.name)
    finish(database)
    return kept


def finish(database: Path) -> Path | None:
    """Does what is left of a swap; where the replaced one is, or None when there was nothing to do. Idempotent. Unavailable: something came to lie in the place
    of what was moved already."""
    mark = beside(database, _MARK)
    with _held(mark) as name:
        if not name:
            return None
        kept, made = database.with_name(Path(name).name), beside(database, _NEW)
        if made.exists():
            for suffix in SUFFIXES:
                _move(beside(database, suffix), beside(kept, suffix))
            os.replace(made, database)
        sync(database.parent)
        mark.unlink(missing_ok=True)
        sync(database.parent)
        return kept


@contextmanager
def _held(mark: Path) -> Iterator[str]:
    """What the mark says, and nobody else does it meanwhile; "": there is none, or another has done it."""
    try:
        fd = os.open(mark, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield ""
        return
    with open(fd) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.read() if mark.exists() else ""


def highest_generation(database: Path) -> int:
    """Of every restore that was made here, also when the database that had it is unreadable; 0: none."""
    try:
        return int(beside(database, _GENERATION).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def sync(path: Path) -> None:
    """Bytes of a file, or names of a folder, are on disk when it returns."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _move(old: Path, new: Path) -> None:
    if not old.exists():
        return
    if new.exists():  # what was there has been moved, and somebody has put another in its place
        raise Unavailable(
            f"{old} came to be while a restore was under way: what was there before is {new}",
            remedy=f"look at {old.name}, move it out of the folder, then try again",
        )
    os.replace(old, new)


def kept_name(database: Path, generation: int) -> Path:
    """Where `swap` puts the one that is replaced: a name that is free."""
    name, number = f".replaced-{generation}", 1
    while any(beside(database, name + suffix).exists() for suffix in SUFFIXES):
        number += 1
        name = f".replaced-{generation}.{number}"
    return beside(database, name)


def _write(path: Path, text: str) -> None:
    """0600, on disk, all or nothing."""
    part = beside(path, ".part")
    with open(os.open(path=part, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode=0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync(path.parent)
