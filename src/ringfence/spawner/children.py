"""The spawner's child processes: reaped, their last words kept in a bounded tail. Must never wait for one by
blocking."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ringfence.spawner.tasks import Steps, Wait

TAIL = 4096  # bytes kept of what a box's bubblewrap or PID 1 wrote last
ENDED = 64  # ended pipes whose tail is kept for whoever asks: 64 x 4 KiB
PIECE = 65536  # bytes that are read at once: all that a pipe holds
REST = 0.02  # seconds for which a pipe is left alone after a read: who writes without end costs 50 reads a second


@dataclass(slots=True)
class Output:
    """A pipe that is drained so that its writer never blocks."""

    pid: int
    box: str = ""  # "": of none
    tail: bytearray = field(default_factory=bytearray)
    rests_until: float = 0.0  # monotonic


class Children:
    """Knows every child by pid; `collect` after each SIGCHLD."""

    def __init__(self) -> None:
        self._status: dict[int, int | None] = {}  # None while it runs; kept until somebody asked
        self._watched: set[int] = set()  # nobody asks: forgotten at once
        self._outputs: dict[int, Output] = {}
        self._ended: dict[int, bytearray] = {}  # pid -> tail, oldest first
        self.hear: Callable[[str, bytes], None] = lambda box, data: None  # told what is read of a box's pipe

    def add(self, pid: int, output: int | None = None, *, watched: bool = False, box: str = "") -> None:
        """`output`: its non-blocking pipe, ours from now on. `watched`: its status matters to nobody. `box`: whose words come
        by the pipe."""
        self._status[pid] = None
        if watched:
            self._watched.add(pid)
        if output is not None:
            self._outputs[output] = Output(pid, box)

    def listen(self, box: str, pid: int, output: int) -> None:
        """As `add`, of a box that an earlier server started: nobody here waits for its processes."""
        self._outputs[output] = Output(pid, box)

    def hears(self, box: str) -> bool:
        return any(output.box == box for output in self._outputs.values())

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

    def waited_for(self) -> tuple[list[int], float | None]:
        """(pipes that something may be read of now, when the next of the others is; None: there are no others)."""
        now = time.monotonic()
        later = [output.rests_until for output in self._outputs.values() if output.rests_until > now]
        return [fd for fd, output in self._outputs.items() if output.rests_until <= now], min(later, default=None)

    def drain(self, fd: int) -> None:
        """Reads what is there, a pipe's worth at most; closes at end of file."""
        output = self._outputs.get(fd)
        if output is None:
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(fd, PIECE)
            if data:
                output.rests_until = time.monotonic() + REST
                output.tail += data
                del output.tail[:-TAIL]
                if output.box:
                    self.hear(output.box, data)
                return
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
