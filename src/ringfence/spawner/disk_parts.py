"""The parts of one box's disk, found and opened beneath its directory, which no box can write."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from ringfence.spawner.errors import Busy, of_os_error
from ringfence.spawner.openat import open_beneath

IMAGE = "disk.img"
MADE = ".disk.img.new"  # becomes IMAGE when it is whole
BESIDE_IMAGE = "beside.img"  # of a tree that is to take the place of the box's
# {"inodes": as asked for, which the image rounds up; "growing": bytes that it had before a growth, while that is under way}
RECORD = "disk.json"


def mounted(box: int) -> bool:
    """Whether something is mounted on the box's tree."""
    try:
        return os.stat("tree", dir_fd=box, follow_symlinks=False).st_dev != os.fstat(box).st_dev
    except FileNotFoundError:
        return False


def takes_writes(box: int) -> bool:
    """Whether the tree's file system does, tried without changing a thing. No flag of a mount shows what ext4 does after
    an error since Linux 6.12, so only trying tells."""
    with tree(box) as fd:
        seen = os.fstat(fd)
        try:
            os.utime(fd, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        except OSError as error:
            return error.errno not in (errno.EROFS, errno.EIO)
    return True


def looks_read_only(box: int) -> bool:
    """As `takes_writes`, by looking alone: since Linux 6.15 ext4's options tell (before 6.12 the mount's own flags)."""
    seen = os.stat("tree", dir_fd=box, follow_symlinks=False)
    with contextlib.suppress(OSError), open(f"/proc/fs/ext4/loop{os.minor(seen.st_dev)}/options") as options:
        return bool({"ro", "emergency_ro"} & set(options.read().split()))
    return bool(os.statvfs(tree_path(box)).f_flag & os.ST_RDONLY)


def has(box: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=box, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def untouched(box: int) -> bool:
    """No tree yet, or one that is still the spawner's: nothing of the box has been in it."""
    try:
        seen = os.stat("tree", dir_fd=box, follow_symlinks=False)
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()  # a planted link is refused by who opens it


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
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy("the box's disk image is being worked on", "ask again in a moment") from error
        yield fd
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)
