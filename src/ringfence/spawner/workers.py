"""The egress workers of this server: one of a box at most, known by a pidfd that was compared with its kernel-told pid.

A worker's end is its own doing (its control socket was closed), the server's wish, or its box's stop, freeze or removal. Of one that has
ended nothing is kept. Must never signal a process that has not shown, after its pidfd was opened, that it runs under the box's egress id.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time

from ringfence.spawner import identity, sweep
from ringfence.spawner.config import Config
from ringfence.spawner.errors import Failed, Refused, Unavailable
from ringfence.spawner.registry import Entry
from ringfence.spawner.tasks import Steps, Wait
from ringfence.spawner.template import Template

START_SECONDS = (
    15.0  # some 5 ms; a template that has just been started loads for a second first, a loaded host for more
)
END_SECONDS = 5.0
_ENDED = "the egress worker ended before it was ready"
_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid; unix(7)


def egress_uid(config: Config, entry: Entry) -> int:
    """The id that its worker runs under: the second of a home's block. In mode shared there is one for all. Refused: another
    kind of box, which has no ids to spare and no way out."""
    if entry.kind != "home":
        raise Refused(f"a box of kind {entry.kind} has no way out; a home has")
    return entry.uid if config.mode == "shared" else entry.uid + 1


class Workers:
    def __init__(self, config: Config, template: Template | None) -> None:
        """`template` None: this server has none, and no worker either."""
        self._config = config
        self._template = template
        self._pidfds: dict[str, int] = {}  # box -> of its worker, alive or just ended
        self._ends = select.epoll()  # of all of them but one that is being ended

    def begin(self, entry: Entry) -> Steps[tuple[int, socket.socket]]:
        """(pid, the server's end of its control socket) of a new worker that has closed itself in. Raises SpawnerError, with
        nothing left running."""
        uid = egress_uid(self._config, entry)
        if self._template is None:
            raise Unavailable("this server has no egress template", "ringfence serve")
        yield from self.end(entry.box)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                pid = yield from self._forked(self._template, entry.box, uid, theirs)
        except BaseException:
            ours.close()
            raise
        return pid, ours

    def _forked(self, template: Template, box: str, uid: int, control: socket.socket) -> Steps[int]:
        report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with report:
            report.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the kernel says who wrote
            with theirs:
                template.fork(uid, control.fileno(), theirs.fileno())
            control.close()  # else its end would not be seen at the other one
            until = time.monotonic() + START_SECONDS
            yield Wait(until, report.fileno())
            if time.monotonic() >= until:
                raise Unavailable("the egress worker does not come up", "ask again")
            said, ancillary, _, _ = report.recvmsg(2048, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not said:
            raise Unavailable(_ENDED, "ask again")
        if said != b"ok":
            raise Failed(f"the egress worker could not close itself in: {said.decode(errors='replace')}")
        pid: int
        pid, found, _ = _CREDENTIALS.unpack(ancillary[0][2])
        pidfd = _open(pid, uid) if found == uid else None
        if pidfd is None:
            raise Unavailable(_ENDED, "ask again")
        self._keep(box, pidfd)
        return pid

    def has(self, pid: int, parent: int) -> bool:
        """Whether that process is the template of this server, or, by its `parent`, one that it has forked."""
        template = self._template.pid if self._template is not None else 0
        return template != 0 and template in (pid, parent)

    def end(self, box: str) -> Steps[None]:
        """Kills it and waits until it is gone. Idempotent. Failed: it does not end."""
        pidfd = self._pidfds.pop(box, None)
        if pidfd is None:
            return
        self._ends.unregister(pidfd)  # this step alone closes it
        try:
            yield from _killed(pidfd)
        except BaseException:
            self._keep(box, pidfd)
            raise
        os.close(pidfd)

    @property
    def ends(self) -> int:
        """Readable when a worker has ended, of itself or by whatever hand: `forget` is called then."""
        return self._ends.fileno()

    def forget(self) -> None:
        """Lets go of those that have ended. Reaped they are by the template, whose children they were."""
        over = {pidfd for pidfd, _ in self._ends.poll(0)}
        for box in [box for box, pidfd in self._pidfds.items() if pidfd in over]:
            pidfd = self._pidfds.pop(box)
            self._ends.unregister(pidfd)
            os.close(pidfd)

    def tend(self) -> None:
        """A child has ended, the template perhaps."""
        if self._template is not None:
            self._template.tend()

    def _keep(self, box: str, pidfd: int) -> None:
        self._pidfds[box] = pidfd
        self._ends.register(pidfd, select.EPOLLIN)


def _killed(pidfd: int) -> Steps[None]:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    until = time.monotonic() + END_SECONDS
    while not identity.exited(pidfd):
        if time.monotonic() >= until:
            raise Failed("the box's egress worker does not end", "ringfence doctor")
        yield Wait(until, pidfd)


def _open(pid: int, uid: int) -> int | None:
    """A pidfd of the process, which has that uid alone after it was opened; None: it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if set(sweep.uids_of(pid)) == {uid} and not identity.exited(pidfd):
        return pidfd
    os.close(pidfd)
    return None
