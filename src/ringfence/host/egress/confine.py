"""How a worker closes itself in, before it sees a byte: another id, no right, no file, no program, no process.

    ids         the box's egress id alone; no capability, no_new_privs, not dumpable
    limits      1024 descriptors, 512 MiB, no process or thread more, no core, files (of memory) of 64 KiB
    Landlock    no path at all, no port to listen on, no signal or abstract socket out of it (where the kernel has that)
    seccomp     the calls of seccomp_table.py

Each is a wall of its own. Must raise rather than leave one out; but for Landlock on a kernel without it (`no-landlock`, which
the spawner's greeting tells): there its id alone keeps a worker from reading files.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import resource
import struct
from collections.abc import Collection

from ringfence.host.egress import seccomp

# 128 connections of a box, as many upstream, 64 that wait, and 600 listeners of invocations (sockets.MOST)
NOFILE = 1024
MEMORY = 512 << 20  # bytes of address space; some 100 MiB are the loaded libraries'
MEMORY_FILE = 64 << 10  # bytes: a certificate chain and its key as PEM have some 3 KiB

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CAP_VERSION_3 = 0x2008_0522
_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # Landlock; the same on every architecture
_CAPSET = {"x86_64": 126, "aarch64": 91}
# linux/landlock.h: what a ruleset handles it denies. Bits of struct landlock_ruleset_attr by the ABI that brought them.
_FILES = {1: 0x1FFF, 2: 0x2000, 3: 0x4000, 5: 0x8000}  # all of ABI 1; refer; truncate; ioctl on devices
_BIND_TCP = 0x1  # ABI 4; connecting is what a worker is for
_SCOPES = 0x3  # ABI 6: abstract unix sockets and signals

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def close_in(uid: int, keep: Collection[int], *, filter_code: bytes) -> None:
    """All of it, in the order that lets each step be taken. `keep`: descriptors that stay open besides 0, 1 and 2, which
    lead nowhere. Raises OSError."""
    only_these(keep)
    become(uid)
    set_limits()
    no_files()
    gc.freeze()
    seccomp.install(filter_code)


def only_these(keep: Collection[int]) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    edges = [2, *sorted(keep), os.sysconf("SC_OPEN_MAX")]
    for low, high in itertools.pairwise(edges):
        os.closerange(low + 1, high)


def become(uid: int) -> None:
    """uid and gid for good. The template has no other groups, and locked securebits: capabilities are dropped by hand."""
    if os.getresuid() != (uid, uid, uid):
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header, none = struct.pack("=Ii", _CAP_VERSION_3, 0), struct.pack("=6I", *([0] * 6))
    _checked(_libc.syscall(ctypes.c_long(_CAPSET[os.uname().machine]), header, none), "capset")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    not_dumpable()  # after the ids: a change of them sets it to what the host's sysctl says


def set_limits() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEMORY_FILE, MEMORY_FILE))
    resource.setrlimit(resource.RLIMIT_NOFILE, (NOFILE, NOFILE))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def landlock_abi() -> int:
    """0: this kernel has none."""
    return max(0, int(_libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def ruleset(abi: int) -> bytes:
    """struct landlock_ruleset_attr { __u64 handled_access_fs, handled_access_net, scoped; }, as long as that ABI knows it."""
    files = sum(bits for since, bits in _FILES.items() if since <= abi)
    fields = [files, *([_BIND_TCP] if abi >= 4 else []), *([_SCOPES] if abi >= 6 else [])]
    return struct.pack(f"={len(fields)}Q", *fields)


def no_files() -> None:
    """A Landlock domain that allows nothing of what it handles. A memory file is on no mounted file system and is not
    judged."""
    abi = landlock_abi()
    if abi == 0:
        return
    rules = ruleset(abi)
    fd = _checked(
        _libc.syscall(ctypes.c_long(_CREATE_RULESET), rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0)),
        "landlock",
    )
    try:
        _checked(_libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(fd), ctypes.c_uint32(0)), "landlock")
    finally:
        os.close(fd)


def not_dumpable() -> None:
    """No core file, and nobody of its own id looks into its memory or its descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(n) for n in (value, 0, 0, 0))), "prctl")


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
