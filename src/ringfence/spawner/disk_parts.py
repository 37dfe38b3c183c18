"""The parts of one box's disk, found and opened beneath its directory, which no box can write."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from ringfence.spawner.errors import Busy, of_os_error
from ringfence.spawner.openat import open_beneath

IMAGE = "disk.img"
MADE = ".disk.img.new"  # becomes IMAGE when it is whole
RECORD = "disk.json"  # {"inodes"}: as asked for, which the image rounds up


def mounted(box: int) -> bool:
    """Whether something is mounted on the box's tree."""
    try:
        return os.stat("tree", dir_fd=box, follow_symlinks=False).st_dev != os.fstat(box).st_dev
    except FileNotFoundError:
        return False


def has(box: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=box, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def untouched(box: int) -> bool:
    """No tree yet, or one that is still the spawner's: nothing of the box has been in it."""
    try:
        return os.stat("tree", dir_fd=box, follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:
        return True


def tree_path(box: int) -> bytes:
    return f"/proc/self/fd/{box}/tree".encode()


@contextlib.contextmanager
def tree(box: int) -> Iterator[int]:
    fd = open_beneath(box, b"tree", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def image(box: int, name: str = IMAGE, flags: int = 0) -> Iterator[int]:
    """Locked: a tool of an earlier spawner that still works on it holds the same lock through its copy of the
    descriptor. Unlocked for every copy once the work is done: a box that starts at that time has one until it execs.
    Busy."""
    try:
        fd = open_beneath(box, name.encode(), os.O_RDWR | flags, 0o600 if flags else 0)
    except OSError as error:
        raise of_os_error(error, "opening the box's disk image") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BlockingIOError as error:
        raise Busy("the box's disk image is being worked on", "ask again in a moment") from error
    finally:
        os.close(fd)
