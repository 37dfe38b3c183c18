"""The system calls that a box may not make, as one table. seccomp.py makes both the filter and its model from it.

Default allow: what is not here is a box's own business, bounded by its uid, namespaces and cgroup. Each row is a call
that gives nothing to ordinary programs and kernel surface, the host, or a sibling process to a hostile one. Numbers:
x86_64 from arch/x86/entry/syscalls/syscall_64.tbl, aarch64 from include/uapi/asm-generic/unistd.h; None where that
machine has no such call. It must stay data: no I/O, no dependence on the machine it is read on.

Standard library only.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

WORD = 0xFFFFFFFF

# clone(2): every CLONE_NEW* flag that clone takes. CLONE_NEWTIME (0x80) lies in its signal bits: unshare and clone3 only.
CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # asm-generic/ioctls.h
PER_LINUX, PER_LINUX32, PER_ASK = 0, 0x0008, 0xFFFFFFFF
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
SOCK_TYPE_MASK, SOCK_PACKET = 0xF, 10  # socket(AF_INET, SOCK_PACKET) is AF_PACKET by its old name
S_IFMT, S_IFCHR, S_IFBLK = 0o170000, 0o020000, 0o060000
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1


@dataclass(frozen=True, slots=True)
class Is:
    """The low 32 bits of argument `arg`, masked, are one of `values`. The calls below take ints: the kernel drops the
    upper half, so a filter that compared all 64 bits could be passed by setting one of them."""

    arg: int
    values: tuple[int, ...]
    mask: int = WORD


@dataclass(frozen=True, slots=True)
class IsNot:
    """The contrary of `Is`."""

    arg: int
    values: tuple[int, ...]
    mask: int = WORD


@dataclass(frozen=True, slots=True)
class NotNull:
    """All 64 bits of argument `arg` are a pointer that is not NULL."""

    arg: int


Test = Is | IsNot | NotNull


@dataclass(frozen=True, slots=True)
class Row:
    """Denied with `error`: always when `cases` is empty, else when every test of one case holds."""

    name: str
    x86_64: int | None
    aarch64: int | None
    error: int = errno.EPERM
    cases: tuple[tuple[Test, ...], ...] = ()


def _missing(name: str, x86_64: int | None, aarch64: int | None) -> Row:
    """ENOSYS: programs then take the older way (clone, mount), which is judged by its arguments."""
    return Row(name, x86_64, aarch64, errno.ENOSYS)


_OTHER_PID = ((IsNot(0, (0,)),),)

# A family outside the list; NETLINK other than ROUTE (audit, netfilter, xfrm, ...); AF_PACKET by its old name.
_FAMILIES = (
    (IsNot(0, (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)),),
    (Is(0, (AF_NETLINK,)), IsNot(2, (NETLINK_ROUTE,))),
    (Is(0, (AF_INET,)), Is(1, (SOCK_PACKET,), SOCK_TYPE_MASK)),
)

# Judged by their arguments. First, because they are the ones that ordinary programs make often: the kernel remembers
# which calls are allowed whatever their arguments and does not run the filter for those (Linux 5.11).
CONDITIONAL = (
    Row("ioctl", 16, 29, cases=((Is(1, (TIOCSTI, TIOCLINUX)),),)),
    Row("clone", 56, 220, cases=((IsNot(0, (0,), CLONE_NEW),),)),
    Row("socket", 41, 198, errno.EAFNOSUPPORT, _FAMILIES),
    Row("socketpair", 53, 199, errno.EAFNOSUPPORT, _FAMILIES),
    # Equal uid is all that prlimit asks for: RLIMIT_CPU on PID 1 would kill it. Reading stays allowed.
    Row("prlimit64", 302, 261, cases=((IsNot(0, (0,)), NotNull(2)),)),
    # PRIO_PGRP and PRIO_USER reach every process of the box even with `who` 0, PID 1 too.
    Row("setpriority", 141, 140, cases=((IsNot(0, (PRIO_PROCESS,)),), (IsNot(1, (0,)),))),
    Row("ioprio_set", 251, 30, cases=((IsNot(0, (IOPRIO_WHO_PROCESS,)),), (IsNot(1, (0,)),))),
    Row("sched_setscheduler", 144, 119, cases=_OTHER_PID),
    Row("sched_setparam", 142, 118, cases=_OTHER_PID),
    Row("sched_setattr", 314, 274, cases=_OTHER_PID),
    # Runtimes pin their own threads by id, so only PID 1 is protected.
    Row("sched_setaffinity", 203, 122, cases=((Is(0, (1,)),),)),
    Row("personality", 135, 92, cases=((IsNot(0, (PER_LINUX, PER_LINUX32, PER_ASK)),),)),
    Row("mknod", 133, None, cases=((Is(1, (S_IFCHR, S_IFBLK), S_IFMT),),)),
    Row("mknodat", 259, 33, cases=((Is(2, (S_IFCHR, S_IFBLK), S_IFMT),),)),
)

UNCONDITIONAL = (
    # the kernel's log, accounting, quotas
    Row("syslog", 103, 116),
    Row("uselib", 134, None),
    Row("acct", 163, 89),
    Row("quotactl", 179, 60),
    Row("quotactl_fd", 443, 443),
    # keyrings have no namespace
    Row("add_key", 248, 217),
    Row("request_key", 249, 218),
    Row("keyctl", 250, 219),
    # memory policy of other processes, and of the machine
    Row("move_pages", 279, 239),
    Row("mbind", 237, 235),
    Row("get_mempolicy", 239, 236),
    Row("set_mempolicy", 238, 237),
    Row("set_mempolicy_home_node", 450, 450),
    Row("migrate_pages", 256, 238),
    # namespaces and mounts
    Row("unshare", 272, 97),
    Row("setns", 308, 268),
    Row("mount", 165, 40),
    Row("umount2", 166, 39),
    Row("pivot_root", 155, 41),
    Row("chroot", 161, 51),
    _missing("clone3", 435, 435),  # its flags are behind a pointer that a filter cannot read
    _missing("open_tree", 428, 428),
    _missing("open_tree_attr", 467, 467),
    _missing("move_mount", 429, 429),
    _missing("fsopen", 430, 430),
    _missing("fsconfig", 431, 431),
    _missing("fsmount", 432, 432),
    _missing("fspick", 433, 433),
    _missing("mount_setattr", 442, 442),
    _missing("statmount", 457, 457),
    _missing("listmount", 458, 458),
    # the parts of the kernel that most of its recent holes were in
    Row("bpf", 321, 280),
    Row("perf_event_open", 298, 241),
    Row("userfaultfd", 323, 282),
    Row("io_uring_setup", 425, 425),
    Row("io_uring_enter", 426, 426),
    Row("io_uring_register", 427, 427),
    Row("fanotify_init", 300, 262),
    Row("lookup_dcookie", 212, 18),
    # into other processes of the same uid
    Row("ptrace", 101, 117),
    Row("process_vm_readv", 310, 270),
    Row("process_vm_writev", 311, 271),
    Row("process_madvise", 440, 440),
    Row("kcmp", 312, 272),
    Row("pidfd_getfd", 438, 438),
    # the machine
    Row("kexec_load", 246, 104),
    Row("kexec_file_load", 320, 294),
    Row("create_module", 174, None),
    Row("query_module", 178, None),
    Row("init_module", 175, 105),
    Row("finit_module", 313, 273),
    Row("delete_module", 176, 106),
    Row("reboot", 169, 142),
    Row("swapon", 167, 224),
    Row("swapoff", 168, 225),
    Row("iopl", 172, None),
    Row("ioperm", 173, None),
    Row("modify_ldt", 154, None),
    Row("settimeofday", 164, 170),
    Row("clock_settime", 227, 112),
    Row("clock_adjtime", 305, 266),
    Row("adjtimex", 159, 171),
    Row("sethostname", 170, 161),
    Row("setdomainname", 171, 162),
    Row("vhangup", 153, 58),
    Row("nfsservctl", 180, 42),
    Row("_sysctl", 156, None),
    Row("sysfs", 139, None),
    Row("ustat", 136, None),
    # files by inode instead of by path; memory that the host cannot read; labels
    Row("name_to_handle_at", 303, 264),
    Row("open_by_handle_at", 304, 265),
    _missing("memfd_secret", 447, 447),
    _missing("io_setup", 206, 0),  # fs.aio-max-nr counts the whole host's; programs go on without
    _missing("lsm_set_self_attr", 460, 460),
)

ROWS = CONDITIONAL + UNCONDITIONAL
