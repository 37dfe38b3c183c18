"""The filter against the model of the same table, on both machines; and the table against what the design demands."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringfence.spawner import seccomp, seccomp_table
from ringfence.spawner.seccomp import ALLOW, AUDIT_ARCH, KILL, RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS, Action, Arch
from tests.support import bpf

ARCHES: tuple[Arch, ...] = ("x86_64", "aarch64")
PROGRAMS = {arch: bpf.decode(seccomp.program(arch)) for arch in ARCHES}
# What an argument may be to reach a comparison from either side, with and without rubbish in the upper half.
WORDS = (0, 1, 2, 3, 8, 10, 16, 17, 40, 0x5412, 0x541C, 0x10000000, 0x7E020000, 0x11, 0o020000, 0o060644, 0xFFFFFFFF)
FOREIGN = (0x40000003, 0x40000028, 0xC0000015, 0)  # i386, arm, ppc64le, none


def answer(action: Action) -> int:
    return {"allow": RET_ALLOW, "kill": RET_KILL_PROCESS, "errno": RET_ERRNO | action.error}[action.kind]


def compare(arch: Arch, audit_arch: int, nr: int, args: tuple[int, ...]) -> None:
    expected = seccomp.model(arch)(nr, args, audit_arch)
    assert bpf.run(PROGRAMS[arch], audit_arch, nr, args) == answer(expected), (arch, audit_arch, nr, args)


def numbers(arch: Arch) -> list[int]:
    return [nr for row in seccomp_table.ROWS if (nr := seccomp.number(row, arch)) is not None]


words = st.builds(lambda low, high: high << 32 | low, st.sampled_from(WORDS) | st.integers(0, 2**32 - 1),
                  st.sampled_from((0, 0, 1, 0xFFFFFFFF)) | st.integers(0, 2**32 - 1))  # fmt: skip


@settings(max_examples=2000, deadline=None)
@given(st.data())
def test_filter_and_model_agree(data: st.DataObject) -> None:
    arch = data.draw(st.sampled_from(ARCHES))
    audit_arch = data.draw(st.just(AUDIT_ARCH[arch]) | st.sampled_from((*FOREIGN, *AUDIT_ARCH.values())))
    nr = data.draw(st.sampled_from(numbers(arch)) | st.integers(0, 2**32 - 1))
    compare(arch, audit_arch, nr, data.draw(st.tuples(*[words] * 6)))


def test_filter_and_model_agree_20000_times() -> None:
    source = random.Random(5417)
    seen = set()
    for _ in range(20_000):
        arch = source.choice(ARCHES)
        audit_arch = source.choice((*FOREIGN, *AUDIT_ARCH.values())) if source.random() < 0.05 else AUDIT_ARCH[arch]
        nr = (
            source.choice(numbers(arch))
            if source.random() < 0.8
            else source.choice((source.getrandbits(9), source.getrandbits(32)))
        )
        args = tuple(
            source.choice((0, 0, 0, 1, source.getrandbits(32))) << 32 | source.choice((*WORDS, source.getrandbits(32)))
            for _ in range(6)
        )
        compare(arch, audit_arch, nr, args)
        seen.add(seccomp.model(arch)(nr, args, audit_arch))
    assert {ALLOW, KILL, Action("errno", errno.EPERM), Action("errno", errno.ENOSYS)} <= seen


@pytest.mark.parametrize("arch", ARCHES)
def test_an_upper_half_never_changes_a_verdict_of_an_int(arch: Arch) -> None:
    """The kernel drops it, so a filter that looked at it could be passed."""
    verdict = seccomp.model(arch)
    for row in seccomp_table.CONDITIONAL:
        nr = seccomp.number(row, arch)
        if nr is None or row.name == "prlimit64":
            continue
        for low in WORDS:
            args = (low, low, low, 0, 0, 0)
            high = tuple(arg | 0xDEADBEEF << 32 for arg in args)
            assert verdict(nr, args) == verdict(nr, high), (row.name, low)
            compare(arch, AUDIT_ARCH[arch], nr, high)


def nr_of(name: str, arch: Arch) -> int:
    (row,) = (row for row in seccomp_table.ROWS if row.name == name)
    nr = seccomp.number(row, arch)
    assert nr is not None
    return nr


# The strict list of the hardening profile, written down a second time: a row that gets lost is missed here.
EPERM = """syslog uselib acct quotactl quotactl_fd add_key request_key keyctl move_pages mbind get_mempolicy set_mempolicy
set_mempolicy_home_node migrate_pages unshare setns mount umount2 pivot_root chroot clone bpf perf_event_open userfaultfd
io_uring_setup io_uring_enter io_uring_register fanotify_init lookup_dcookie ptrace process_vm_readv process_vm_writev
process_madvise kcmp pidfd_getfd kexec_load kexec_file_load init_module finit_module delete_module create_module
query_module reboot swapon swapoff iopl ioperm modify_ldt settimeofday clock_settime clock_adjtime adjtimex sethostname
setdomainname vhangup nfsservctl _sysctl sysfs ustat name_to_handle_at open_by_handle_at prlimit64 setpriority ioprio_set
sched_setscheduler sched_setparam sched_setattr sched_setaffinity ioctl personality mknod mknodat"""
ENOSYS = """clone3 open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr statmount listmount
memfd_secret io_setup lsm_set_self_attr"""

ONLY_X86 = "uselib create_module query_module iopl ioperm modify_ldt _sysctl sysfs ustat mknod"


def test_the_table_is_the_whole_list() -> None:
    wanted = dict.fromkeys(EPERM.split(), errno.EPERM) | dict.fromkeys(ENOSYS.split(), errno.ENOSYS)
    wanted |= dict.fromkeys(("socket", "socketpair"), errno.EAFNOSUPPORT)
    assert {row.name: row.error for row in seccomp_table.ROWS} == wanted
    only_x86 = {row.name for row in seccomp_table.ROWS if row.aarch64 is None}
    assert only_x86 == set(ONLY_X86.split())
    assert all(row.x86_64 is not None for row in seccomp_table.ROWS)


PERM, MISSING, FAMILY = (Action("errno", e) for e in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("prlimit64", (0, 7, 1, 0), ALLOW),
        ("prlimit64", (1, 7, 0, 1), ALLOW),
        ("prlimit64", (1, 7, 1, 0), PERM),
        ("prlimit64", (1, 7, 1 << 32, 0), PERM),  # a pointer whose low half is zero
        ("prlimit64", (1 << 32, 7, 1, 0), ALLOW),  # pid 0 with rubbish above
        ("setpriority", (0, 0, 19), ALLOW),
        ("setpriority", (0, 1, 19), PERM),
        ("setpriority", (1, 0, 19), PERM),
        ("setpriority", (2, 0, 19), PERM),
        ("setpriority", (2, 1000, 19), PERM),
        ("ioprio_set", (1, 0, 0), ALLOW),
        ("ioprio_set", (1, 1, 0), PERM),
        ("ioprio_set", (3, 0, 0), PERM),
        ("sched_setscheduler", (0, 5, 1), ALLOW),
        ("sched_setscheduler", (1, 5, 1), PERM),
        ("sched_setparam", (77, 1), PERM),
        ("sched_setattr", (77, 1, 0), PERM),
        ("sched_setaffinity", (77, 8, 1), ALLOW),
        ("sched_setaffinity", (0, 8, 1), ALLOW),
        ("sched_setaffinity", (1, 8, 1), PERM),
        ("clone", (0x00010F00 | 17,), ALLOW),  # a thread's flags and SIGCHLD
        ("clone", (0x01200011,), ALLOW),  # glibc's fork
        *[("clone", (1 << bit,), PERM) for bit in (17, 25, 26, 27, 28, 29, 30)],
        ("clone3", (0, 0), MISSING),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), PERM),
        ("ioctl", (0, 0x541C), PERM),
        ("ioctl", (0, 0x5412 | 1 << 32), PERM),
        ("personality", (0xFFFFFFFF,), ALLOW),
        ("personality", (0xFFFFFFFFFFFFFFFF,), ALLOW),
        ("personality", (8,), ALLOW),
        ("personality", (0x0040000,), PERM),  # ADDR_NO_RANDOMIZE
        ("personality", (0x0400000,), PERM),  # READ_IMPLIES_EXEC
        *[("socket", (family, 1, 0), ALLOW) for family in (1, 2, 10, 16)],
        *[("socket", (family, 1, 0), FAMILY) for family in (0, 3, 4, 17, 31, 38, 40, 44)],
        ("socket", (16, 3, 9), FAMILY),  # NETLINK_AUDIT
        ("socket", (16, 3, 12), FAMILY),  # NETLINK_NETFILTER
        ("socket", (2, 10, 0), FAMILY),  # SOCK_PACKET
        ("socket", (2, 10 | 0o2000000, 0), FAMILY),
        ("socket", (2, 3, 1), ALLOW),  # raw: the kernel asks for a capability
        ("socketpair", (1, 1, 0), ALLOW),
        ("socketpair", (30, 1, 0), FAMILY),  # TIPC
        ("mknodat", (0, 0, 0o100644), ALLOW),
        ("mknodat", (0, 0, 0o010644), ALLOW),
        ("mknodat", (0, 0, 0o140644), ALLOW),
        ("mknodat", (0, 0, 0o020644), PERM),
        ("mknodat", (0, 0, 0o060644), PERM),
    ],
)
def test_rows_judged_by_argument(arch: Arch, name: str, args: tuple[int, ...], expected: Action) -> None:
    six = (*args, *[0] * (6 - len(args)))
    assert seccomp.model(arch)(nr_of(name, arch), six) == expected
    compare(arch, AUDIT_ARCH[arch], nr_of(name, arch), six)


def test_foreign_numbers_kill() -> None:
    assert seccomp.model("x86_64")(0x40000000 | 39, [0] * 6) == KILL
    for arch in ARCHES:
        for audit_arch in FOREIGN:
            assert bpf.run(PROGRAMS[arch], audit_arch, 39, [0] * 6) == RET_KILL_PROCESS
    assert seccomp.model("aarch64")(39, [0] * 6, AUDIT_ARCH["x86_64"]) == KILL


@pytest.mark.parametrize("arch", ARCHES)
def test_form(arch: Arch) -> None:
    """Every jump lands inside, every number is there once, the last word is allow."""
    code = PROGRAMS[arch]
    for at, (op, jt, jf, _) in enumerate(code):
        assert op == 0x06 or at + 1 < len(code)
        if op in (0x15, 0x35):
            assert at + 1 + max(jt, jf) < len(code)
    assert code[-1] == (0x06, 0, 0, RET_ALLOW)
    found = numbers(arch)
    assert len(found) == len(set(found))
    assert len(code) < seccomp.MAX_INSTRUCTIONS


@example("riscv64")
@given(st.text(max_size=10))
def test_a_machine_without_a_table_is_refused(name: str) -> None:
    if name in ("x86_64", "aarch64", "arm64"):
        return
    with pytest.raises(ValueError, match="no system call table"):
        seccomp.program(name)


def test_a_row_too_long_to_jump_over_is_refused() -> None:
    with pytest.raises(Exception, match="255"):
        seccomp.pack([(seccomp.JEQ, 0, 256, 1)])


@pytest.mark.parametrize(
    ("arch", "header"),
    [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_numbers_are_those_of_the_kernel_headers(arch: Arch, header: str) -> None:
    """Where the C library's headers are installed; they may be older than the newest rows."""
    path = Path("/usr/include") / header
    text = path.read_text() if path.exists() else ""
    known = {}
    for line in text.splitlines():
        match line.split():
            case ["#define", name, value] if name.startswith("__NR_") and value.isdigit():
                known[name.removeprefix("__NR_")] = int(value)
    for row in seccomp_table.ROWS:
        if row.name in known:
            assert seccomp.number(row, arch) == known[row.name], row.name
        elif known:
            assert seccomp.number(row, arch) is None or row.name in NEWER, row.name


NEWER = {"open_tree_attr", "statmount", "listmount", "lsm_set_self_attr"}  # Linux 6.8 and later
