"""Project quotas: bytes and inodes of one directory tree, counted and bounded by its file system (quotactl(2), type 2).

The box's uid is its project. The mark is inherited by everything made below and can be changed from the host's own user
namespace only, which no box is in. Thin: each function is one call. Must never be used for a project that is not a
box's uid.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from dataclasses import dataclass

from ringfence.spawner import syscalls

_FS_GETXATTR, _FS_SETXATTR = 0x801C_581F, 0x401C_5820  # linux/fs.h
_XATTR = struct.Struct("=5I8x")  # struct fsxattr: xflags, extsize, nextents, projid, cowextsize
_PROJINHERIT = 0x200
_PROJECT = 2  # PRJQUOTA
_GETINFO, _GETQUOTA, _SETQUOTA = 0x80_0005, 0x80_0007, 0x80_0008
# struct if_dqblk: block hard and soft limit (KiB), space used (bytes), inode hard and soft limit, used; two times; valid
_BLOCK = struct.Struct("=8QI4x")
_LIMITS = 1 | 4  # QIF_BLIMITS, QIF_ILIMITS
_OPTIONS = {"prjquota", "pquota"}


@dataclass(frozen=True, slots=True)
class Counted:
    used: int  # bytes
    limit: int  # 0: none
    inodes: int
    inode_limit: int


def enforced(directory: int) -> bool:
    """Whether the file system that `directory` is on bounds projects: mounted so, and the kernel answers."""
    status = os.fstat(directory)
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        lines = [line.split() for line in table]
    options = {word for line in lines if line[2] == number for word in line[-1].split(",")}
    if not options & _OPTIONS:
        return False
    with contextlib.suppress(OSError):
        syscalls.quota(directory, _GETINFO, _PROJECT, 0, bytearray(64))
        return True
    return False


def mark(directory: int, project: int) -> None:
    """Everything made below `directory` from now on is of `project`. A readable descriptor. Raises OSError."""
    raw = list(_XATTR.unpack(fcntl.ioctl(directory, _FS_GETXATTR, bytes(_XATTR.size))))
    raw[0], raw[3] = raw[0] | _PROJINHERIT, project
    fcntl.ioctl(directory, _FS_SETXATTR, _XATTR.pack(*raw))


def project_of(directory: int) -> int:
    """0: none, or a file system without projects."""
    try:
        raw = _XATTR.unpack(fcntl.ioctl(directory, _FS_GETXATTR, bytes(_XATTR.size)))
    except OSError:
        return 0
    return int(raw[3]) if raw[0] & _PROJINHERIT else 0


def limit(directory: int, project: int, size: int, inodes: int) -> None:
    """Hard limits; 0 is none. Raises OSError."""
    kib = (size + 1023) >> 10
    request = bytearray(_BLOCK.pack(kib, 0, 0, inodes, 0, 0, 0, 0, _LIMITS))
    syscalls.quota(directory, _SETQUOTA, _PROJECT, project, request)


def count(directory: int, project: int) -> Counted:
    """Raises OSError."""
    answer = bytearray(_BLOCK.size)
    syscalls.quota(directory, _GETQUOTA, _PROJECT, project, answer)
    hard, _, used, inode_hard, _, inodes, *_ = _BLOCK.unpack(answer)
    return Counted(used, hard << 10, inodes, inode_hard)
