"""PID 1's side of the command spawner: hands jobs over, learns pids, replaces it when it was killed or stopped.

A job whose command spawner died is handed over once more, and only when it is certain that it never ran: each child
says so before it runs, and the socket ends when the last of them has. It must never block.
"""

import _socket
import marshal
import posix

from ringfence.guest import forks, tree, vfork, zygote
from ringfence.guest.poller import READ, WRITE, Poller, Timer
from ringfence.guest.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Job = tuple[list[bytes], dict[bytes, bytes], bytes, bool]
    """(arguments, environment, working folder, null stdin)."""

STAGES = {
    vfork.REFUSED: "exec",
    zygote.NO_CWD: "cwd",
    zygote.NO_START: "start",
    zygote.NO_FORK: "fork",
}
DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
LOOK_SECONDS = 0.001
"""What a child says is read when a child has ended, or this much later: a command that is over by then costs one wake-up
and one packet instead of three."""
START_SECONDS = 10.0
"""A command that has not come to be by then never will: somebody stopped it between clone and exec."""


class Launch:
    """One command on its way into being."""

    __slots__ = ("failed", "fds", "job", "overdue", "retried", "started")

    def __init__(
        self,
        job: "Job",
        fds: list[int],
        started: "Callable[[int], None]",
        failed: "Callable[[str, int], None]",
    ) -> None:
        self.job = job
        self.fds = fds  # the command's ends; ours to close
        self.started = started  # (pid): it is about to run
        self.failed = failed  # (stage, errno): it will not run; also after `started`, when exec refuses
        self.retried = False
        self.overdue: Timer | None = None

    def close(self) -> None:
        if self.overdue is not None:
            self.overdue.cancel()
        for fd in self.fds:
            posix.close(fd)
        self.fds = []


class Spawner:
    """One command spawner process and what was handed to it."""

    __slots__ = ("backlog", "fd", "open", "pending", "pid", "sock")

    def __init__(self, sock: _socket.socket, pid: int) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.pid = pid  # 0 once reaped
        self.pending: dict[int, Launch] = {}
        self.backlog: list[int] = []  # numbers that did not fit into the socket yet
        self.open = True


class Launcher:
    __slots__ = ("_arena", "_cgroups", "_failing", "_looking", "_next", "_old", "_own", "_poller", "abi", "current")

    def __init__(self, poller: Poller, cgroups: list[int], abi: int) -> None:
        self._poller = poller
        self._cgroups = cgroups
        self._arena = vfork.reserve()
        self._next = 1
        self._looking: Timer | None = None
        self._old: list[Spawner] = []  # dead ones whose children may still speak
        self._failing: dict[int, Launch] = {}  # said to be about to run; exec may still refuse
        self._own = tree.command_line(posix.getpid())
        self.abi = abi
        self.current: Spawner | None = None

    def start(self) -> Spawner:
        """Forks a command spawner. OSError when there is no room."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        sock = _socket.socket(fileno=ours.detach())
        sock.setblocking(False)
        keep = [theirs.fileno(), *self._cgroups]
        try:
            pid = forks.child(keep, lambda: zygote.serve(theirs, self._cgroups, self.abi, self._arena))
        except OSError:
            sock.close()
            raise
        finally:
            theirs.close()
        self.current = Spawner(sock, pid)
        return self.current

    def submit(self, launch: Launch) -> None:
        number = self._next
        self._next += 1
        launch.overdue = self._poller.after(START_SECONDS, lambda: self._give_up(number))
        self._hand_over(number, launch)

    @property
    def pids(self) -> set[int]:
        """Of the command spawners."""
        return {spawner.pid for spawner in (self.current, *self._old) if spawner is not None}

    @property
    def expecting(self) -> bool:
        """May there be a child that has not told its pid?"""
        return any(spawner.pending for spawner in (self.current, *self._old) if spawner is not None)

    def drain(self) -> None:
        """Reads what was said until now: names before exit statuses."""
        for spawner in (self.current, *self._old):
            if spawner is not None:
                self._read(spawner)

    def reaped(self, pid: int) -> bool:
        """Was it a command spawner? It is replaced when it is next needed."""
        for spawner in (self.current, *self._old):
            if spawner is not None and spawner.pid == pid:
                spawner.pid = 0
                self._retire(spawner)
                return True
        return False

    def stopped(self, pid: int) -> None:
        """A command spawner that somebody stopped is as good as dead; so is a child of it that is not a program yet,
        for which it waits, and which only its command line tells from a command."""
        self.drain()
        if pid in self.pids or tree.command_line(pid) == self._own:
            tree.send(pid, signal.SIGKILL)

    # --- to it

    def _hand_over(self, number: int, launch: Launch) -> None:
        try:
            spawner = self.current or self.start()
        except OSError as error:
            launch.close()
            launch.failed("fork", error.errno or 0)
            return
        spawner.pending[number] = launch
        if self._looking is None:
            self._looking = self._poller.after(LOOK_SECONDS, self._look)
        self._pass_on(spawner, number, launch)

    def _pass_on(self, spawner: Spawner, number: int, launch: Launch) -> None:
        if spawner.backlog or not self._send(spawner, number, launch):
            spawner.backlog.append(number)
            self._watch(spawner, READ | WRITE)

    def _send(self, spawner: Spawner, number: int, launch: Launch) -> bool:
        """False when the socket is full."""
        data = self._packed(number, launch.job)
        fds, memory = launch.fds, -1
        if len(data) > zygote.PACKET:
            memory = posix.memfd_create("job", posix.MFD_CLOEXEC)
            for start in range(0, len(data), 1 << 20):
                posix.write(memory, data[start : start + (1 << 20)])
            data, fds = b"\0", [*fds, memory]
        rights = b"".join(fd.to_bytes(4, "little") for fd in fds)
        try:
            spawner.sock.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        except BlockingIOError:
            return False
        except OSError:  # it died; its end of file is on its way and settles what was pending
            return True
        finally:
            if memory >= 0:
                posix.close(memory)
        return True

    def _packed(self, number: int, job: "Job") -> bytes:
        argv, env, cwd, null_stdin = job
        image, argv_at, env_at, program = vfork.image(self._arena, argv, env)
        search = None if b"/" in argv[0] else (argv[0], env.get(b"PATH", DEFAULT_PATH))
        return image + marshal.dumps((number, cwd, null_stdin, argv_at, env_at, program, search))

    # --- from it

    def _look(self) -> None:
        """Somebody has not said that it runs yet: from now on each word is heard at once."""
        self._looking = None
        self.drain()
        if self.current is not None and self.current.pending:
            self._watch(self.current, READ)

    def _watch(self, spawner: Spawner, mask: int) -> None:
        if spawner.open:
            self._poller.watch(spawner.fd, lambda events: self._ready(spawner, events), mask)

    def _all_run(self, spawner: Spawner) -> None:
        """Nothing is pending: what is said next can wait."""
        if spawner is self.current:
            self._poller.forget(spawner.fd)
            if self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def _ready(self, spawner: Spawner, events: int) -> None:
        if events & WRITE:
            while spawner.backlog:
                number = spawner.backlog[0]
                launch = spawner.pending.get(number)
                if launch is not None and not self._send(spawner, number, launch):
                    break
                spawner.backlog.pop(0)
            if not spawner.backlog:
                self._watch(spawner, READ)
        self._read(spawner)

    def _read(self, spawner: Spawner) -> None:
        while spawner.open:
            try:
                data = spawner.sock.recv(64)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._ended(spawner)
                return
            kind, number, value = (
                int.from_bytes(data[i : i + 8], "little", signed=True) for i in range(0, vfork.WORDS, 8)
            )
            self._heard(spawner, kind, number, value)

    def _heard(self, spawner: Spawner, kind: int, number: int, value: int) -> None:
        launch = spawner.pending.pop(number, None)
        if kind == zygote.NOT_HEARD and launch is not None and not launch.retried:
            launch.retried = True
            spawner.pending[number] = launch
            self._pass_on(spawner, number, launch)
            return
        if not spawner.pending:
            self._all_run(spawner)
        if kind == vfork.STARTED:
            self._runs(number, launch, value)
            return
        launch = launch or self._failing.pop(number, None)
        if launch is not None:
            launch.close()
            code = 0 if kind == zygote.NOT_HEARD else -value
            launch.failed(STAGES.get(kind, "start"), code)

    def _runs(self, number: int, launch: Launch | None, pid: int) -> None:
        if launch is None:  # given up long ago, and now it runs after all
            process = tree.look(pid)
            tree.kill({pid: process.start} if process is not None else {}, pid)
            return
        launch.close()
        self._failing[number] = launch
        if len(self._failing) > 256:  # those that ran say nothing more: forget the oldest
            self._failing.pop(next(iter(self._failing)))
        launch.started(pid)

    def _give_up(self, number: int) -> None:
        for spawner in (self.current, *self._old):
            launch = spawner.pending.pop(number, None) if spawner is not None else None
            if launch is not None:
                launch.close()
                launch.failed("start", 110)  # ETIMEDOUT

    def _retire(self, spawner: Spawner) -> None:
        """It is dead, or will be at once; its children may still speak."""
        if self.current is spawner:
            self.current = None
            self._old.append(spawner)
            self._watch(spawner, READ)
            if spawner.open:  # nothing more is handed to it
                spawner.sock.shutdown(_socket.SHUT_WR)
        self._read(spawner)
        if not spawner.open and not spawner.pid and spawner in self._old:
            self._old.remove(spawner)

    def _ended(self, spawner: Spawner) -> None:
        """Its last descriptor is closed: what is still pending has never run."""
        spawner.open = False
        self._poller.forget(spawner.fd)
        spawner.sock.close()
        if spawner.pid:
            tree.send(spawner.pid, signal.SIGKILL)
        self._retire(spawner)
        pending, spawner.pending, spawner.backlog = spawner.pending, {}, []
        for number, launch in pending.items():
            if launch.retried:
                launch.close()
                launch.failed("spawner", 0)
            else:
                launch.retried = True
                self._hand_over(number, launch)
