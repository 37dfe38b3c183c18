"""The spawner's entry: configuration, lock, namespaces, cgroups, the kernel's process, the loop.

It is the process that `ringfence serve` became. Must never serve anybody but the kernel that it forked itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field

from ringfence.spawner import (
    bubblewrap,
    cgroup_host,
    config,
    disk_kind,
    drop,
    kernel_child,
    network,
    paths,
    syscalls,
    tasks,
    userns,
    weaknesses,
)
from ringfence.spawner.children import Children
from ringfence.spawner.config import Config
from ringfence.spawner.errors import SpawnerError, StartRefused
from ringfence.spawner.launcher_root import LauncherRoot
from ringfence.spawner.operations import Operations
from ringfence.spawner.server import Server
from ringfence.spawner.sources import Host
from ringfence.spawner.template import Template
from ringfence.spawner.warmer import Warmer

REFUSED = 5  # exit status: the host or its configuration must change first
SIGNALLED = 128  # and the number: ended by that signal
# Out of memory on the whole host: every box (100, commands 200) and nearly every service goes before spawner and
# kernel.
OOM_SCORE = -900
KERNEL_SECONDS = 10.0  # from SIGTERM to SIGKILL


def main(path: str) -> None:
    """Runs the server of the configuration at `path`; ends with the kernel's status, or 5 with what to do."""
    try:
        settings = config.load(path)
        status = serve(settings)
    except StartRefused as refusal:
        sys.stderr.write(f"ringfence: {refusal.message}\n  {refusal.remedy}\n")
        status = REFUSED
    if status > SIGNALLED:  # it could not say it itself
        sys.stderr.write(f"ringfence: the server was ended by signal {status - SIGNALLED}\n  ringfence serve\n")
    sys.stdout.flush()
    sys.exit(status)


def serve(settings: Config) -> int:
    """The whole life of a spawner with its kernel; the kernel's exit status (128 + n: signal n)."""
    host, lock = open_host(settings)
    if settings.mode == "root":
        drop.oom_score(OOM_SCORE)  # inherited by the kernel; every other child that lasts is given its own
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    children = Children()
    pid = kernel_child.start(settings, theirs)
    theirs.close()
    children.add(pid)
    template = Template(settings, children)
    run(host, ours, children, pid, template)
    ours.close()
    status = end_kernel(pid, children)
    host.cgroups.leave()
    os.close(lock)
    return status


def open_host(settings: Config) -> tuple[Host, int]:
    """(the host, ready for boxes; the lock's descriptor). Raises StartRefused."""
    version = bubblewrap.check(settings.bwrap)
    if settings.mode == "shared":  # asked while the user's own name can still be told
        weaknesses.refuse_unaccepted(("shared-uid",), settings.accept)
    userns.enter(settings)
    if settings.mode == "root":
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    state = paths.open_state(settings.home)
    lock = take_lock(state.spawner)
    try:
        runtime = os.open(f"{settings.runtime}/guest", paths.DIRECTORY | os.O_NOFOLLOW)
        os.stat("init.pyc", dir_fd=runtime)
        os.stat(settings.python)
        root = LauncherRoot(settings.root_ca)
    except OSError as error:
        raise StartRefused(f"the guest's files are missing: {error}", "ringfence serve") from error
    except SpawnerError as error:
        raise StartRefused(error.message, error.remedy or "ringfence doctor") from error
    cgroups = cgroup_host.find(settings)
    try:
        rules = network.rules_work(returns=settings.mode == "root")
        disk = disk_kind.choose(settings, state)
        lacks = cgroups.lacks(swap=cgroup_host.host_swaps())
        weak = weaknesses.find(settings.mode, cgroups.kind, rules=rules, disk=disk, lacks=lacks)
        weaknesses.refuse_unaccepted(weak, settings.accept, cgroups.why, settings.disk)
    except BaseException:  # whatever it was: nobody else knows of the cgroups that were made for this server
        cgroups.leave()
        raise
    return Host(settings, state, cgroups, root, runtime, rules, version, weak, disk), lock


def take_lock(spawner_fd: int) -> int:
    """One server a state directory. A POSIX record lock: no child inherits it, and it ends with this process."""
    fd = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=spawner_fd)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise StartRefused(
            "another server runs on this state directory", "stop it first (SIGTERM), or set RINGFENCE_HOME"
        ) from error
    os.truncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


@dataclass(slots=True)
class Signals:
    """What a signal asks for, acted on in the loop."""

    children: Children
    kernel: int  # pid, 0: none is ours
    reader: int
    operations: Operations
    seen: bytearray = field(default_factory=bytearray)

    def __call__(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.seen += os.read(self.reader, 512)
        if {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} & set(self.seen) and self.children.running(self.kernel):
            os.kill(self.kernel, signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, KERNEL_SECONDS)
        if signal.SIGALRM in self.seen and self.children.running(self.kernel):
            os.kill(self.kernel, signal.SIGKILL)
        self.seen.clear()
        self.children.collect()
        self.operations.tend()


def run(
    host: Host, channel: socket.socket, children: Children, kernel: int = 0, template: Template | None = None
) -> None:
    """Serves the kernel at the other end of `channel` until it closes. `kernel`: its pid, 0 when it is no child. `template`:
    of egress workers, not yet started; without one there are none."""
    warmer = Warmer(host.cgroups, groups=host.config.mode != "shared")
    # bubblewrap and PID 1 are killed together: the orphan comes to us, not to an init that may be slow to reap it.
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    old = {}
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        old[number] = signal.signal(number, lambda *_: None)
    try:
        operations = Operations(host, children, warmer, template)
        operations.tend()
        Server(channel, operations, children, reader, Signals(children, kernel, reader, operations)).serve()
    finally:
        if template is not None:
            template.end()
        warmer.end()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(before)
        for number, handler in old.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def end_kernel(pid: int, children: Children) -> int:
    """Its end of the pair is closed: waits for it, 10 s after SIGTERM at most."""
    deadline = time.monotonic() + 0.5  # a kernel that is ending anyway keeps its own status
    for number in (signal.SIGTERM, signal.SIGKILL):
        status = _wait(pid, children, deadline)
        if status is not None:
            return status
        os.kill(pid, number)
        deadline = time.monotonic() + KERNEL_SECONDS
    return _wait(pid, children, deadline) or 0


def _wait(pid: int, children: Children, deadline: float) -> int | None:
    status = tasks.run(children.wait(pid, max(0.0, deadline - time.monotonic())))
    return SIGNALLED - status if status is not None and status < 0 else status
