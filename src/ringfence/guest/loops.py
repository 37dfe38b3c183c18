"""PID 1's side of the agent loops: starts each in a process of its own, relays its lines unread, reports its end.

A loop may be hostile: it has read what the whole world wrote. PID 1 counts its bytes and lines and parses nothing.
"""

import _socket

from ringfence.guest import forks, tree
from ringfence.guest.poller import READ, WRITE, Poller
from ringfence.guest.signals import signal
from ringfence.guest.syscalls import confine
from ringfence.guest.wire_end import WireEnd
from ringfence.wire.framing import MAX_LOOP_FRAME, LineBuffer, RemoteProtocolError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LOOPS = 64
WARM_SECONDS = 1.0  # not while the first run begins
LINES_PER_SECOND = 1000
"""Ten times what any method of a loop is allowed by the host: no honest loop comes near."""
MAX_WAITING = 4 * 1024 * 1024
"""Bytes of the host's frames that a loop has not read: four whole frames; it has one ask in flight."""
MAX_STEERS = MAX_WAITING // 2
"""Of these, what steers may take: a person who says much must not leave the loop without room for an answer."""
RECEIVE = 64 * 1024


class Loop:
    """One agent loop."""

    __slots__ = ("behind", "buffer", "counted", "lines", "pid", "replaced", "run", "since", "sock", "token", "watched")

    def __init__(self, run: str, token: str, sock: _socket.socket, pid: int, since: float) -> None:
        self.run = run
        self.token = token
        self.sock = sock
        self.pid = pid
        self.lines = LineBuffer(MAX_LOOP_FRAME)
        self.buffer = bytearray()  # for the loop
        self.behind = False  # a steer was left out: it gets no later one either
        self.watched = 0
        self.since = since  # the second in which lines are counted
        self.counted = 0
        self.replaced = False  # by a newer loop of the same run: its end is nobody's business


class Loops:
    __slots__ = ("_abi", "_by_pid", "_poller", "_runs", "_warm", "_wire")

    def __init__(self, poller: Poller, wire: WireEnd, abi: int) -> None:
        self._poller = poller
        self._wire = wire
        self._abi = abi
        self._runs: dict[str, Loop] = {}
        self._by_pid: dict[int, Loop] = {}
        self._warm = False  # the loop's code is here, or will be

    @property
    def pids(self) -> set[int]:
        return set(self._by_pid)

    def listed(self) -> "list[dict[str, str]]":
        return [{"run": loop.run, "token": loop.token} for loop in self._runs.values()]

    def start(self, run: str, token: str, first: bytes) -> int:
        """The pid; of the loop that already lives when run and token are the same. `first`: the run.start frame.
        OSError: no process."""
        loop = self._runs.get(run)
        if loop is not None and loop.token == token:
            return loop.pid
        if loop is not None:
            loop.replaced = True
            self._kill(loop)
        if len(self._runs) >= MAX_LOOPS:
            raise OSError(11, f"{MAX_LOOPS} loops run, the limit")
        ours, theirs = _pair()
        try:
            pid = forks.child([theirs.fileno()], lambda: _live(theirs, first, self._abi))
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        loop = self._runs[run] = self._by_pid[pid] = Loop(run, token, ours, pid, self._poller.now())
        self.update()
        if not self._warm:
            self._warm = True
            self._poller.after(WARM_SECONDS, _import_loop)
        return pid

    def cancel(self, run: str, grace: float) -> bool:
        """TERM, then KILL. False: no such loop."""
        loop = self._runs.get(run)
        if loop is None:
            return False
        tree.send(loop.pid, signal.SIGTERM)
        self._poller.after(grace, lambda: self._kill_if_alive(loop))
        return True

    def deliver(self, run: str, frame: bytes) -> None:
        """A frame of the host for a loop. One for a loop that is gone is nothing: its end is reported."""
        loop = self._runs.get(run)
        if loop is None:
            return
        loop.buffer += frame + b"\n"
        if len(loop.buffer) > MAX_WAITING:
            self._kill(loop)
            return
        self._push(loop)

    def steer(self, run: str, message: "dict[str, Any]") -> bool:
        """False: not delivered, since the loop is behind with reading. It gets no later one either: what it takes up is
        without a gap, and the rest comes with the answer to its run.finish. True for a loop that is gone: the next one
        is started with all of them."""
        loop = self._runs.get(run)
        if loop is None:
            return True
        frame = encode({"m": "steer", "p": {"message": message}})
        loop.behind = loop.behind or len(loop.buffer) + len(frame) > MAX_STEERS
        if loop.behind:
            return False
        loop.buffer += frame
        self._push(loop)
        return True

    def wind_down(self, run: str, seconds: int) -> None:
        self.deliver(run, encode({"m": "wind_down", "p": {"seconds": seconds}})[:-1])

    def rewired(self) -> None:
        """The wire is another one: whatever a loop had asked has ended without an answer."""
        frame = encode({"m": "rewired", "p": {}})[:-1]
        for loop in list(self._runs.values()):
            self.deliver(loop.run, frame)

    def update(self) -> None:
        """Room on the wire has come or gone."""
        for loop in self._runs.values():
            self._watch(loop)

    def reaped(self, pid: int, code: int) -> bool:
        """`code`: as of waitstatus_to_exitcode."""
        loop = self._by_pid.pop(pid, None)
        if loop is None:
            return False
        while self._relay(loop):  # what it said before it ended
            pass
        self._close(loop)
        if not loop.replaced:
            exit_code, number = (code, None) if code >= 0 else (None, -code)
            self._wire.report("loop.ended", {"run": loop.run, "code": exit_code, "signal": number})
        return True

    # --- one loop

    def _watch(self, loop: Loop) -> None:
        mask = (READ if self._readable() else 0) | (WRITE if loop.buffer else 0)
        if loop.sock.fileno() < 0 or mask == loop.watched:
            return
        loop.watched = mask
        if mask:
            self._poller.watch(loop.sock.fileno(), lambda events: self._ready(loop, events), mask)
        else:
            self._poller.forget(loop.sock.fileno())

    def _readable(self) -> bool:
        """Without a wire lines are read and dropped: the loop asks again when it hears of the next one."""
        return not self._wire.full or not self._wire.greeted

    def _ready(self, loop: Loop, events: int) -> None:
        if events & WRITE:
            self._push(loop)
        if events & ~WRITE:
            self._relay(loop)

    def _push(self, loop: Loop) -> None:
        try:
            del loop.buffer[: loop.sock.send(memoryview(loop.buffer)[:RECEIVE])]
        except BlockingIOError:
            pass
        except OSError:
            loop.buffer.clear()
        self._watch(loop)

    def _relay(self, loop: Loop) -> bool:
        """True while there may be more."""
        try:
            data = loop.sock.recv(RECEIVE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(loop)
            return False
        try:
            lines = loop.lines.feed(data)
        except RemoteProtocolError:
            lines = []
            loop.counted = LINES_PER_SECOND
        if self._floods(loop, len(lines)):
            self._kill(loop)
            return False
        for line in lines:
            self._wire.relay(loop.run, line)
        return True

    def _floods(self, loop: Loop, lines: int) -> bool:
        now = self._poller.now()
        if not 0 <= now - loop.since < 1.0:
            loop.since, loop.counted = now, loop.counted if loop.counted == LINES_PER_SECOND else 0
        loop.counted += lines
        return loop.counted >= LINES_PER_SECOND

    def _kill_if_alive(self, loop: Loop) -> None:
        if loop.pid in self._by_pid:
            self._kill(loop)

    def _kill(self, loop: Loop) -> None:
        tree.send(loop.pid, signal.SIGKILL)  # before its socket ends: it must not get to choose its own end
        self._close(loop)

    def _close(self, loop: Loop) -> None:
        """No more lines either way. A loop that closed its end without ending is ended by this."""
        if loop.sock.fileno() >= 0:
            self._poller.forget(loop.sock.fileno())
            loop.sock.close()
        if self._runs.get(loop.run) is loop:
            del self._runs[loop.run]
        if loop.pid in self._by_pid:
            tree.send(loop.pid, signal.SIGKILL)


def _pair() -> tuple[_socket.socket, _socket.socket]:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    ours.setblocking(False)
    return ours, theirs


def _import_loop() -> None:
    """In PID 1, once a first loop is at work: later ones are forked with their code (2 ms of each turn). It is loaded and
    never called here."""
    import ringfence.guest.loop
    import ringfence.guest.native  # noqa: F401


def _live(sock: _socket.socket, first: bytes, abi: int) -> None:
    """In the child: the walls first, then the imports that PID 1 does without."""
    confine(abi)
    from ringfence.guest.loop import main

    main(sock, first)
