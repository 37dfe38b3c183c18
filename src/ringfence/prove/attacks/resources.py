"""Group E: takes what there is, until something says no. `done`: nothing did below the amount that the arguments name.

Everything taken is given back: the same programs run outside boxes as controls.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ringfence.prove.attacks.trying import Outcomes, Place, attempt, each, each_forked, forked, machine, syscall

MIB = 1 << 20
NUMBERS = {  # (x86_64, aarch64), of the tables in the kernel's sources
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "timer_create": (222, 107),
    "inotify_init1": (294, 26),
    "sched_setscheduler": (144, 119),
    "ioprio_set": (251, 30),
    "clone3": (435, 435),
    "io_setup": (206, 0),
    "io_destroy": (207, 1),
}


def number(name: str) -> int:
    return NUMBERS[name][machine() == "aarch64"]


def until_refused(take: Callable[[], object], most: int) -> str:
    """`take` again and again: which error, after how many; `done` when there is none up to `most`."""
    for count in range(most):
        said = attempt(take)
        if not said.startswith("done"):
            return f"{said} after {count}"
    return f"done {most}"


def forks(place: Place) -> Outcomes:
    """E01. Arguments: a number above the limit."""
    most, children = int(place.arguments[0]), []

    def take() -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        children.append(pid)

    try:
        return {"fork": until_refused(take, most)}
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def memory(place: Place) -> Outcomes:
    """E02. Arguments: MiB above the limit. The child that takes them has to die, and nothing else."""
    most = int(place.arguments[0])

    def take() -> str:
        Path("/proc/self/oom_score_adj").write_text("1000")
        kept = []
        for _ in range(0, most, 8):
            block = mmap.mmap(-1, 8 * MIB)
            for page in range(0, 8 * MIB, mmap.PAGESIZE):
                block[page] = 1
            kept.append(block)
        return f"{len(kept) * 8} MiB"

    return {"memory": forked(take)}


def buffers(place: Place) -> Outcomes:
    """E25: loopback TCP that nobody reads. Arguments: MiB above the memory limit; what a connection takes is up to the
    kernel, so there are many. The child that holds them may have to die."""
    most, block = int(place.arguments[0]) * MIB, b"\1" * MIB

    def take() -> str:
        kept, held = [], 0
        with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
            for _ in range(256):
                near = socket.create_connection(server.getsockname())
                kept += [near, server.accept()[0]]
                near.setblocking(False)
                try:
                    while held < most:
                        held += near.send(block)
                except BlockingIOError:
                    continue
                return f"{held // MIB} MiB"
        raise OSError(errno.ENOBUFS, f"{held // MIB} MiB")

    return {"buffers": forked(take)}


def contexts(_place: Place) -> Outcomes:
    """E26: one asynchronous I/O context, of the 65,536 that the whole host has; given back."""

    def take() -> None:
        made = ctypes.c_ulong(0)
        syscall(number("io_setup"), 1, ctypes.byref(made))
        syscall(number("io_destroy"), made)

    return each(io_setup=take)


def fill(place: Place) -> Outcomes:
    """E03, E08. Arguments: a folder, MiB above the limit."""
    folder, most = place.arguments[0], int(place.arguments[1])
    path, block = f"{folder}/.fill", b"\1" * MIB
    try:
        with open(path, "wb", buffering=0) as file:

            def take() -> None:
                if file.write(block) < MIB:
                    file.write(block)  # what is left of the room says why at the next byte

            return {folder: until_refused(take, most)}
    except OSError as error:
        return {folder: error.strerror or "refused"}
    finally:
        if os.path.exists(path):
            os.unlink(path)


def spin(place: Place) -> Outcomes:
    """E04. Arguments: how many spin, for how many seconds, the share of one core that is allowed in thousandths."""
    count, seconds, milli = int(place.arguments[0]), float(place.arguments[1]), int(place.arguments[2])
    begun, children = time.monotonic(), []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            while time.monotonic() - begun < seconds:
                pass
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    share = (used.ru_utime + used.ru_stime) / (time.monotonic() - begun)
    # A period of CFS is 100 ms and the first one is whole: half as much again is still a limit.
    word = "held to" if share * 1000 <= milli * 1.5 else "done"
    return {"cpu": f"{word} {share:.2f} cores"}


def descriptors(place: Place) -> Outcomes:
    """E05. Arguments: a number above the hard limit."""
    most, kept = int(place.arguments[0]), []
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        return {"dup": until_refused(lambda: kept.append(os.dup(null)), most)}
    finally:
        for fd in (*kept, null):
            os.close(fd)


def sizes(place: Place) -> Outcomes:
    """E09. Arguments: a folder. A sparse file of 10 TB."""
    path = f"{place.arguments[0]}/.sparse"

    def sparse() -> None:
        fd = os.open(path, os.O_CREAT | os.O_RDWR)
        try:
            os.ftruncate(fd, 10 << 40)
        finally:
            os.close(fd)
            os.unlink(path)

    return each_forked(sparse=sparse)


def cores(place: Place) -> Outcomes:
    """E14: a core dump, and the limit raised before."""
    folder = place.arguments[0]

    def raised() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        soft = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (soft, soft))
        os.abort()
    _, status = os.waitpid(pid, 0)
    return {"dump": "done" if os.WCOREDUMP(status) else "no core", **each_forked(raised=raised)}


def queues(place: Place) -> Outcomes:
    """E16: POSIX message queues of 80 KiB each (10 messages of 8 KiB), against RLIMIT_MSGQUEUE. Arguments: how many."""
    made: list[bytes] = []
    attributes = (ctypes.c_long * 8)(0, 10, 8192)

    def take() -> None:
        name = b"ringfence-prove-%d" % len(made)
        flags = ctypes.c_long(os.O_CREAT | os.O_RDWR)
        fd = syscall(number("mq_open"), ctypes.c_char_p(name), flags, ctypes.c_long(0o600), attributes)
        os.close(fd)
        made.append(name)

    try:
        return {"mq_open": until_refused(take, int(place.arguments[0]))}
    finally:
        for name in made:
            syscall(number("mq_unlink"), ctypes.c_char_p(name))


def timers(place: Place) -> Outcomes:
    """E17: timers, each of which holds a queued signal, against RLIMIT_SIGPENDING. Arguments: how many."""

    def take() -> None:
        syscall(number("timer_create"), 1, ctypes.c_void_p(None), ctypes.byref(ctypes.c_int()))

    return {"timer_create": forked_text(lambda: until_refused(take, int(place.arguments[0])))}


def forked_text(work: Callable[[], str]) -> str:
    """In a child, whose end gives everything back."""
    said = forked(work)
    return said.removeprefix("done ").strip("'")


def locked(place: Place) -> Outcomes:
    """E18: memory that cannot be swapped, against RLIMIT_MEMLOCK."""

    def lock() -> None:
        block = mmap.mmap(-1, 4 * MIB)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(4 * MIB)):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    return each_forked(mlock=lock)


def watches(place: Place) -> Outcomes:
    """E19: inotify instances, of which the kernel counts each id's own. Arguments: how many."""

    def take_all() -> str:
        return until_refused(lambda: syscall(number("inotify_init1"), 0), int(place.arguments[0]))

    return {"inotify": forked_text(take_all)}


def pipes(place: Place) -> Outcomes:
    """E21: a pipe above the host's bound."""

    def grow() -> None:
        _, writer = os.pipe()
        fcntl.fcntl(writer, 1031, 64 * MIB)  # F_SETPIPE_SZ

    return each_forked(grow=grow)


def priorities(place: Place) -> Outcomes:
    """E22: before everybody else: real time, a negative nice, real-time I/O, never the victim of an OOM; and higher limits."""

    def higher(what: int) -> Callable[[], None]:
        def work() -> None:
            hard = resource.getrlimit(what)[1]
            resource.setrlimit(what, (hard + 1, hard + 1))

        return work

    return each_forked(
        real_time=lambda: syscall(number("sched_setscheduler"), 0, 1, ctypes.byref(ctypes.c_int(1))),
        nice=lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
        io=lambda: syscall(number("ioprio_set"), 1, 0, 1 << 13),
        oom=lambda: Path("/proc/self/oom_score_adj").write_text("-1000"),
        more_files=higher(resource.RLIMIT_NOFILE),
        more_locked=higher(resource.RLIMIT_MEMLOCK),
        more_queues=higher(resource.RLIMIT_MSGQUEUE),
    )


def zombies(place: Place) -> Outcomes:
    """E23. Arguments: how many orphans, each of which ends before anybody waits for it."""
    for _ in range(int(place.arguments[0])):
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.waitpid(pid, 0)
    return {"made": "ready"}


def count_zombies(place: Place) -> Outcomes:
    until = time.monotonic() + 3
    while (left := _zombies()) and time.monotonic() < until:
        time.sleep(0.05)
    return {"zombies": f"done {left} left" if left else "all reaped"}


def _zombies() -> int:
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        count += text.rpartition(")")[2].split()[0] == "Z"
    return count


def cgroups(place: Place) -> Outcomes:
    """E24: out of the box's own cgroup. Arguments: of a control, a cgroup folder that may be left."""
    held = [link for fd in os.listdir("/proc/self/fd") if "cgroup" in (link := _link(fd))]
    paths = [line.rpartition(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    seen = {name for path in paths for name in path.split("/")} - {"", "..", "main", "cmds"}
    mounted = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup" in line]
    arguments = (ctypes.c_uint64 * 11)(1 << 33, 0, 0, 0, signal.SIGCHLD)  # CLONE_INTO_CGROUP
    return {
        **each(
            move=lambda: Path("/sys/fs/cgroup/cgroup.procs").write_text("0"),
            make=lambda: Path("/sys/fs/cgroup/ringfence-prove").mkdir(),
            into=lambda: syscall(number("clone3"), arguments, ctypes.sizeof(arguments)),
        ),
        "descriptor": f"done {held}" if held else "none",
        "names": f"done {sorted(seen)}" if seen else "none",
        "mount": f"done {mounted[0]}" if mounted else "none",
    }


def _link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


ATTACKS = {
    "forks": forks,
    "memory": memory,
    "buffers": buffers,
    "contexts": contexts,
    "fill": fill,
    "spin": spin,
    "descriptors": descriptors,
    "sizes": sizes,
    "cores": cores,
    "queues": queues,
    "timers": timers,
    "locked": locked,
    "watches": watches,
    "pipes": pipes,
    "priorities": priorities,
    "zombies": zombies,
    "count_zombies": count_zombies,
    "cgroups": cgroups,
}
