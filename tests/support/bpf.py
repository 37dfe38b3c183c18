"""A classic BPF machine for system call filters: what the kernel would answer, one instruction at a time."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def decode(program: bytes) -> list[tuple[int, int, int, int]]:
    return [struct.unpack_from("<HBBI", program, offset) for offset in range(0, len(program), 8)]


def run(code: Sequence[tuple[int, int, int, int]], arch: int, nr: int, args: Sequence[int]) -> int:
    """The 32-bit answer. IndexError, AssertionError: a program that the kernel would refuse."""
    data = struct.pack("<IIQ6Q", nr, arch, 0, *args)
    accumulator, at = 0, 0
    while True:
        op, jt, jf, k = code[at]
        at += 1
        if op == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            assert k % 4 == 0 and k <= len(data) - 4
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif op == 0x54:  # BPF_ALU | BPF_AND | BPF_K
            accumulator &= k
        elif op == 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
            at += jt if accumulator == k else jf
        elif op == 0x35:  # BPF_JMP | BPF_JGE | BPF_K
            at += jt if accumulator >= k else jf
        elif op == 0x06:  # BPF_RET | BPF_K
            return k
        else:
            raise AssertionError(f"instruction {op:#x}")
