"""One command: from the job that is handed to the command spawner to the one report of how it ended.

It must say exactly one outcome, and an outcome that is not the kernel's own word (the wait status that PID 1 got) never
claims success.
"""

import binascii
import posix

from ringfence.guest import tree
from ringfence.guest.kept import Kept
from ringfence.guest.launcher import Launch
from ringfence.guest.pipes import Input, Output
from ringfence.guest.poller import Timer
from ringfence.guest.signals import signal
from ringfence.guest.wire_end import output_frame
from ringfence.wire.credits import WINDOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.guest.commands import Commands
    from ringfence.guest.launcher import Job

DRAIN_SECONDS = 0.2
"""How long a command that has ended is kept for output that somebody else still may write (cases A10)."""
TICK_SECONDS = 0.025  # while a command is given its grace
AFTER_KILL_SECONDS = 0.002
KILL_SECONDS = 1.0  # how long the dead are waited for before they are named as left (uninterruptible sleep)
STAGES = {
    "start": "cannot be set up",
    "cwd": "cannot enter its working folder",
    "exec": "cannot be executed",
    "fork": "no process can be made (the box's pids or memory limit?)",
    "pipe": "no pipe can be made",
    "spawner": "the command spawner of the box died twice",
}
ARGUMENT_TOO_LONG = 7  # E2BIG


class Spec:
    """What is asked for, decoded. ValueError, KeyError, TypeError: it is not a spec."""

    __slots__ = ("argv", "cwd", "env", "grace", "keep", "key", "stdin", "timeout")

    def __init__(self, p: "dict[str, Any]") -> None:
        self.key = str(p["key"])
        self.argv = [binascii.a2b_base64(item, strict_mode=True) for item in p["argv_b64"]]
        self.env = {name.encode(): binascii.a2b_base64(value, strict_mode=True) for name, value in p["env_b64"].items()}
        self.cwd = p["cwd"].encode("utf-8", "surrogateescape")
        self.stdin = p["stdin"] == "pipe"
        self.keep = p["output"] == "keep"
        self.timeout = None if p["timeout_ms"] is None else p["timeout_ms"] / 1000
        self.grace = p["grace_ms"] / 1000
        texts = [*self.argv, *self.env, *self.env.values(), self.cwd]
        if not self.argv or b"\0" in b"".join(texts) or b"=" in b"".join(self.env):
            raise ValueError("an empty argv, a NUL byte or a bad name in the environment")


class Command:
    """Lives in PID 1 from cmd.spawn until its outcome has been acknowledged."""

    __slots__ = (
        "_began",
        "_closing",
        "_commands",
        "_duration",
        "_failure",
        "_members",
        "_reason",
        "_roots",
        "_status",
        "_stop_at",
        "_timer",
        "credit",
        "ended",
        "input",
        "outputs",
        "pid",
        "spec",
        "start",
        "waiting",
    )

    def __init__(self, commands: "Commands", spec: Spec) -> None:
        self._commands = commands
        self.spec = spec
        self.pid = 0  # 0 until it is about to run
        self.start = 0  # start time of that pid; 0 until somebody needs it
        self.ended = False  # its outcome is said
        self.waiting: list[tuple[int, bool]] = []  # requests that wait for the pid, and whether they attach
        self.credit = WINDOW
        self.input: Input | None = None
        self.outputs: list[Output] = []
        self._began = commands.poller.now()
        self._duration = 0.0
        self._status: int | None = None  # wait status of the leader
        self._failure: tuple[str, int] | None = None
        self._reason = "exit"
        self._timer: Timer | None = None
        self._stop_at: Timer | None = None  # while it is being stopped: when KILL comes
        self._members: dict[int, int] = {}  # of its tree, while it is being stopped: pid -> start time
        self._roots: dict[int, int] = {}  # processes that outlived it
        self._closing = False

    # --- its beginning

    def begin(self) -> None:
        launch = Launch(self._job(), [], self._started, self._failed)
        try:
            self._plumb(launch.fds)
        except OSError as error:
            launch.close()
            self._failed("pipe", error.errno or 0)
            return
        if self.spec.timeout is not None:
            self._timer = self._commands.poller.after(self.spec.timeout, lambda: self.stop("timeout", self.spec.grace))
        self._commands.launcher.submit(launch)

    def attach(self, request: int) -> None:
        """Another request with this key."""
        self.credit = WINDOW
        if self.pid or self._failure:
            self._commands.say_started(request, self.pid, True)
            self.update()
        else:
            self.waiting.append((request, True))

    def _job(self) -> "Job":
        spec = self.spec
        return (spec.argv, spec.env, spec.cwd, not spec.stdin)

    def _plumb(self, theirs: list[int]) -> None:
        if self.spec.stdin:
            read, write = posix.pipe2(posix.O_CLOEXEC)
            theirs.append(read)
            self.input = Input(self._commands.poller, write, self._give_credit)
        for stream in (1, 2):
            read, write = posix.pipe2(posix.O_CLOEXEC)
            theirs.append(write)
            self.outputs.append(self._output(stream, read))

    def _output(self, stream: int, fd: int) -> Output:
        commands = self._commands
        if self.spec.keep:
            kept = Kept()
            return Output(commands.poller, fd, kept, commands.room, kept.add, self._advance)

        frame = output_frame(self.spec.key, stream)

        def take(data: bytes) -> None:
            self.credit -= len(data)
            commands.say_output(frame, data)

        return Output(commands.poller, fd, None, self._allowed, take, self._advance)

    def _allowed(self) -> int:
        return min(self.credit, self._commands.stream_room())

    def _started(self, pid: int) -> None:
        self.pid = pid
        self._commands.leaders[pid] = self
        self._answer()
        if pid not in self._commands.ending:  # its output is read at its end, which is next
            self.update()
        if self._stop_at is not None:
            tree.send_group(pid, signal.SIGTERM)

    def _failed(self, stage: str, code: int) -> None:
        self._failure = (stage, code)
        self._reason = "spawn_failed"
        self._commands.leaders.pop(self.pid, None)
        self.pid = 0
        self._answer()
        for output in self.outputs:
            output.close()
        self._advance()

    def _answer(self) -> None:
        for request, attached in self.waiting:
            self._commands.say_started(request, self.pid, attached)
        self.waiting = []

    # --- its life

    def update(self) -> None:
        for output in self.outputs:
            output.update()

    def grant(self, size: int) -> None:
        self.credit += size
        self.update()

    def renew(self) -> None:
        """A new wire: what was on the old one is lost."""
        self.credit = WINDOW
        self.waiting = []

    def _give_credit(self, size: int) -> None:
        self._commands.say_credit(self.spec.key, size)

    def signal(self, number: int) -> None:
        if self.pid and self._status is None:
            tree.send_group(self.pid, number)

    # --- its end

    def stop(self, reason: str, grace: float) -> None:
        """TERM to the group; after `grace` seconds KILL to the whole tree, as far as it can be known."""
        if self._status is not None or self._failure is not None:
            return
        poller = self._commands.poller
        if self._stop_at is None:
            self._reason = reason
            self._stop_at = poller.after(grace, self._tick)
            self._note_members()
            if self.pid:
                tree.send_group(self.pid, signal.SIGTERM)
            self._later(TICK_SECONDS)
        elif poller.late(self._stop_at) < -grace:
            self._stop_at.cancel()
            self._stop_at = poller.after(grace, self._tick)
        if grace <= 0:
            self._tick()

    def _note_members(self) -> dict[int, tree.Process]:
        """Who belongs to it now: once the leader is dead, its children hang below PID 1 like everybody's."""
        processes = tree.scan()
        if self.pid:
            leader = processes.get(self.pid)
            if leader is not None and self._status is None:
                self._members[self.pid] = leader.start
            self._members = tree.members(processes, self._members, self.pid)
        return processes

    def _later(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._commands.poller.after(seconds, self._tick)

    def _tick(self) -> None:
        """While it is being stopped."""
        if self._stop_at is None or self.ended:
            return
        if not self.pid:  # not there yet; the launcher will say what became of it
            self._later(TICK_SECONDS)
            return
        alive = tree.living(self._note_members(), self._members)
        late = self._commands.poller.late(self._stop_at)
        if alive and late >= 0:
            tree.kill(self._members, self.pid)
        if self._status is not None and (not alive or late >= KILL_SECONDS):
            self._stop_at.cancel()
            self._stop_at = None
            self._advance()
        else:
            self._later(TICK_SECONDS if late < 0 else AFTER_KILL_SECONDS)

    def leader_ended(self, status: int, orphans: dict[int, int]) -> None:
        """PID 1 has reaped it. `orphans`: who hangs below PID 1 since."""
        self._status = status
        self._duration = self._commands.poller.now() - self._began
        self._roots = orphans
        if self._timer is not None and self._stop_at is None:
            self._timer.cancel()
        if self._stop_at is not None:
            self._members.update(orphans)
            self._tick()
        for output in self.outputs:
            output.read_now()
        self._advance()
        if not self.ended:
            self.update()
            self._commands.poller.after(DRAIN_SECONDS, self._drain)

    def _drain(self) -> None:
        for output in self.outputs:
            output.settle()
            output.update()
        self._advance()

    def _advance(self) -> None:
        """Says the outcome as soon as all of it is known. Output first, then the end."""
        if self.ended or self._closing or (self._status is None and self._failure is None):
            return
        if (self._stop_at is not None and self._failure is None) or not all(o.finished for o in self.outputs):
            return
        self._closing = True
        if self.input is not None:
            self.input.close()
        if self._timer is not None:
            self._timer.cancel()
        self.ended = True
        self._commands.say_ended(self, self._outcome())

    def _outcome(self) -> "dict[str, Any]":
        code: int | None = None
        number: int | None = None
        if self._failure is None and self._status is not None:
            value = posix.waitstatus_to_exitcode(self._status)
            code, number = (value, None) if value >= 0 else (None, -value)
        else:
            self._duration = self._commands.poller.now() - self._began
        kept = [_kept(output.kept) for output in self.outputs] if self.spec.keep else []
        return {
            "key": self.spec.key,
            "code": code,
            "signal": number,
            "reason": self._reason,
            "message": self._message(),
            "left": self._left(),
            "duration_ms": max(0, int(self._duration * 1000)),
            "stdout": kept[0] if len(kept) == 2 else None,
            "stderr": kept[1] if len(kept) == 2 else None,
        }

    def _message(self) -> str:
        if self._failure is None:
            return ""
        stage, code = self._failure
        text = f"{_shown(self.spec.argv[0])}: {STAGES.get(stage, stage)}"
        if stage == "cwd":
            text += f" {_shown(self.spec.cwd)}"
        if code:
            text += f": {posix.strerror(code)}"
        if code == ARGUMENT_TOO_LONG:
            text += " (one argument may be 128 KiB, all of them and the environment 2 MiB: use a file or stdin)"
        return text

    def _left(self) -> list[int]:
        if not self._roots:
            return []
        processes = tree.scan()
        return tree.living(processes, tree.members(processes, self._roots, 0))[:1000]


def _shown(text: bytes) -> str:
    return text[:200].decode("utf-8", "backslashreplace")


def _kept(kept: Kept | None) -> "dict[str, Any]":
    head, tail, dropped = kept.parts() if kept is not None else (b"", b"", 0)
    return {
        "head_b64": binascii.b2a_base64(head, newline=False).decode(),
        "tail_b64": binascii.b2a_base64(tail, newline=False).decode(),
        "total": kept.total if kept is not None else 0,
        "dropped": dropped,
    }
