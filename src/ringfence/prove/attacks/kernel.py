"""Group C: namespaces and system calls. What would change this process is done in a child; what a privileged caller could
do is asked with arguments that the kernel refuses for themselves, so that nothing happens where no wall is."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Callable
from functools import partial

from ringfence.prove.attacks.trying import (
    DONE,
    Outcomes,
    Place,
    attempt,
    each,
    each_forked,
    forked,
    machine,
    open_for_writing,
    read,
    syscall,
)

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000,
    0x2000000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)  # linux/sched.h
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
# (x86_64, aarch64); one number: the same on both (since Linux 5.1)
NUMBERS: dict[str, tuple[int, int]] = {
    "unshare": (272, 97), "clone": (56, 220), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "mount_setattr": (442, 442), "clone3": (435, 435), "bpf": (321, 280),
    "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "personality": (135, 92),
    "memfd_secret": (447, 447), "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "settimeofday": (164, 170), "syslog": (103, 116), "quotactl": (179, 60), "sethostname": (170, 161),
    "capset": (126, 91), "prlimit64": (302, 261), "setpriority": (141, 140), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "ioprio_set": (251, 30), "fanotify_init": (300, 262), "lsm_set_self_attr": (460, 460),
    "getpid": (39, 172),
}  # fmt: skip


def call(name: str, *arguments: object) -> int:
    return syscall(NUMBERS[name][machine() != "x86_64"], *arguments)


def nested(flags: int) -> None:
    """Namespaces of its own with its own root in them, where they are to be had; else this changes nothing."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        call("unshare", NEWUSER | flags)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError:
        return


def inside(flags: int, work: Callable[[], object]) -> str:
    def both() -> object:
        nested(flags)
        return work()

    return forked(both)


def _all(flags: int, **works: Callable[[], object]) -> Outcomes:
    return {name: inside(flags, work) for name, work in works.items()}


def user_namespaces(_place: Place) -> Outcomes:
    def clone() -> None:
        pid = call("clone", NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    def clone3() -> None:
        arguments = ctypes.create_string_buffer(struct.pack("=8Q", NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0))
        pid = call("clone3", arguments, 64)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    others = {"mount": NEWNS, "net": NEWNET, "pid": NEWPID, "uts": NEWUTS, "ipc": NEWIPC, "cgroup": NEWCGROUP}
    found = each_forked(unshare=lambda: call("unshare", NEWUSER) and None, clone=clone, clone3=clone3)
    return found | {name: forked(partial(call, "unshare", NEWUSER | flag)) for name, flag in others.items()}


def mounting(_place: Place) -> Outcomes:
    """File systems that only the owner of a mount namespace may mount."""

    def mount(kind: str) -> None:
        call("mount", b"x", b"/tmp", kind.encode(), 0, b"")

    kinds = ("tmpfs", "proc", "sysfs", "overlay", "cgroup2", "binfmt_misc", "fuse")
    return {kind: inside(NEWNS | NEWCGROUP | NEWPID, partial(mount, kind)) for kind in kinds}


def mount_calls(_place: Place) -> Outcomes:
    attributes = ctypes.create_string_buffer(struct.pack("=4Q", 1, 0, 0, 0))
    return _all(
        NEWNS,
        mount=lambda: call("mount", b"x", b"/tmp", b"tmpfs", 0, b"") and None,
        umount2=lambda: call("umount2", b"/dev/shm", 2) and None,
        pivot_root=lambda: _past(lambda: call("pivot_root", b"/proc", b"/proc")),
        chroot=lambda: call("chroot", b"/usr") and None,
        open_tree=lambda: call("open_tree", -100, b"/tmp", 1) and None,
        fsopen=lambda: call("fsopen", b"tmpfs", 0) and None,
        move_mount=lambda: _past(lambda: call("move_mount", -1, b"", -1, b"", 0)),
        mount_setattr=lambda: call("mount_setattr", -100, b"/tmp", 0, attributes, 32) and None,
    )


def _past(work: Callable[[], object]) -> object:
    """Past the check of rights: an error that says something of the arguments is none of a wall's."""
    try:
        return work()
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise
        return errno.errorcode.get(error.errno or 0, "?")


def network(_place: Place) -> Outcomes:
    def up() -> None:
        import fcntl
        import socket

        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING

    return _all(
        NEWNET | NEWNS,
        sysctl=lambda: open_for_writing("/proc/sys/net/ipv4/ip_forward"),
        link_up=up,
    )


def entering(_place: Place) -> Outcomes:
    kinds = {"user": NEWUSER, "net": NEWNET, "mnt": NEWNS, "uts": NEWUTS, "pid": NEWPID}

    def enter(kind: str, flag: int, pid: str) -> None:
        call("setns", os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY), flag)

    own = {f"own {k}": inside(NEWNET | NEWUTS, partial(enter, k, f, "self")) for k, f in kinds.items()}
    return own | {f"{k} of 1": forked(partial(enter, k, f, "1")) for k, f in kinds.items()}


def surfaces(_place: Place) -> Outcomes:
    perf = ctypes.create_string_buffer(struct.pack("=IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 << 5 | 1 << 6) + bytes(64))
    rings = ctypes.create_string_buffer(120)
    map_attributes = ctypes.create_string_buffer(struct.pack("=5I", 2, 4, 4, 1, 0) + bytes(100))
    return each_forked(
        bpf=lambda: call("bpf", 0, map_attributes, 72) and None,
        perf_event_open=lambda: call("perf_event_open", perf, 0, -1, -1, 0) and None,
        io_uring_setup=lambda: call("io_uring_setup", 1, rings) and None,
        userfaultfd=lambda: call("userfaultfd", 1) and None,
        fanotify_init=lambda: call("fanotify_init", 0x200, 0) and None,
    )


def keyrings(_place: Place) -> Outcomes:
    return each_forked(
        add_key=lambda: call("add_key", b"user", b"prove", b"x", 1, -2) and None,
        request_key=lambda: _past(lambda: call("request_key", b"user", b"prove", 0, 0)) and None,
        keyctl=lambda: call("keyctl", 0, -3, 1) and None,
    )


def visible_keys(place: Place) -> Outcomes:
    """Done: a key is visible (proc(5), /proc/keys). A keyring alone holds nothing. Argument `make`: of its own first."""

    def look() -> str:
        if place.arguments == ["make"]:
            call("add_key", b"user", b"prove", b"x", 1, -2)
        keys = [line for line in read("/proc/keys", 1 << 16).splitlines() if line.split()[7] != b"keyring"]
        if not keys:
            raise FileNotFoundError(2, "no key")
        return f"{len(keys)} keys"

    return {"/proc/keys": forked(look)}


def of_the_host(place: Place) -> Outcomes:
    """Arguments: PID:START of processes outside. Signal 0 to each, and its memory; the start time tells it from a
    process of the box that happens to have the number."""

    def same(pid: str, start: str) -> None:
        if read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[19].decode() != start:
            raise ProcessLookupError(errno.ESRCH, "another process")

    def signalled(pid: str, start: str) -> None:
        same(pid, start)
        os.kill(int(pid), 0)

    pairs = [argument.split(":") for argument in place.arguments]
    return {f"kill {pid}": attempt(partial(signalled, pid, start)) for pid, start in pairs}


def on_own_child(_place: Place) -> Outcomes:
    """What a debugger does, to a child of its own: where seccomp does not stop it the kernel allows it."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        buffer = ctypes.create_string_buffer(16)
        vector = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(buffer), 16))
        pidfd = os.pidfd_open(pid)
        return each(
            ptrace=lambda: call("ptrace", 0x4206, pid, 0, 0) and None,
            process_vm_readv=lambda: call("process_vm_readv", pid, vector, 1, vector, 1, 0) and None,
            kcmp=lambda: call("kcmp", pid, pid, 0, 0, 0) and None,
            pidfd_getfd=lambda: call("pidfd_getfd", pidfd, 0, 0) and None,
            process_madvise=lambda: call("process_madvise", pidfd, vector, 1, 20, 0) and None,
        )
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def tuning_others(_place: Place) -> Outcomes:
    """Limits and priorities of a process that is not the caller: a child with the same id."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        limit = ctypes.create_string_buffer(struct.pack("=QQ", 1000, 1000))
        priority = ctypes.create_string_buffer(struct.pack("=i", 0))
        return each(
            prlimit=lambda: call("prlimit64", pid, 0, limit, 0) and None,
            setpriority=lambda: call("setpriority", 0, pid, 19) and None,
            sched_setscheduler=lambda: call("sched_setscheduler", pid, 5, priority) and None,
            sched_setparam=lambda: call("sched_setparam", pid, priority) and None,
            ioprio_set=lambda: call("ioprio_set", 1, pid, 3 << 13) and None,
        )
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def weakening(_place: Place) -> Outcomes:
    return each_forked(
        no_random_addresses=lambda: call("personality", 0x0040000) and None,
        read_implies_exec=lambda: call("personality", 0x0400000) and None,
        memfd_secret=lambda: call("memfd_secret", 0) and None,
        modify_ldt=lambda: (syscall(154, 0, 0, 0) if machine() == "x86_64" else call("memfd_secret", 0)) and None,
    )


def machine_calls(_place: Place) -> Outcomes:
    """Each with arguments that are wrong in themselves: nothing happens even to a caller who may."""
    null = 0
    return each_forked(
        kexec_load=lambda: _past(lambda: call("kexec_load", 0, 99, null, 0xFFFF0000)),
        init_module=lambda: _past(lambda: call("init_module", null, 0, null)),
        finit_module=lambda: _past(lambda: call("finit_module", -1, b"", 0xFFFF)),
        delete_module=lambda: _past(lambda: call("delete_module", null, 0)),
        reboot=lambda: _past(lambda: call("reboot", 0, 0, 0, 0)),
        swapon=lambda: _past(lambda: call("swapon", b"/nonexistent", 0)),
        swapoff=lambda: _past(lambda: call("swapoff", b"/nonexistent")),
        acct=lambda: _past(lambda: call("acct", b"/nonexistent/file")),
        settimeofday=lambda: _past(lambda: call("settimeofday", 1, 1)),
        syslog=lambda: _past(lambda: call("syslog", 2, null, -1)),
        quotactl=lambda: _past(lambda: call("quotactl", 0x80000700, b"/nonexistent", 0, null)),
        sethostname=lambda: _past(lambda: call("sethostname", null, 4096)),
    )


def unlocking(place: Place) -> Outcomes:
    """Read-only binds made writable or taken away. Argument `own`: of a mount that was made in its own namespace."""

    def prepared() -> str:
        if place.arguments == ["own"]:
            call("mount", b"x", b"/tmp", b"tmpfs", MS_RDONLY, b"")
            return "/tmp"
        return "/usr"

    return _all(
        NEWNS,
        remount=lambda: call("mount", b"", prepared().encode(), b"", MS_REMOUNT | MS_BIND, b"") and None,
        umount=lambda: call("umount2", prepared().encode(), 2) and None,
    )


def privileges(_place: Place) -> Outcomes:
    """Done: a program with its set-user-id bit would gain by it."""

    def no_new_privileges() -> str:
        libc = ctypes.CDLL(None)
        if libc.prctl(39, 0, 0, 0, 0) == 1:  # PR_GET_NO_NEW_PRIVS
            raise PermissionError(errno.EPERM, "no new privileges")
        return "privileges can be gained"

    def counts() -> str:
        if os.statvfs("/usr/bin/su").f_flag & os.ST_NOSUID:
            raise PermissionError(errno.EPERM, "nosuid")
        return "set-user-id counts"

    return each(no_new_privs=no_new_privileges, nosuid=counts)


def becoming(_place: Place) -> Outcomes:
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    everything = ctypes.create_string_buffer(struct.pack("=6I", *[0xFFFFFFFF] * 2, 0, 0xFF, 0xFF, 0))

    def ambient() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(47, 2, 21, 0, 0) != 0:  # PR_CAP_AMBIENT_RAISE CAP_SYS_ADMIN
            raise OSError(ctypes.get_errno(), "prctl")

    return each_forked(
        setuid=lambda: os.setuid(0),
        setgid=lambda: os.setgid(0),
        setgroups=lambda: os.setgroups([0]),
        capset=lambda: call("capset", header, everything) and None,
        ambient=ambient,
    )


def foreign_numbers(_place: Place) -> Outcomes:
    """System calls by other tables than the filter's: x32 numbers, and i386 by int 0x80."""

    def int80() -> None:
        import mmap

        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        if ctypes.CFUNCTYPE(ctypes.c_int)(address)() <= 0:
            raise OSError(errno.ENOSYS, "int 0x80")

    if machine() != "x86_64":
        return {"int80": "ENOSYS"}
    return each_forked(x32=lambda: syscall(0x40000000 + 39) and None, int80=int80)


def descriptors(_place: Place) -> Outcomes:
    """Done: a descriptor that nobody gave it on purpose, or a standard one that is a file of the host's."""
    found: Outcomes = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
        plain = target.startswith(("pipe:", "socket:", "/dev/null", "anon_inode:", "/dev/pts/"))
        found[f"{name} {target}"] = "plain" if plain else f"{DONE} inherited"
    return found


def descriptors_kept(place: Place) -> Outcomes:
    """`descriptors`, with a file opened first: what a careless start would pass on."""
    fd = os.open(place.arguments[0], os.O_RDONLY)
    try:
        return descriptors(place)
    finally:
        os.close(fd)


ATTACKS = {
    "user_namespaces": user_namespaces,
    "mounting": mounting,
    "mount_calls": mount_calls,
    "network": network,
    "entering": entering,
    "surfaces": surfaces,
    "keyrings": keyrings,
    "visible_keys": visible_keys,
    "of_the_host": of_the_host,
    "on_own_child": on_own_child,
    "tuning_others": tuning_others,
    "weakening": weakening,
    "machine_calls": machine_calls,
    "unlocking": unlocking,
    "privileges": privileges,
    "becoming": becoming,
    "foreign_numbers": foreign_numbers,
    "descriptors": descriptors,
    "descriptors_kept": descriptors_kept,
}
