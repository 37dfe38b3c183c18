"""The worker's filter, by a machine that does what the kernel does: exactly the table passes, on both processors."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.host.egress import confine, seccomp
from ringfence.host.egress.seccomp import AUDIT_ARCH, program
from ringfence.host.egress.seccomp_table import CALLS, Call
from tests.support import bpf

ALLOW, DENY, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
CODE = {arch: bpf.decode(program(arch)) for arch in AUDIT_ARCH}
WORDS = (0, 1, 2, 3, 5, 10, 16, 17, 0x802, 0x5421, 0o101, 0o2000000, 0x200000, 0xFFFFFFFF)


def number(call: Call, arch: str) -> int | None:
    return call.x86_64 if arch == "x86_64" else call.aarch64


def expected(arch: str, nr: int, args: tuple[int, ...]) -> int:
    call = next((one for one in CALLS if number(one, arch) == nr), None)
    if call is None or not all((args[test.arg] & 0xFFFFFFFF & test.mask) in test.values for test in call.tests):
        return DENY
    return ALLOW


words = st.builds(lambda low, high: high << 32 | low, st.sampled_from(WORDS), st.sampled_from((0, 1, 0xFFFFFFFF)))


@given(st.sampled_from(sorted(AUDIT_ARCH)), st.integers(0, 500), st.tuples(*[words] * 6))
@settings(max_examples=3000)
def test_the_table_and_no_more(arch: str, nr: int, args: tuple[int, ...]) -> None:
    assert bpf.run(CODE[arch], AUDIT_ARCH[arch], nr, args) == expected(arch, nr, args)


@pytest.mark.parametrize("arch", sorted(AUDIT_ARCH))
def test_every_row_is_reached(arch: str) -> None:
    for call in CALLS:
        nr = number(call, arch)
        if nr is not None:
            args = [0] * 6
            for test in call.tests:
                args[test.arg] = test.values[0]
            assert bpf.run(CODE[arch], AUDIT_ARCH[arch], nr, args) == ALLOW, call.name


def test_other_machines_calls_kill() -> None:
    none = (0,) * 6
    assert bpf.run(CODE["x86_64"], 0x40000003, 1, none) == KILL  # i386, int 0x80
    assert bpf.run(CODE["x86_64"], AUDIT_ARCH["x86_64"], 0x40000000, none) == KILL  # x32
    assert bpf.run(CODE["aarch64"], AUDIT_ARCH["x86_64"], 0, none) == KILL
    with pytest.raises(ValueError, match="riscv64"):
        program("riscv64")


NEVER = (
    "execve execveat fork vfork clone clone3 ptrace process_vm_readv kill tgkill tkill open creat openat2 stat unlink rename "
    "bind listen setuid setresuid capset prctl mount unshare setns io_uring_setup bpf pidfd_open pidfd_getfd keyctl chroot"
)


def test_what_a_worker_must_never_have_is_not_there() -> None:
    assert not set(NEVER.split()) & {call.name for call in CALLS}
    assert len({call.name for call in CALLS}) == len(CALLS)


def x86(nr: int, *args: int) -> int:
    return bpf.run(CODE["x86_64"], AUDIT_ARCH["x86_64"], nr, (*args, 0, 0, 0, 0, 0, 0)[:6])


def test_arguments_are_judged() -> None:
    flags = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    assert x86(41, socket.AF_INET, socket.SOCK_STREAM | flags) == x86(41, socket.AF_INET6, socket.SOCK_DGRAM) == ALLOW
    for family, kind in (
        (socket.AF_UNIX, 1),
        (socket.AF_NETLINK, 2),
        (socket.AF_PACKET, 2),
        (socket.AF_INET, 3),
        (40, 1),
    ):
        assert x86(41, family, kind) == DENY
    assert x86(53, socket.AF_UNIX, socket.SOCK_STREAM | flags) == ALLOW and x86(53, socket.AF_INET, 1) == DENY
    for kind in (
        socket.SOCK_DGRAM,
        socket.SOCK_RAW,
        socket.SOCK_SEQPACKET,
    ):  # unix_create makes a datagram socket of RAW
        assert x86(53, socket.AF_UNIX, kind | flags) == DENY
    reading = (os.O_RDONLY, os.O_RDONLY | os.O_CLOEXEC, os.O_RDONLY | os.O_NOFOLLOW)
    assert {x86(257, 0xFFFFFF9C, 0, how) for how in reading} == {ALLOW}
    for how in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_PATH, os.O_TMPFILE | os.O_RDWR):
        assert x86(257, 0xFFFFFF9C, 0, how) == DENY
    for nr in (9, 10):
        assert x86(nr, 0, 4096, mmap.PROT_READ | mmap.PROT_WRITE) == ALLOW
        assert x86(nr, 0, 4096, mmap.PROT_READ | mmap.PROT_EXEC) == DENY
    assert x86(72, 3, fcntl.F_DUPFD_CLOEXEC) == ALLOW and x86(72, 3, fcntl.F_SETOWN) == DENY
    assert x86(16, 3, 0x5412) == DENY  # TIOCSTI


@pytest.mark.parametrize(
    ("abi", "fields"),
    [
        (1, (0x1FFF,)),
        (2, (0x3FFF,)),
        (3, (0x7FFF,)),
        (4, (0x7FFF, 1)),
        (5, (0xFFFF, 1)),
        (6, (0xFFFF, 1, 3)),
        (7, (0xFFFF, 1, 3)),
    ],
)
def test_a_ruleset_denies_all_that_its_kernel_knows(abi: int, fields: tuple[int, ...]) -> None:
    assert confine.ruleset(abi) == b"".join(field.to_bytes(8, "little") for field in fields)


def test_the_filter_fits() -> None:
    assert all(len(seccomp.program(arch)) // 8 < 4096 for arch in AUDIT_ARCH)
