"""The egress template: an unprivileged process that has loaded everything a worker needs, and forks one on request.

Started beside the kernel, from the same runtime, under the installation's second id, with CAP_SETUID and CAP_SETGID alone:
its children take their box's egress id before they see a byte. It is PID 1 of a process namespace of its own, so that no
worker can name a process of the host and all of them end with it; it ends with its end of the socket, when the spawner
does. Must never hold a secret, a descriptor but that socket, or the way to a file that it may write.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from ringfence.spawner import drop, syscalls
from ringfence.spawner.children import Children
from ringfence.spawner.config import Config
from ringfence.spawner.errors import Unavailable

CHANNEL, SITE = 3, 4
_CODE = (
    "import sys; sys.path.insert(0, '/proc/self/fd/{site}'); from ringfence.host.egress.template import main; main()"
)
KEPT = (syscalls.CAP_SETGID, syscalls.CAP_SETUID)
# Restarts: at once after a long life, else twice as late each time.
LONG_LIFE, FIRST_DELAY, LAST_DELAY = 60.0, 1.0, 60.0

Starter = Callable[[Config, socket.socket], int]


def command(config: Config) -> list[str]:
    """Isolated from its environment; everything it loads is root-owned. It refuses ids outside the boxes' itself too. Its
    code comes by a descriptor, which it closes when all is loaded: a home folder of mode 0700 lets no other id through."""
    code = _CODE.format(site=SITE)
    first, last = config.ids
    return [config.python, "-I", "-S", "-B", "-c", code, str(CHANNEL), str(SITE), str(first), str(last)]


class Template:
    """Keeps one running. A worker that is asked for while it loads waits in the socket."""

    def __init__(self, config: Config, children: Children, start: Starter | None = None) -> None:
        self._config = config
        self._children = children
        self._start = start or spawn
        self._channel: socket.socket | None = None
        self._pid = 0
        self._began = 0.0
        self._delay = 0.0
        self._not_before = 0.0
        self._ended = False

    @property
    def pid(self) -> int:
        """0: none runs."""
        return self._pid if self._channel is not None and self._children.running(self._pid) else 0

    def tend(self) -> None:
        """Starts it if none runs and it is time to; never raises. Called at start-up and whenever a child has ended."""
        if self._ended or self.pid:
            return
        now = time.monotonic()
        if self._channel is not None:
            self._let_go()
            self._delay = 0.0 if now - self._began > LONG_LIFE else min(LAST_DELAY, max(FIRST_DELAY, 2 * self._delay))
            self._not_before = now + self._delay
        if now < self._not_before:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)  # full with requests that it does not read: it stands still, and is no use
        try:
            with theirs:
                self._pid = self._start(self._config, theirs)
        except OSError as error:
            ours.close()
            self._not_before = now + FIRST_DELAY
            sys.stderr.write(f"ringfence: the egress template cannot be started: {error.strerror}\n")
            return
        self._children.add(self._pid, watched=True)
        self._channel, self._began = ours, now

    def fork(self, uid: int, control: int, report: int) -> None:
        """Asks for a worker under `uid`. `control`: its end of the control socket; `report`: where it says `ok` once it
        has closed itself in, or what stopped it; closed without a word when it died. Raises Unavailable."""
        self.tend()
        if self._channel is None:
            raise self._gone()
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [control, report]))]
        try:
            self._channel.sendmsg([str(uid).encode()], passed)
        except BrokenPipeError:  # it has just died
            self._children.collect()
            self.tend()
            raise self._gone() from None
        except OSError as error:
            raise Unavailable(f"the egress template takes no request: {error.strerror}", "ask again") from error

    def _gone(self) -> Unavailable:
        wait = max(1, round(self._not_before - time.monotonic()))
        return Unavailable(f"the egress template has ended; it is started again in {wait} s", "ask again then")

    def end(self) -> None:
        """It and every worker of it are gone when this returns. Idempotent."""
        self._ended = True
        if self._channel is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if self._children.running(self._pid):
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)  # the kernel lets PID 1 be reaped after its whole namespace is gone
            self._let_go()

    def _let_go(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def spawn(config: Config, channel: socket.socket) -> int:
    """Starts it as PID 1 of a new process namespace, by a child that makes that namespace and ends: it is the caller's own
    child then (child subreaper). Returns its pid. Raises OSError."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _between(config, channel, writer)
    os.close(writer)
    try:
        os.waitpid(pid, 0)  # its child is ours only after it
        said = os.read(reader, 16)
    finally:
        os.close(reader)
    number = int(said or b"0")
    if number <= 0:
        raise OSError(-number, os.strerror(-number), "egress template")
    return number


def _between(config: Config, channel: socket.socket, writer: int) -> NoReturn:
    """Says its child's pid, or the error's number, negative."""
    said = 0
    try:
        syscalls.unshare(syscalls.CLONE_NEWPID)
        said = os.fork()
        if said == 0:
            _child(config, channel)
    except OSError as error:
        said = -(error.errno or 5)
    finally:
        os.write(writer, str(said).encode())
        os._exit(0)


def _child(config: Config, channel: socket.socket) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        drop.reset_signals()
        drop.oom_score(0)
        os.setsid()  # a terminal's signals are the server's
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1):
            os.dup2(null, fd)
        site = os.open(f"{config.runtime}/site", os.O_PATH | os.O_DIRECTORY)
        drop.keep_only([channel.fileno(), site], CHANNEL)
        os.umask(0o077)
        os.chdir("/")
        syscalls.join_session_keyring()
        alone = config.mode == "shared"  # one id in all: there is none to change to
        drop.to_account(config.egress_id, config.egress_id, groups=not alone, keep=() if alone else KEPT)
        os.execve(config.python, command(config), {"LANG": "C.UTF-8"})
    except BaseException as error:
        os.write(2, f"ringfence: the egress template cannot be started: {error!r}\n".encode())
    finally:
        os._exit(126)
