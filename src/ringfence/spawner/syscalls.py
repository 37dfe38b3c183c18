"""System calls that the standard library lacks, by ctypes: namespaces, mounts by fd, keyrings, capabilities.

Thin: each function is one call, raises OSError, and decides nothing. Must never be given a path that a box chose.
Numbers: Linux uapi asm-generic/unistd.h (aarch64) and arch/x86/entry/syscalls/syscall_64.tbl.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Collection

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAP_SETGID, CAP_SETUID = 6, 7
# NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each with its lock bit: uid 0 gains nothing by exec, for good.
SECUREBITS_LOCKED = 0x1 | 0x2 | 0x4 | 0x8 | 0x40 | 0x80
LAST_CAP = 63

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_KEYCTL_JOIN_SESSION_KEYRING = 1
_RENAME_EXCHANGE = 2
_CAP_VERSION_3 = 0x2008_0522

_NUMBERS = {
    "x86_64": {"keyctl": 250, "pivot_root": 155, "capget": 125, "capset": 126, "rt_sigaction": 13, "renameat2": 316},
    "aarch64": {"keyctl": 219, "pivot_root": 41, "capget": 90, "capset": 91, "rt_sigaction": 134, "renameat2": 276},
}
# The same on every architecture: all younger than the common table (Linux 5.1).
_COMMON = {
    "open_tree": 428,
    "move_mount": 429,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _call(name: str, *arguments: object) -> int:
    number = _COMMON.get(name) or _NUMBERS[platform.machine()][name]
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *passed), name)


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def prctl(option: int, *arguments: int) -> int:
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(ctypes.c_int(option), *padded), "prctl")


def default_action(number: int) -> None:
    """SIG_DFL, also for 32 and 33, which the C library keeps for itself and refuses to reset: whoever started the
    server may have left them ignored, and that survives exec."""
    # struct sigaction of the kernel, all zero: handler SIG_DFL, flags, (restorer,) mask of 8 bytes; 32 bytes at most.
    _call("rt_sigaction", number, ctypes.create_string_buffer(32), None, 8)


def join_session_keyring() -> None:
    """A new, empty session keyring in place of the inherited one."""
    _call("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)


def mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    _check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), data), "mount")


def umount(target: bytes, flags: int) -> None:
    _check(_libc.umount2(target, ctypes.c_int(flags)), "umount")


def pivot_root(new: bytes, old: bytes) -> None:
    _call("pivot_root", new, old)


def exchange(dir_fd: int, one: bytes, other: bytes) -> None:
    """Two names of a directory change places at once."""
    _call("renameat2", dir_fd, one, dir_fd, other, _RENAME_EXCHANGE)


def clone_tree(fd: int, *, recursive: bool = False) -> int:
    """A detached copy of the mount at `fd` (an O_PATH descriptor), as a new close-on-exec descriptor."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    return _call("open_tree", fd, b"", flags)


def attach(tree_fd: int, target: bytes) -> None:
    """Mounts the detached tree at `target`, a path of the caller's own root."""
    _call("move_mount", tree_fd, b"", _AT_FDCWD, target, _MOVE_MOUNT_F_EMPTY_PATH)


def set_attributes(tree_fd: int, attributes: int) -> None:
    """Adds MOUNT_ATTR_* to the top mount of a detached tree."""
    request = struct.pack("=QQQQ", attributes, 0, 0, 0)
    _call("mount_setattr", tree_fd, b"", _AT_EMPTY_PATH, request, len(request))


def quota(fd: int, command: int, kind: int, number: int, data: bytearray) -> None:
    """quotactl_fd(2), Linux 5.14: of the file system that `fd` is on. `data` is read or filled by `command`."""
    buffer = (ctypes.c_char * len(data)).from_buffer(data)
    _call("quotactl_fd", fd, command << 8 | kind, number, buffer)


def drop_capabilities(keep: Collection[int] = ()) -> None:
    """Empties the permitted, effective and inheritable sets of the caller, but for `keep`: numbers below 32."""
    left = sum(1 << number for number in keep)
    _call("capset", struct.pack("=Ii", _CAP_VERSION_3, 0), struct.pack("=6I", left, left, left, 0, 0, 0))


def make_inheritable(wanted: Collection[int]) -> None:
    """Adds `wanted` (numbers below 32, permitted now) to the caller's inheritable set; ambient ones must be in it."""
    header, sets = struct.pack("=Ii", _CAP_VERSION_3, 0), ctypes.create_string_buffer(24)
    _call("capget", header, sets)
    words = list(struct.unpack("=6I", sets.raw))  # effective, permitted, inheritable; then the same for 32 and above
    words[2] |= sum(1 << number for number in wanted)
    _call("capset", header, struct.pack("=6I", *words))


def landlock_abi() -> int:
    """The Landlock version of the running kernel, 0 where there is none."""
    try:
        return _call("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0
