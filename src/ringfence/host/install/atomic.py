"""Files that are whole or absent, in folders that another account may own.

Never follows a link in the last component, never writes into a file that somebody else made.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write(path: Path, data: bytes, *, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Replaces `path` with `data`, on disk when it returns. The temporary name is random and made with O_EXCL, so the
    owner of the folder cannot lead the write elsewhere."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    temporary = f".{path.name}.{os.urandom(8).hex()}"
    try:
        fd = os.open(temporary, _NEW, 0o600, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                if owner is not None:
                    os.fchown(fd, *owner)
                os.fchmod(fd, mode)
                os.fsync(fd)
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: Any, *, mode: int, owner: tuple[int, int] | None = None) -> None:
    write(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode(), mode=mode, owner=owner)


def create(path: Path, data: bytes, *, mode: int, owner: tuple[int, int] | None = None) -> bool:
    """Makes `path` if nothing has that name. False: something has."""
    try:
        fd = os.open(path, _NEW, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        if owner is not None:
            os.fchown(fd, *owner)
        os.fchmod(fd, mode)
        os.fsync(fd)
    return True


def read(path: Path, limit: int = 1 << 20) -> bytes:
    """A regular file of at most `limit` bytes, its last component no link. OSError; ValueError: something else."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} is larger than {limit} bytes")
    return data
