"""Where the files of a SQLite database lie: the file itself, NAME-wal and NAME-shm. Names only; must never touch a file."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL

WAL, SHM = "-wal", "-shm"


def path_of(url: URL) -> Path:
    """Of a database that is a file."""
    return Path(url.database or "")


def beside(database: Path, suffix: str) -> Path:
    return database.with_name(database.name + suffix)
