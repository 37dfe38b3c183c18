"""A process that keeps the host's cgroup moves quick while a box starts.

A write to cgroup.procs waits for an RCU grace period, some 12 ms, unless another one was made a moment ago. A start has
two such writes. The warmer writes itself into the cgroup that it is in anyway, so that those two find the period begun
or over. It has no capability, no descriptor but its pipe and that file, ends with the spawner, and hears nothing but
the pipe. Must never be waited for, nor keep a spawner from starting: without it a box only starts slower.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NoReturn

from ringfence.spawner import control_files, drop, syscalls
from ringfence.spawner.cgroups import Cgroups

# Shorter than a grace period, which is at least two ticks of 4 ms: the next write then comes before the last has cooled.
STEP_SECONDS = 0.004
TRIES = 50  # 0.2 s: the kernel may be some milliseconds late to find a cgroup empty
WARM_SECONDS = 0.06  # from the request until the guest's command spawner has joined: some 40 ms


class Warmer:
    """Forked at once. Kind `none` has no moves and no process."""

    def __init__(self, found: Cgroups, *, groups: bool) -> None:
        """`groups`: whether supplementary groups may be dropped (drop.to_account)."""
        self._pidfd = self._pipe = -1
        self._place = found.resting_place()
        if self._place is not None:
            with contextlib.suppress(OSError):
                self._begin(self._place, groups=groups)

    def _begin(self, place: str, *, groups: bool) -> None:
        with contextlib.suppress(FileExistsError):  # of a spawner that was killed
            os.mkdir(place, 0o755)
        procs = os.open(f"{place}/cgroup.procs", os.O_WRONLY)
        reader, self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            spawner = os.getpid()
            pid = os.fork()
            if pid == 0:
                _child(reader, procs, spawner, groups=groups)
            self._pidfd = os.pidfd_open(pid)
        finally:
            os.close(reader)
            os.close(procs)

    def warm(self) -> None:
        """Asks for it; never blocks. A full pipe has been asked often enough, a warmer that has gone is done without."""
        if self._pipe >= 0:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._pipe, b"w")

    def end(self) -> None:
        """No process, descriptor or cgroup is left. Idempotent."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it died, and was reaped in the loop
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        for fd in {self._pidfd, self._pipe} - {-1}:
            os.close(fd)
        self._pidfd = self._pipe = -1
        for _ in range(TRIES):
            if self._place is None or control_files.removed(self._place):
                break
            time.sleep(STEP_SECONDS)


def _child(pipe: int, procs: int, spawner: int, *, groups: bool) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        drop.reset_signals()
        drop.oom_score(0)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        drop.keep_only([pipe, procs], 3)
        drop.to_account(os.geteuid(), os.getegid(), groups=groups)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the ids: a change of them clears it
        if os.getppid() == spawner:  # else it died before that was set
            os.set_blocking(3, True)
            _serve(3, 4)
    finally:
        os._exit(0)


def _serve(pipe: int, procs: int) -> None:
    """Until the pipe ends. What is asked for meanwhile is read after the round, and is one more."""
    while os.read(pipe, 4096):
        until = time.monotonic() + WARM_SECONDS
        while time.monotonic() < until:
            os.write(procs, b"0")
            time.sleep(STEP_SECONDS)
