"""The spawner's child processes: reaped, their last words kept in a bounded tail. Must never wait for one by
blocking."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field

from ringfence.spawner.tasks import Steps, Wait

TAIL = 4096  # bytes kept of what a box's bubblewrap or PID 1 wrote last
ENDED = 64  # ended pipes whose tail is kept for whoever asks: 64 x 4 KiB


@dataclass(slots=True)
class Output:
    """A pipe that is drained so that its writer never blocks."""

    pid: int
    tail: bytearray = field(default_factory=bytearray)


class Children:
    """Knows every child by pid; `collect` after each SIGCHLD."""

    def __init__(self) -> None:
        self._status: dict[int, int | None] = {}  # None while it runs; kept until somebody asked
        self._watched: set[int] = set()  # nobody asks: forgotten at once
        self._outputs: dict[int, Output] = {}
        self._ended: dict[int, bytearray] = {}  # pid -> tail, oldest first

    def add(self, pid: int, output: int | None = None, *, watched: bool = False) -> None:
        """`output`: its non-blocking pipe, ours from now on. `watched`: its status matters to nobody."""
        self._status[pid] = None
        if watched:
            self._watched.add(pid)
        if output is not None:
            self._outputs[output] = Output(pid)

    def collect(self) -> None:
        """Reaps whatever has ended, orphans of boxes included."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._watched:
                    self._watched.discard(pid)
                    del self._status[pid]
                elif pid in self._status:
                    self._status[pid] = os.waitstatus_to_exitcode(status)

    def running(self, pid: int) -> bool:
        return pid in self._status and self._status[pid] is None

    def wait(self, pid: int, seconds: float) -> Steps[int | None]:
        """Its exit status (negative: the signal), None when it still runs after `seconds`: a watched one is forgotten when
        it ends then."""
        until = time.monotonic() + seconds
        watched = pid in self._watched
        self._watched.discard(pid)
        self.collect()
        while self._status.get(pid, 0) is None and time.monotonic() < until:
            pidfd = os.pidfd_open(pid)
            try:
                yield Wait(until, pidfd)
            finally:
                os.close(pidfd)
            self.collect()
        if self.running(pid):
            if watched:
                self._watched.add(pid)
            return None
        return self._status.pop(pid, 0)

    def outputs(self) -> list[int]:
        return list(self._outputs)

    def drain(self, fd: int) -> None:
        """Reads what is there; closes at end of file."""
        output = self._outputs.get(fd)
        if output is None:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 65536):
                output.tail += data
                del output.tail[:-TAIL]
            os.close(fd)
            del self._outputs[fd]
            self._ended[output.pid] = output.tail
            while len(self._ended) > ENDED:
                del self._ended[next(iter(self._ended))]

    def last_words(self, pid: int) -> str:
        """What the child wrote last, control characters replaced; empty when it said nothing."""
        tail = self._ended.get(pid, bytearray())
        for fd, output in list(self._outputs.items()):
            if output.pid == pid:
                self.drain(fd)
                tail = output.tail
        text = tail.decode(errors="replace").strip()
        return "".join(c if c.isprintable() else " " for c in text)
