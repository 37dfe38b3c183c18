"""Where a file that comes in lies until it is whole: `.put` of the tree, which is the box's id's and in no box's view.

Whoever writes one holds its lock. One without is left over: its helper was killed, or the disk turned read-only under it;
the next helper takes it away, whatever it was asked for. A link in the folder's place is not followed. Must never take
away what is still being written.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass

FOLDER = b".put"
PREFIX = b".ringfence-put-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Staged:
    """An empty file, 0600, and the folder that its name is in."""

    folder: int
    name: bytes
    fd: int


@contextlib.contextmanager
def staged(tree_fd: int, parent: int) -> Iterator[Staged]:
    """Taken away at the end, unless it was renamed by then. `parent`: where it will go, which is where it lies when that is
    another file system. OSError."""
    folder = _folder(tree_fd, parent)
    try:
        one = _made(folder)
        try:
            yield one
        finally:
            with contextlib.suppress(OSError):
                os.unlink(one.name, dir_fd=folder)
            os.close(one.fd)
    finally:
        os.close(folder)


def _folder(tree_fd: int, parent: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(FOLDER, 0o700, dir_fd=tree_fd)
    folder = os.open(FOLDER, _DIRECTORY, dir_fd=tree_fd)
    if os.fstat(folder).st_dev == os.fstat(parent).st_dev:
        return folder
    os.close(folder)
    return os.dup(parent)


def _made(folder: int) -> Staged:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        name = PREFIX + os.urandom(8).hex().encode()
        fd = os.open(name, flags, 0o600, dir_fd=folder)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return Staged(folder, name, fd)
        os.close(fd)  # another helper took it for left over before it was locked


def clear(tree_fd: int) -> None:
    """Takes away what nobody writes any more. Says nothing of what it cannot: it is tried again."""
    with contextlib.suppress(OSError):
        folder = os.open(FOLDER, _DIRECTORY, dir_fd=tree_fd)
        try:
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    _clear_one(folder, name)
        finally:
            os.close(folder)


def _clear_one(folder: int, name: str) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
    finally:
        os.close(fd)
