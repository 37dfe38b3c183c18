"""Makes the box's system call filter from seccomp_table.py, without libseccomp: classic BPF, packed by hand.

`program` is what the kernel runs, `model` says the same in plain Python; the tests hold one against the other. The
filter kills what is not of the machine it was made for (int 0x80, x32): numbers mean something else there. It must
never fall through to an answer that the table does not give.

Layout: for each row `jeq number, 0, len(body)` and a body that ends in a return, so that no jump is longer than a row
(classic BPF jumps reach 255 instructions) however many rows there are. Standard library only.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ringfence.spawner.seccomp_table import ROWS, WORD, Is, NotNull, Row, Test

Arch = Literal["x86_64", "aarch64"]

# linux/audit.h: EM_X86_64 62, EM_AARCH64 183, both 64 bit and little-endian
AUDIT_ARCH: dict[Arch, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000  # of a number: the x32 table, or nothing at all

# struct seccomp_data { int nr; __u32 arch; __u64 instruction_pointer; __u64 args[6]; }, linux/seccomp.h
OFFSET_NR, OFFSET_ARCH, OFFSET_ARGS = 0, 4, 16
LD_W_ABS, JEQ, JGE, AND, RET = 0x20, 0x15, 0x35, 0x54, 0x06  # linux/bpf_common.h
RET_KILL_PROCESS, RET_ERRNO, RET_ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
MAX_INSTRUCTIONS = 4096  # BPF_MAXINSNS

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, k


@dataclass(frozen=True, slots=True)
class Action:
    """What happens to a call. `error` is 0 but for `errno`."""

    kind: Literal["allow", "errno", "kill"]
    error: int = 0


ALLOW = Action("allow")
KILL = Action("kill")


def machine() -> Arch:
    """This machine's. Raises ValueError on one that has no table."""
    return arch_named(platform.machine())


def arch_named(name: str) -> Arch:
    if name == "x86_64":
        return "x86_64"
    if name in ("aarch64", "arm64"):
        return "aarch64"
    raise ValueError(f"no system call table for {name!r}; there is one for x86_64 and aarch64")


def number(row: Row, arch: Arch) -> int | None:
    return row.x86_64 if arch == "x86_64" else row.aarch64


# --- the filter ------------------------------------------------------------------------------------------------------


def program(arch: str | None = None) -> bytes:
    """The filter as an array of struct sock_filter, as `bwrap --seccomp FD` and SECCOMP_SET_MODE_FILTER take it."""
    wanted = machine() if arch is None else arch_named(arch)
    code = _head(wanted)
    for row in ROWS:
        nr = number(row, wanted)
        if nr is not None:
            body = _body(row)
            code += [(JEQ, 0, len(body), nr), *body]
    code.append((RET, 0, 0, RET_ALLOW))
    return pack(code)


def pack(code: Sequence[Instruction]) -> bytes:
    if len(code) > MAX_INSTRUCTIONS:
        raise ValueError(f"{len(code)} instructions; the kernel takes {MAX_INSTRUCTIONS}")
    # struct sock_filter { __u16 code; __u8 jt; __u8 jf; __u32 k; }; "B" refuses a jump of more than 255
    return b"".join(struct.pack("<HBBI", op, jt, jf, k) for op, jt, jf, k in code)


def _head(arch: Arch) -> list[Instruction]:
    head = [(LD_W_ABS, 0, 0, OFFSET_ARCH), (JEQ, 1, 0, AUDIT_ARCH[arch]), (RET, 0, 0, RET_KILL_PROCESS)]
    head.append((LD_W_ABS, 0, 0, OFFSET_NR))
    if arch == "x86_64":
        head += [(JGE, 0, 1, X32_BIT), (RET, 0, 0, RET_KILL_PROCESS)]
    return head


def _body(row: Row) -> list[Instruction]:
    deny = (RET, 0, 0, RET_ERRNO | row.error)
    if not row.cases:
        return [deny]
    body: list[Instruction] = []
    for case in row.cases:
        body += _case(case, deny)
    return [*body, (RET, 0, 0, RET_ALLOW)]


def _case(case: Sequence[Test], deny: Instruction) -> list[Instruction]:
    """Every test holds: `deny`. One does not: past it, to the next case. Assembled from the end, so that each test
    knows how far that is."""
    tail = [deny]
    for test in reversed(case):
        tail = _test(test, len(tail)) + tail
    return tail


def _test(test: Test, past: int) -> list[Instruction]:
    """Falls out at its end when it holds, else jumps `past` further instructions."""
    low = OFFSET_ARGS + 8 * test.arg  # little-endian: the low word comes first
    if isinstance(test, NotNull):
        return [(LD_W_ABS, 0, 0, low), (JEQ, 0, 2, 0), (LD_W_ABS, 0, 0, low + 4), (JEQ, past, 0, 0)]
    code: list[Instruction] = [(LD_W_ABS, 0, 0, low)]
    if test.mask != WORD:
        code.append((AND, 0, 0, test.mask))
    for position, value in enumerate(test.values, start=1):
        rest = len(test.values) - position  # comparisons after this one
        if isinstance(test, Is):
            code.append((JEQ, rest, 0 if rest else past, value))
        else:
            code.append((JEQ, rest + past, 0, value))
    return code


# --- the model -------------------------------------------------------------------------------------------------------


def model(arch: str | None = None) -> Callable[..., Action]:
    """`verdict(nr, args, audit_arch=the machine's)`: what the filter must do. `args`: six 64-bit numbers."""
    wanted = machine() if arch is None else arch_named(arch)
    rows = {nr: row for row in ROWS if (nr := number(row, wanted)) is not None}

    def verdict(nr: int, args: Sequence[int], audit_arch: int = AUDIT_ARCH[wanted]) -> Action:
        if audit_arch != AUDIT_ARCH[wanted]:
            return KILL
        if wanted == "x86_64" and nr >= X32_BIT:
            return KILL
        row = rows.get(nr)
        if row is None:
            return ALLOW
        denied = not row.cases or any(all(_holds(test, args) for test in case) for case in row.cases)
        return Action("errno", row.error) if denied else ALLOW

    return verdict


def _holds(test: Test, args: Sequence[int]) -> bool:
    value = args[test.arg]
    if isinstance(test, NotNull):
        return value != 0
    inside = (value & test.mask) in test.values
    return inside if isinstance(test, Is) else not inside
