"""Runs a function, or a program, under a system call filter in a child, as an account without rights."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
from collections.abc import Callable

from ringfence.spawner.seccomp import RET_ERRNO

# A uid that no account and no box has (boxes: 1879048192-2147483646), so that "all processes of my uid" are ours.
FIRST_UID = 1_800_000_000
MARK = 1000  # added to every errno of a marked filter: an answer that no kernel gives by itself
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_DUMPABLE, PR_SET_PDEATHSIG = 38, 22, 4, 1
SECCOMP_MODE_FILTER = 2

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


class FilterProgram(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def marked(program: bytes) -> bytes:
    """The same filter with errno + MARK in every refusal."""
    out = []
    for op, jt, jf, k in struct.iter_unpack("<HBBI", program):
        refusal = op == 0x06 and k & 0xFFFF0000 == RET_ERRNO
        out.append(struct.pack("<HBBI", op, jt, jf, k + MARK if refusal else k))
    return b"".join(out)


def install(program: bytes) -> None:
    """For this process and all that come from it."""
    buffer = ctypes.create_string_buffer(program, len(program))
    described = FilterProgram(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or LIBC.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "the filter was not accepted")


def syscall(nr: int, *args: int) -> int:
    """The result, or -errno."""
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(nr), *[ctypes.c_ulong(arg & (1 << 64) - 1) for arg in args])
    return int(result) if result != -1 else -ctypes.get_errno()


def drop() -> None:
    """Root becomes an account that is nobody's; an ordinary user stays."""
    if os.geteuid() == 0:
        uid = FIRST_UID + os.getpid()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def in_child(work: Callable[[], object], program: bytes | None) -> tuple[object, int]:
    """(what `work` returned, as JSON carries it; None when it did not return, exit code or -signal)"""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            drop()
            if program is not None:
                install(program)
            os.write(writing, json.dumps(work()).encode())
            os._exit(0)
        finally:
            os._exit(99)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(answer) if answer else None, os.waitstatus_to_exitcode(status)
