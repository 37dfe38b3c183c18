"""Opens paths below a directory fd so that nothing outside that directory is ever reached.

openat2(2) with RESOLVE_BENEATH does the walk in one call, so a folder that is swapped for a symlink in the middle of it
cannot lead out. It must never resolve a path first and open it afterwards, and never call realpath.

Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

NR_OPENAT2 = 437  # the same on x86_64 and aarch64 (the unified numbers begin at 424)
# The kernel answers EAGAIN when a rename or mount happened during the walk (openat2(2), ERRORS). A box can keep one
# going, so the tries are bounded; 64 were enough for 58 408 opens under a permanent RENAME_EXCHANGE.
TRIES = 64
PATH_MAX = 4096  # linux/limits.h, with the final NUL


class OpenHow(ctypes.Structure):
    """struct open_how of linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def open_beneath(
    dir_fd: int, path: bytes, flags: int, mode: int = 0, *, symlinks: bool = False, one_mount: bool = False
) -> int:
    """An fd (O_CLOEXEC) of `path` below `dir_fd`.

    `symlinks`: links are followed as long as they stay below; otherwise any link in the path is refused.
    `one_mount`: a mount point in the path is refused (EXDEV), a bind mount of the same file system too.
    Raises OSError: EXDEV leads out, ELOOP a link or a magic link, ENOENT, ENOTDIR, EACCES, EAGAIN after 64 races, ...
    ValueError: a path that no kernel takes (NUL, empty).
    """
    if not path or b"\0" in path:
        raise ValueError("a path must not be empty or have a NUL byte")
    if len(path) >= PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | (0 if symlinks else RESOLVE_NO_SYMLINKS)
    resolve |= RESOLVE_NO_XDEV if one_mount else 0
    # openat2 refuses a mode without O_CREAT or O_TMPFILE (EINVAL) where openat ignores it.
    making = flags & os.O_CREAT or flags & os.O_TMPFILE == os.O_TMPFILE
    how = OpenHow(flags | os.O_CLOEXEC, mode if making else 0, resolve)
    for _ in range(TRIES):
        fd, code = _openat2(dir_fd, path, how)
        if fd >= 0:
            return fd
        if code == errno.ENOSYS:
            return walk_beneath(dir_fd, path, flags, mode)
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code), path)


def _openat2(dir_fd: int, path: bytes, how: OpenHow) -> tuple[int, int]:
    """(fd or -1, errno). The GIL is released during the call; errno is this thread's private copy of it."""
    ctypes.set_errno(0)
    # Every variadic argument as the width that syscall(2) reads: a plain int would leave the upper half undefined.
    fd = _LIBC.syscall(
        ctypes.c_long(NR_OPENAT2),
        ctypes.c_long(dir_fd),
        ctypes.c_char_p(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    return int(fd), ctypes.get_errno()


def walk_beneath(dir_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
    """The same without openat2 (kernels before 5.6, or a filter that hides it): one component at a time, no link at
    all, no `..`. Stricter than the call: a link that stays inside is refused too. Raises OSError."""
    if path.startswith(b"/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    if path.endswith((b"/", b"/.")):
        flags |= os.O_DIRECTORY
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        last = parts[-1] if parts else b"."
        return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=here)
    finally:
        os.close(here)
