"""The filter in the running kernel: threats.md C01, C06, C07, C09, C11, C12, D05, D06, B (TIOCSTI), H02.

Three runs of everything: under the filter (the promised errno), under the same filter with marked errnos (it was the
filter and not something else that said no), and without it (the attack works, or at least it is not the filter's no).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.spawner import seccomp, seccomp_table
from ringfence.spawner.seccomp_table import Row
from tests.support.filtered import MARK, drop, in_child, install, marked, syscall

PROGRAM = seccomp.program()
MARKED = marked(PROGRAM)
ROWS = {row.name: row for row in seccomp_table.ROWS if seccomp.number(row, seccomp.machine()) is not None}
ALL_ONES = ((1 << 64) - 1,) * 6  # no flag set, pointer, fd or length that the kernel would act on


def call(name: str, *args: int) -> int:
    nr = seccomp.number(ROWS[name], seccomp.machine())
    assert nr is not None
    return syscall(nr, *args)


@pytest.mark.parametrize("row", seccomp_table.UNCONDITIONAL, ids=lambda row: row.name)
def test_each_row_is_denied_whatever_its_arguments(row: Row) -> None:
    if row.name not in ROWS:
        assert seccomp.number(row, seccomp.machine()) is None
        return
    assert in_child(lambda: call(row.name, *ALL_ONES), PROGRAM) == (-row.error, 0)
    assert in_child(lambda: call(row.name, *ALL_ONES), MARKED) == (-row.error - MARK, 0)
    result, code = in_child(lambda: call(row.name, *ALL_ONES), None)
    assert code == 0
    assert result != -row.error - MARK


# --- attacks that work without the filter ----------------------------------------------------------------------------


def clone_new_user() -> int:
    result = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    return result


def with_sibling(act: Callable[[int], int]) -> int:
    """`act` on another process of the same uid, as PID 1 is to a command."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        return act(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def limit_of(pid: int) -> int:
    limits = (ctypes.c_uint64 * 2)(64, 64)
    return call("prlimit64", pid, resource.RLIMIT_NOFILE, ctypes.addressof(limits), 0)


def idle_of(pid: int) -> int:
    parameter = ctypes.c_int(0)
    return call("sched_setscheduler", pid, os.SCHED_IDLE, ctypes.addressof(parameter))


def type_into_terminal(high: int = 0) -> int:
    """TIOCSTI on an own terminal; `high`: rubbish in the half of the request that the kernel drops."""
    _, follower = pty.openpty()  # closing the leader would hang up on us
    os.setsid()
    syscall(seccomp.number(ROWS["ioctl"], seccomp.machine()) or 0, follower, 0x540E, 0)  # TIOCSCTTY
    letter = ctypes.c_char(b"x")
    return call("ioctl", follower, 0x5412 | high << 32, ctypes.addressof(letter))


def nice_group() -> int:
    os.setpgid(0, 0)
    return call("setpriority", 1, 0, 19)


def make_whiteout() -> int:
    """A character device 0:0, which needs no privilege."""
    folder = tempfile.mkdtemp()
    path = ctypes.create_string_buffer(os.fsencode(folder) + b"/device")
    try:
        return call("mknodat", -100, ctypes.addressof(path), 0o020600, 0)
    finally:
        shutil.rmtree(folder)


def new_keyring() -> int:
    return min(call("keyctl", 0, -2, 1), 0)  # KEYCTL_GET_KEYRING_ID of the process keyring, made


def add_key() -> int:
    kind, name = ctypes.create_string_buffer(b"user"), ctypes.create_string_buffer(b"rf")
    result = call("add_key", ctypes.addressof(kind), ctypes.addressof(name), ctypes.addressof(name), 2, -2)
    return min(result, 0)


def steal_descriptor() -> int:
    return call("pidfd_getfd", os.pidfd_open(os.getpid()), 2, 0)


def count_cycles() -> int:
    attributes = (ctypes.c_uint32 * 32)(1, 112, 0, 0, *[0] * 28)  # PERF_TYPE_SOFTWARE, size
    attributes[10] = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv
    return call("perf_event_open", ctypes.addressof(attributes), 0, -1, -1, 0)


def set_up_ring() -> int:
    return call("io_uring_setup", 1, ctypes.addressof((ctypes.c_uint32 * 30)()))


def sysctl(name: str, default: int) -> int:
    path = Path("/proc/sys", name)
    return int(path.read_text()) if path.exists() else default


USER_NAMESPACES = not sysctl("kernel/apparmor_restrict_unprivileged_userns", 0) and sysctl(
    "user/max_user_namespaces", 1
) * sysctl("kernel/unprivileged_userns_clone", 1)

# Root's children get a uid that nobody else has; an ordinary user's would change the whole session of that user.
OWN_UID = True if os.geteuid() == 0 else None

# name -> (row, attack, whether this host lets it through without the filter; None: not to be tried without it)
ATTACKS: dict[str, tuple[str, Callable[[], int], bool | None]] = {
    "own user namespace": ("unshare", lambda: call("unshare", 0x10000000), bool(USER_NAMESPACES)),
    "cloned user namespace": ("clone", clone_new_user, bool(USER_NAMESPACES)),
    "other's limits": ("prlimit64", lambda: with_sibling(limit_of), True),
    "other's nice": ("setpriority", lambda: with_sibling(lambda pid: call("setpriority", 0, pid, 19)), True),
    "everybody's nice": ("setpriority", lambda: call("setpriority", 2, 0, 19), OWN_UID),
    "group's nice": ("setpriority", nice_group, True),
    "other's io": ("ioprio_set", lambda: with_sibling(lambda pid: call("ioprio_set", 1, pid, 3 << 13)), True),
    "everybody's io": ("ioprio_set", lambda: call("ioprio_set", 3, os.getuid(), 3 << 13), OWN_UID),
    "other's scheduler": ("sched_setscheduler", lambda: with_sibling(idle_of), True),
    "typing": ("ioctl", type_into_terminal, bool(sysctl("dev/tty/legacy_tiocsti", 1))),
    "typing, upper half": ("ioctl", lambda: type_into_terminal(1), bool(sysctl("dev/tty/legacy_tiocsti", 1))),
    "device": ("mknodat", make_whiteout, True),
    "keyring": ("keyctl", new_keyring, True),
    "key": ("add_key", add_key, True),
    "compare": ("kcmp", lambda: call("kcmp", os.getpid(), os.getpid(), 1, 0, 0), True),
    "descriptor": ("pidfd_getfd", steal_descriptor, True),
    "memory": ("process_vm_readv", lambda: call("process_vm_readv", os.getpid(), 0, 0, 0, 0, 0), True),
    "trace": ("ptrace", lambda: call("ptrace", 0, 0, 0, 0), True),
    "no randomisation": ("personality", lambda: call("personality", 0x0040000), True),
    "uevents": ("socket", lambda: call("socket", 16, 3, 15), True),
    "generic netlink": ("socket", lambda: call("socket", 16, 3, 16), True),
    "counters": ("perf_event_open", count_cycles, sysctl("kernel/perf_event_paranoid", 3) <= 2),
    "ring": ("io_uring_setup", set_up_ring, sysctl("kernel/io_uring_disabled", 0) == 0),
    "faults": ("userfaultfd", lambda: call("userfaultfd", 1), Path("/proc/sys/vm/unprivileged_userfaultfd").exists()),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name: str) -> None:
    row, attack, works = ATTACKS[name]
    assert in_child(attack, PROGRAM) == (-ROWS[row].error, 0)
    assert in_child(attack, MARKED) == (-ROWS[row].error - MARK, 0)
    if works is None:
        return
    result, code = in_child(attack, None)
    assert code == 0
    assert isinstance(result, int)
    assert result >= 0 if works else result != -ROWS[row].error - MARK


@pytest.mark.parametrize("family", [17, 31, 38, 40, 44])  # PACKET, BLUETOOTH, ALG, VSOCK, XDP
def test_other_socket_families(family: int) -> None:
    """D05, D06. Some are not in every kernel, so the marked filter is the proof."""
    assert in_child(lambda: call("socket", family, 3, 0), PROGRAM) == (-errno.EAFNOSUPPORT, 0)
    assert in_child(lambda: call("socket", family, 3, 0), MARKED) == (-errno.EAFNOSUPPORT - MARK, 0)
    assert in_child(lambda: call("socket", family, 3, 0), None)[0] != -errno.EAFNOSUPPORT - MARK


def test_pid_1_is_not_pinned() -> None:
    mask = ctypes.c_uint64(1)
    for program, expected in ((PROGRAM, -errno.EPERM), (MARKED, -errno.EPERM - MARK)):
        assert in_child(lambda: call("sched_setaffinity", 1, 8, ctypes.addressof(mask)), program) == (expected, 0)


# --- numbers of other machines ---------------------------------------------------------------------------------------


def int_80() -> int:
    """getpid by the 32-bit door: mov eax, 20; int 0x80; ret"""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())


FOREIGN: dict[str, Callable[[], int]] = (
    {"i386": int_80, "x32": lambda: syscall(0x40000000 | 39)} if seccomp.machine() == "x86_64" else {}
)


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_numbers_kill(name: str) -> None:
    assert in_child(FOREIGN[name], PROGRAM) == (None, -signal.SIGSYS)
    assert in_child(FOREIGN[name], None)[1] != -signal.SIGSYS


# --- what must go on working -----------------------------------------------------------------------------------------

PYTHON = """
import asyncio, fcntl, mmap, multiprocessing, os, pty, resource, socket, subprocess, sys, tempfile, threading
seen = []
threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert len(seen) == 8
lock = multiprocessing.get_context("fork").Lock()
child = multiprocessing.get_context("fork").Process(target=lambda: lock.acquire())
child.start(), child.join()
assert child.exitcode == 0 and not lock.acquire(block=False)
assert subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True).stdout == b"42\\n"
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
assert resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE) == (200, 200)
os.nice(1), os.sched_setaffinity(0, os.sched_getaffinity(0)), os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
with tempfile.TemporaryFile() as file:
    fcntl.flock(file, fcntl.LOCK_EX)
mmap.mmap(-1, 4096, prot=7)
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close(), server.close()
asyncio.run(main())
socket.socketpair(), socket.if_nameindex()
pid, fd = pty.fork()
if pid == 0: os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
print("good")
"""
GIT = "git init -q r && cd r && echo a > f && git add f && git commit -qm one && git gc -q && git log --oneline | wc -l"
GCC = "printf '#include <stdio.h>\\nint main(void){puts(\"good\");}' > h.c && gcc -pipe -pthread -o h h.c && ./h"
NODE = """node -e 'const {Worker, isMainThread} = require("worker_threads");
const w = new Worker("require(\\"worker_threads\\").parentPort.postMessage(1)", {eval: true});
w.on("message", () => require("child_process").exec("true", () => console.log("good")))'"""
PROGRAMS: dict[str, tuple[str, str]] = {
    "git": (GIT, "1"),
    "gcc": (GCC, "good"),
    "node": (NODE, "good"),
    "sh": ("sleep 0 & wait; nice true; trap 'echo good' EXIT; (kill -0 $$)", "good"),
}


@pytest.fixture
def folder() -> Iterator[str]:
    """Writable for the account without rights, unlike pytest's own."""
    path = tempfile.mkdtemp()
    Path(path).chmod(0o777)
    yield path
    shutil.rmtree(path)


def run(argv: list[str], folder: str) -> str:
    def confine() -> None:
        drop()
        install(PROGRAM)

    env = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder}
    env |= {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(argv, cwd=folder, env=env, preexec_fn=confine, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_python_works(folder: str) -> None:
    """Threads, locks, processes, own limits and priority, terminals, loopback."""
    assert run([os.path.realpath(sys.executable), "-I", "-S", "-c", PYTHON], folder) == "good"


@pytest.mark.parametrize("name", [name for name in PROGRAMS if shutil.which(name)])
def test_program_works(name: str, folder: str) -> None:
    script, expected = PROGRAMS[name]
    assert run(["/bin/sh", "-c", script], folder).splitlines()[-1] == expected
