"""Goes down and up a tree that its owner may be rearranging meanwhile, with one open directory at a time.

Depth costs no stack, no fds and no path longer than one name. It must never follow a link, never cross a mount, and
never go up through `..` on trust: whoever renames a folder during the walk would decide where that leads. Each level
remembers which inode it was, and `..` counts only when it is that one.

Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from dataclasses import dataclass, field

from ringfence.spawner.openat import open_beneath

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
NR_FCHMODAT2 = 452  # Linux 6.6; the same on x86_64 and aarch64
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


@dataclass(slots=True)
class Level:
    """One folder on the way down."""

    name: bytes  # in the level above; b"" for the root
    identity: tuple[int, int]  # (st_dev, st_ino)
    todo: list[bytes] = field(default_factory=list)  # subfolders still to be visited
    rescans: int = 0
    kept: set[bytes] = field(default_factory=set)  # entries that are left alone from now on


class Descent:
    """A position below a root directory. Close it (a context manager)."""

    def __init__(self, root_fd: int, *, mend: bool = False) -> None:
        """`mend`: folders that their owner may not read, search or change are made 0700 on the way, the root as well."""
        self._mend = mend
        self._root = _open_root(root_fd, mend=mend)
        self.fd = os.dup(self._root)
        self.levels = [Level(b"", _identity(self.fd))]

    def __enter__(self) -> Descent:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        os.close(self._root)

    @property
    def level(self) -> Level:
        return self.levels[-1]

    def down(self, name: bytes) -> None:
        """Into a subfolder. OSError: EXDEV a mount point, ELOOP or ENOTDIR no folder (any more), ENOENT, EACCES."""
        below = open_directory(self.fd, name, mend=self._mend)
        self._move(below)
        self.levels.append(Level(name, _identity(below)))

    def up(self) -> bytes | None:
        """To the level above; the name of the folder that was left, as that level knows it. None: folders were moved
        meanwhile, and the position is now the deepest remembered level that is still where it was."""
        left = self.levels.pop()
        above = os.open("..", OPEN_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        if _identity(above) == self.level.identity:
            self._move(above)
            return left.name
        os.close(above)
        self._again_from_root()
        return None

    def _again_from_root(self) -> None:
        self._move(os.dup(self._root))
        for depth, level in enumerate(self.levels[1:], start=1):
            try:
                below = open_directory(self.fd, level.name, mend=self._mend)
            except OSError:
                del self.levels[depth:]
                return
            if _identity(below) != level.identity:
                os.close(below)
                del self.levels[depth:]
                return
            self._move(below)

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


def open_directory(dir_fd: int, name: bytes, *, mend: bool = False) -> int:
    """A folder of `dir_fd`, opened for reading without following a link or crossing a mount. `mend`: see Descent."""
    try:
        fd = open_beneath(dir_fd, name, OPEN_DIRECTORY, one_mount=True)
    except PermissionError:
        if not mend:
            raise
        change_mode(dir_fd, name, 0o700)
        fd = open_beneath(dir_fd, name, OPEN_DIRECTORY, one_mount=True)
    if mend:
        make_usable(fd)
    return fd


def _open_root(root_fd: int, *, mend: bool) -> int:
    """`root_fd` may be O_PATH: then its own mode is still in the way."""
    try:
        return os.open(".", OPEN_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)
    except PermissionError:
        if not mend:
            raise
        code = _fchmodat2(root_fd, b"", 0o700, AT_EMPTY_PATH)
        if code == errno.ENOSYS:  # the link names the inode that is open, whatever its path is by now
            os.chmod(f"/proc/self/fd/{root_fd}", 0o700)
        elif code:
            raise OSError(code, os.strerror(code)) from None
        return os.open(".", OPEN_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)


def make_usable(dir_fd: int) -> None:
    """Gives the owner of a folder all rights on it, where that is ours to give."""
    mode = stat.S_IMODE(os.fstat(dir_fd).st_mode)
    if mode & 0o700 != 0o700:
        with contextlib.suppress(PermissionError):  # not its owner: what follows says so
            os.fchmod(dir_fd, mode | 0o700)


def change_mode(dir_fd: int, name: bytes, mode: int) -> None:
    """chmod of a folder that cannot be opened. Before Linux 6.6 no call does that without following a link; the plain
    one is harmless here, because whoever swaps the folder for a link has the uid that we run as."""
    code = _fchmodat2(dir_fd, name, mode, AT_SYMLINK_NOFOLLOW)
    if code == errno.ENOSYS:
        os.chmod(name, mode, dir_fd=dir_fd)
    elif code:
        raise OSError(code, os.strerror(code), name)


def _fchmodat2(dir_fd: int, name: bytes, mode: int, flags: int) -> int:
    ctypes.set_errno(0)
    result = _LIBC.syscall(
        ctypes.c_long(NR_FCHMODAT2),
        ctypes.c_long(dir_fd),
        ctypes.c_char_p(name),
        ctypes.c_long(mode),
        ctypes.c_long(flags),
    )
    return 0 if result == 0 else ctypes.get_errno()


def _identity(fd: int) -> tuple[int, int]:
    seen = os.fstat(fd)
    return seen.st_dev, seen.st_ino
