"""Makes the worker's system call filter of seccomp_table.py and puts it in force: classic BPF, packed by hand.

Another architecture's calls (int 0x80, x32) kill the process: their numbers mean something else. What the table does not
name is refused with EPERM. Must be installed last: it cannot be taken off, and opening of any kind is over then.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

from ringfence.host.egress.seccomp_table import CALLS, WORD, Call, Only

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
X32_BIT = 0x40000000
# struct seccomp_data { int nr; __u32 arch; __u64 instruction_pointer; __u64 args[6]; }, linux/seccomp.h
_NR, _ARCH, _ARGS = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # linux/bpf_common.h
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, k


def program(machine: str | None = None, calls: Sequence[Call] = CALLS) -> bytes:
    """The filter as an array of struct sock_filter. Raises ValueError on a machine without a table. For each row `jeq number`
    and a body that ends in a return, so no jump is longer than a row."""
    arch = platform.machine() if machine is None else machine
    if arch not in AUDIT_ARCH:
        raise ValueError(f"no system call table for {arch!r}; there is one for x86_64 and aarch64")
    code: list[Instruction] = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, AUDIT_ARCH[arch]), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, _NR))
    if arch == "x86_64":
        code += [(_AT_LEAST, 0, 1, X32_BIT), (_RETURN, 0, 0, _KILL)]
    for call in calls:
        number = call.x86_64 if arch == "x86_64" else call.aarch64
        if number is not None:
            body = _body(call.tests)
            code += [(_EQUAL, 0, len(body), number), *body]
    code.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def _body(tests: Sequence[Only]) -> list[Instruction]:
    """Allows when every test holds. Assembled from the end, so that each test knows how far the refusal is."""
    body: list[Instruction] = [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    for test in reversed(tests):
        body = [*_test(test, len(body) - 1), *body]
    return body


def _test(test: Only, refusal: int) -> list[Instruction]:
    """Falls out at its end when it holds, else jumps `refusal` further instructions. Little-endian: low word first."""
    code: list[Instruction] = [(_LOAD, 0, 0, _ARGS + 8 * test.arg)]
    if test.mask != WORD:
        code.append((_AND, 0, 0, test.mask))
    for position, value in enumerate(test.values, start=1):
        rest = len(test.values) - position
        code.append((_EQUAL, rest, 0 if rest else refusal, value))
    return code


def install(filter_code: bytes) -> None:
    """For the calling thread and whatever it starts; needs no_new_privs. Raises OSError."""
    buffer = ctypes.create_string_buffer(filter_code, len(filter_code))
    # struct sock_fprog { unsigned short len; struct sock_filter *filter; }, linux/filter.h
    record = struct.pack("@HP", len(filter_code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), record, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "seccomp")
