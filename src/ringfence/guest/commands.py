"""The commands of a box: the table by key, what the host may ask of them, and who hangs below PID 1."""

import binascii
import posix

from ringfence.guest import tree
from ringfence.guest.command import Command, Spec
from ringfence.guest.launcher import Launcher
from ringfence.guest.poller import Poller
from ringfence.guest.signals import signal
from ringfence.guest.wire_end import WireEnd
from ringfence.wire.credits import CHUNK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MAX_ENTRIES = 4096
"""Commands that run or whose outcome is not acknowledged; each may hold up to a megabyte."""


class Refusal(Exception):
    """A request that is answered with an error. `code` as in the wire's errors."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Commands:
    __slots__ = (
        "_children_fd",
        "_known",
        "_own",
        "_reports",
        "_table",
        "_wire",
        "ending",
        "launcher",
        "leaders",
        "mine",
        "poller",
    )

    def __init__(self, poller: Poller, wire: WireEnd, launcher: Launcher) -> None:
        self.poller = poller
        self.launcher = launcher
        self.leaders: dict[int, Command] = {}  # by pid, until it is reaped
        self.ending: dict[int, int] = {}  # pids that were reaped and have not been said to `reaped` yet
        self.mine: Callable[[], set[int]] = set  # pids of PID 1's own helpers
        self._wire = wire
        self._table: dict[str, Command] = {}
        self._reports: dict[int, str] = {}  # number of the report of an outcome -> key
        self._known: dict[int, int] = {}  # orphans that were named before: pid -> start time
        self._children_fd = _open_children()
        self._own = tree.command_line(posix.getpid())

    # --- what the host asks

    def spawn(self, request: int, p: "dict[str, Any]") -> None:
        """Answers by itself, once the pid is known."""
        try:
            spec = Spec(p)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Refusal("invalid", f"cmd.spawn: {error}") from None
        known = self._table.get(spec.key)
        if known is not None:
            known.attach(request)
            if known.ended:
                self._repeat(known)
            return
        if len(self._table) >= MAX_ENTRIES:
            raise Refusal("busy", f"{MAX_ENTRIES} commands run or wait for their acknowledgement, the limit")
        command = self._table[spec.key] = Command(self, spec)
        command.waiting.append((request, False))
        command.begin()

    def stdin(self, p: "dict[str, Any]") -> None:
        command = self._table.get(p["key"])
        if command is None or command.input is None:
            return
        command.input.add(binascii.a2b_base64(p["data_b64"], strict_mode=True), bool(p["eof"]))

    def grant(self, p: "dict[str, Any]") -> None:
        command = self._table.get(p["key"])
        if command is not None:
            command.grant(int(p["bytes"]))

    def signal(self, request: int, p: "dict[str, Any]") -> None:
        number = p["signal"]
        if type(number) is not int or not 1 <= number < signal.NSIG:
            raise Refusal("invalid", f"no signal {number!r}")
        self._find(p).signal(number)
        self._wire.reply(request, {})

    def stop(self, request: int, p: "dict[str, Any]") -> None:
        self._find(p).stop("killed", p["grace_ms"] / 1000)
        self._wire.reply(request, {})

    def acknowledged(self, numbers: list[int]) -> None:
        for number in numbers:
            self._table.pop(self._reports.pop(number, ""), None)

    def renew(self) -> None:
        """After a hello."""
        for command in self._table.values():
            command.renew()

    def update(self) -> None:
        """Room for output has come or gone."""
        for command in list(self._table.values()):
            command.update()

    def listed(self) -> "list[dict[str, str]]":
        return [{"key": key, "state": "ended" if c.ended else "running"} for key, c in self._table.items()]

    def _find(self, p: "dict[str, Any]") -> Command:
        command = self._table.get(p["key"])
        if command is None:
            raise Refusal("not_found", "no such command")
        return command

    def _repeat(self, command: Command) -> None:
        for number, key in self._reports.items():
            if key == command.spec.key:
                self._wire.repeat(number)

    # --- what commands say

    def room(self) -> int:
        """Bytes that may be read for keeping: none while too much waits for the host."""
        return 0 if self._wire.full else CHUNK

    def stream_room(self) -> int:
        return CHUNK if self._wire.greeted and not self._wire.full else 0

    def say_started(self, request: int, pid: int, attached: bool) -> None:
        self._wire.reply(request, {"pid": pid, "attached": attached})

    def say_output(self, frame: bytes, data: bytes) -> None:
        self._wire.notify_output(frame, data)

    def say_credit(self, key: str, size: int) -> None:
        self._wire.notify("cmd.credit", {"key": key, "bytes": size})

    def say_ended(self, command: Command, outcome: "dict[str, Any]") -> None:
        self._reports[self._wire.report("cmd.ended", outcome)] = command.spec.key

    # --- who hangs below PID 1

    def reaped(self, statuses: dict[int, int]) -> None:
        """The leaders among these pids have ended; who hangs below PID 1 only now, outlived them."""
        ended = [(self.leaders.pop(pid), status) for pid, status in statuses.items() if pid in self.leaders]
        if not ended:
            return
        orphans = self._new_orphans()
        for command, status in ended:
            own = orphans if len(ended) == 1 else _of_session(orphans, command.pid)
            command.leader_ended(status, own)

    def orphans(self) -> list[int]:
        """Live processes that no running command owns."""
        processes = tree.scan()
        below = {pid: process.start for pid, process in processes.items() if process.parent == 1}
        known = {pid: below[pid] for pid in self._loose(below)}
        return tree.living(processes, tree.members(processes, known, 0))[:1000]

    def _new_orphans(self) -> dict[int, int]:
        """pid -> start time of children of PID 1 that were not there before. A child comes to hang there only when a
        leader dies, since every leader is a subreaper."""
        loose = self._loose(self._children())
        found = {pid: process.start for pid in loose if (process := tree.look(pid)) is not None}
        new = {pid: start for pid, start in found.items() if self._known.get(pid) != start}
        self._known = found
        return new

    def _loose(self, pids: "Iterable[int]") -> list[int]:
        """Those that neither we nor a command answer for."""
        loose = self._unknown(pids)
        if loose:  # a command may be among them before we have heard so
            self.launcher.drain()
            loose = self._unknown(loose)
        if loose and self.launcher.expecting:  # one at most is excused: whoever calls himself so stays no longer hidden
            for pid in reversed(loose):
                if tree.command_line(pid) == self._own:
                    loose.remove(pid)
                    break
        return loose

    def _unknown(self, pids: "Iterable[int]") -> list[int]:
        mine = self.mine()
        return [pid for pid in pids if pid not in self.leaders and pid not in mine]

    def _children(self) -> list[int]:
        if self._children_fd < 0:
            return [pid for pid, process in tree.scan().items() if process.parent == 1]
        data = posix.pread(self._children_fd, 1 << 16, 0)
        return [int(word) for word in data.split()]


def _open_children() -> int:
    """One read of this file (kernels with CONFIG_PROC_CHILDREN) spares a walk over /proc for each command."""
    try:
        return posix.open(f"/proc/self/task/{posix.getpid()}/children", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return -1


def _of_session(orphans: dict[int, int], session: int) -> dict[int, int]:
    """When several leaders ended at once, only the session tells whose an orphan is; one that left its session is
    named by each of them."""
    found = {}
    for pid, start in orphans.items():
        process = tree.look(pid)
        if process is not None and (process.session == session or process.session == pid):
            found[pid] = start
    return found
