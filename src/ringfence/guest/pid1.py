"""PID 1 of a box: reaps, relays, starts and stops commands and loops at the host's word. One thread, never blocks.

It parses nothing but its own wire. It must hold no secret but the tokens of the runs that live, and must survive
whatever its children, the host and a full disk do.
"""

import posix
import time

from ringfence.guest import forks
from ringfence.guest.commands import Commands, Refusal
from ringfence.guest.launcher import Launcher
from ringfence.guest.loops import Loops
from ringfence.guest.poller import Poller
from ringfence.guest.signals import signal
from ringfence.guest.syscalls import landlock_abi
from ringfence.guest.wire_end import WireEnd
from ringfence.wire.framing import LocalProtocolError
from ringfence.wire.state import REPLY, REQUEST, RUN, Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

GENERATION = 1  # of the wire; messages.GENERATION without its import
MAX_STILL_SECONDS = 1e9  # thirty years


class Guest:
    __slots__ = ("_commands", "_digest", "_id", "_launcher", "_loops", "_poller", "_stood", "_wake", "_wire")

    def __init__(self, poller: Poller, wire: WireEnd, launcher: Launcher, digest: str) -> None:
        self._poller = poller
        self._wire = wire
        self._launcher = launcher
        self._digest = digest
        self._id = posix.urandom(10).hex()
        self._commands = Commands(poller, wire, launcher)
        self._loops = Loops(poller, wire, launcher.abi)
        self._commands.mine = self._mine
        self._stood = ("", 0.0)  # the newest stop that the host told of, and how long it was by its word
        wire.on_event = self._hear
        wire.on_change = self._room_changed
        self._wake = _catch_children(self._child_signal)
        poller.watch(self._wake, self._woken)

    def live(self) -> "NoReturn":
        while True:
            try:
                self._poller.turn()
                self._wire.flush()
            except Exception as error:  # a fault of ours must not end the box; it is said and the rest goes on
                forks.say(f"guest: {type(error).__name__}: {error}")
                time.sleep(0.01)  # and one that comes again at once must not fill a log

    # --- the host's frames

    def _hear(self, event: Event) -> None:
        if event.kind == RUN:
            self._loops.deliver(event.run, event.frame)
        elif event.kind == REQUEST:
            self._answer(event)
        elif event.kind != REPLY and event.method in _NOTES:
            self._guarded(0, lambda: _NOTES[event.method](self, event.params))

    def _answer(self, event: Event) -> None:
        handler = _REQUESTS.get(event.method)
        if handler is None:
            self._wire.reply_error(event.id, "unknown_method", f"this guest does not know {event.method}")
            return
        self._guarded(event.id, lambda: handler(self, event))

    def _guarded(self, request: int, call: "Any") -> None:
        """Whatever a frame makes us do, an error of it is an answer."""
        try:
            call()
        except Refusal as refusal:
            self._wire.reply_error(request, refusal.code, str(refusal))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            self._wire.reply_error(request, "invalid", f"{type(error).__name__}: {error}"[:500])
        except (OSError, LocalProtocolError) as error:
            self._wire.reply_error(request, "failed", str(error)[:500])

    def _hello(self, event: Event) -> None:
        self._commands.renew()
        self._wire.reply(
            event.id,
            {
                "generation": GENERATION,
                "digest": self._digest,
                "guest": self._id,
                "landlock": self._launcher.abi,
                "seccomp": _seccomp_filters(),
                "runs": self._loops.listed(),
                "commands": self._commands.listed(),
                "orphans": self._commands.orphans(),
            },
        )
        self._wire.repeat_all()
        self._loops.rewired()

    def _spawn(self, event: Event) -> None:
        self._commands.spawn(event.id, event.params)

    def _signal(self, event: Event) -> None:
        self._commands.signal(event.id, event.params)

    def _stop(self, event: Event) -> None:
        self._commands.stop(event.id, event.params)

    def _run_start(self, event: Event) -> None:
        """The loop gets the frame as it came: what it holds is the loop's to look at."""
        p = event.params
        self._wire.reply(event.id, {"pid": self._loops.start(str(p["run"]), str(p["token"]), event.frame)})

    def _run_cancel(self, event: Event) -> None:
        p = event.params
        if not self._loops.cancel(p["run"], p["grace_ms"] / 1000):
            raise Refusal("not_found", "no such run")
        self._wire.reply(event.id, {})

    def _run_steer(self, event: Event) -> None:
        p = event.params
        if not self._loops.steer(p["run"], p["message"]):
            raise Refusal("busy", "the loop is behind with reading: it hears of the rest when it finishes")
        self._wire.reply(event.id, {})

    def _run_wind_down(self, event: Event) -> None:
        p = event.params
        self._loops.wind_down(p["run"], p["seconds"])
        self._wire.reply(event.id, {})

    def _box_resumed(self, event: Event) -> None:
        """Said anew, by another wire or another host, it counts by what it is longer."""
        pause, seconds = str(event.params["pause"]), float(event.params["seconds"])
        if not 0 <= seconds <= MAX_STILL_SECONDS:
            raise ValueError(f"a pause of {seconds} s")
        known = self._stood[1] if self._stood[0] == pause else 0.0
        self._stood = (pause, max(seconds, known))
        self._poller.stood_still(max(0.0, seconds - known))
        self._wire.reply(event.id, {})

    def _stdin(self, p: "dict[str, Any]") -> None:
        self._commands.stdin(p)

    def _grant(self, p: "dict[str, Any]") -> None:
        self._commands.grant(p)

    def _ack(self, p: "dict[str, Any]") -> None:
        self._commands.acknowledged(self._wire.reports.acknowledge(p["seqs"]))

    def _bye(self, p: "dict[str, Any]") -> None:
        self._wire.drop("")

    # --- its children

    def _child_signal(self) -> None:
        """While PID 1 waits, what a child's end makes it do is done and said before it reads of it (`_woken`, which then
        finds nothing new): 30 microseconds of a command."""
        if self._poller.waiting:
            self._poller.waiting = False
            self._reap()
            self._wire.flush()

    def _woken(self, events: int) -> None:
        posix.read(self._wake, 4096)
        self._reap()

    def _reap(self) -> None:
        statuses: dict[int, int] = {}
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG | posix.WUNTRACED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if posix.WIFSTOPPED(status):
                self._launcher.stopped(pid)
            elif not self._loops.reaped(pid, posix.waitstatus_to_exitcode(status)):
                statuses[pid] = status
        self._settle(statuses)

    def _settle(self, statuses: dict[int, int]) -> None:
        """Who they were. The launcher speaks first: a child tells its pid before it can end."""
        self._commands.ending = statuses
        try:
            self._launcher.drain()
            for pid in list(statuses):
                if self._launcher.reaped(pid):
                    del statuses[pid]
            self._commands.reaped(statuses)
        finally:
            self._commands.ending = {}

    def _mine(self) -> set[int]:
        return self._launcher.pids | self._loops.pids

    def _room_changed(self) -> None:
        self._commands.update()
        self._loops.update()


_REQUESTS = {
    "hello": Guest._hello,
    "cmd.spawn": Guest._spawn,
    "cmd.signal": Guest._signal,
    "cmd.stop": Guest._stop,
    "run.start": Guest._run_start,
    "run.cancel": Guest._run_cancel,
    "run.steer": Guest._run_steer,
    "run.wind_down": Guest._run_wind_down,
    "box.resumed": Guest._box_resumed,
}
_NOTES = {
    "cmd.stdin": Guest._stdin,
    "cmd.grant": Guest._grant,
    "ack": Guest._ack,
    "bye": Guest._bye,
}


def _catch_children(call: "Callable[[], None]") -> int:
    """The read end of a pipe that becomes readable when a child has ended or stopped; `call` comes first, at any time."""
    read, write = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: call())
    return read


def _seccomp_filters() -> int:
    """Of /proc/self/status (kernels from 5.9 on), 0 when it does not say."""
    fd = posix.open("/proc/self/status", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        data = posix.read(fd, 1 << 16)
    finally:
        posix.close(fd)
    for line in data.split(b"\n"):
        if line.startswith(b"Seccomp_filters:"):
            return int(line.split()[1])
    return 0


def main(listener: int, cgroups: list[int], digest: str) -> "NoReturn":
    """`listener`: the bound socket; `cgroups`: write ends for the command spawner; `digest`: of this tree."""
    poller = Poller()
    wire = WireEnd(poller, listener)
    launcher = Launcher(poller, cgroups, landlock_abi())
    launcher.start()
    Guest(poller, wire, launcher, digest).live()
