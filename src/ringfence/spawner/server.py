"""The loop: one packet in, one reply out, over the SEQPACKET pair; steps of many boxes in between.

Requests of one box are served in order, those of different boxes side by side. Must never die of a packet, accept a
descriptor (threats S04), grow without bound, or block on a kernel that does not read.
"""

from __future__ import annotations

import array
import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ringfence.spawner import packets, protocol
from ringfence.spawner.answers import Answer
from ringfence.spawner.children import Children
from ringfence.spawner.errors import Failed, SpawnerError, of_os_error
from ringfence.spawner.operations import Operations
from ringfence.spawner.tasks import Steps, Wait

ACTIVE = 8  # operations under way at once: starts are bound by the processors, more would only queue in the kernel
WAITING = 256  # requests that wait for their turn; above: `busy`
UNSENT = 64  # replies that the kernel has not read; above: nothing more is read from it


@dataclass(slots=True)
class Task:
    number: int
    box: str
    steps: Steps[Answer]
    wait: Wait


@dataclass(frozen=True, slots=True)
class Queued:
    number: int
    request: protocol.Request
    box: str


class Server:
    """`wakeup`: a readable descriptor that a signal makes ready; `signalled` is called then."""

    def __init__(
        self,
        channel: socket.socket,
        operations: Operations,
        children: Children,
        wakeup: int,
        signalled: Callable[[], None],
    ) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._operations = operations
        self._children = children
        self._wakeup = wakeup
        self._signalled = signalled
        self._greeted = False
        self._ended = False
        self._queue: deque[Queued] = deque()
        self._tasks: list[Task] = []
        self._replies: deque[tuple[bytes, tuple[int, ...]]] = deque()

    def serve(self) -> None:
        """Until the kernel's end is closed. What is under way is then dropped: its own `finally` tidies."""
        while not self._ended:
            ready = self._poll()
            if self._wakeup in ready:
                self._signalled()
            for fd in self._children.outputs():
                if fd in ready:
                    self._children.drain(fd)
            if self._operations.workers.ends in ready:
                self._operations.workers.forget()
            self._advance(ready)
            self._exchange(ready)
            self._admit()
        for task in self._tasks:
            task.steps.close()

    def _poll(self) -> dict[int, int]:
        poll = select.poll()
        events = select.POLLIN if len(self._replies) < UNSENT else 0
        poll.register(self._channel.fileno(), events | (select.POLLOUT if self._replies else 0))
        outputs, rested = self._children.waited_for()
        for fd in (self._wakeup, self._operations.workers.ends, *outputs):
            poll.register(fd, select.POLLIN)
        for task in self._tasks:
            if task.wait.fd is not None:
                poll.register(task.wait.fd, select.POLLIN)
        until = [task.wait.until for task in self._tasks] + ([] if rested is None else [rested])
        if not until:
            return dict(poll.poll())
        return dict(poll.poll(max(0.0, min(until) - time.monotonic()) * 1000))

    def _exchange(self, ready: dict[int, int]) -> None:
        happened = ready.get(self._channel.fileno(), 0)
        while self._replies and self._send(*self._replies[0]):
            self._replies.popleft()
        if happened & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._receive(hung_up=bool(happened & (select.POLLHUP | select.POLLERR)))

    def _send(self, packet: bytes, fds: tuple[int, ...]) -> bool:
        """False: the kernel has to read first. Descriptors are closed once sent, or when nobody is there any more."""
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._channel.sendmsg([packet], passed)
        except BlockingIOError:
            return False
        except OSError:
            self._ended = True
        for fd in fds:
            socket.close(fd)
        return True

    def _receive(self, *, hung_up: bool) -> None:
        try:
            # No room for control data: descriptors that were attached are never installed, only flagged.
            packet, _, flags, _ = self._channel.recvmsg(protocol.MAX_PACKET + 1, 0)
        except BlockingIOError:
            return
        except OSError:
            self._ended = True
            return
        if not packet and hung_up:
            self._ended = True
        elif flags & socket.MSG_CTRUNC:
            self._refuse(_number(packet), "refused", "a request must not carry descriptors")
        else:
            self._accept(packet)

    def _accept(self, packet: bytes) -> None:
        try:
            number, request = packets.parse_request(packet)
        except packets.BadRequest as error:
            self._refuse(_number(packet), "bad_request", str(error))
            return
        if not self._greeted and not isinstance(request, protocol.Greet):
            self._refuse(number, "refused", "greet first")
        elif len(self._queue) >= WAITING:
            self._refuse(number, "busy", f"{WAITING} requests are waiting already")
        else:
            self._queue.append(Queued(number, request, getattr(request, "box", "")))

    def _refuse(self, number: int, code: str, message: str, remedy: str = "", of_host: str = "") -> None:
        self._replies.append((packets.encode_error(number, code, message, remedy, of_host), ()))

    def _admit(self) -> None:
        """Begins what may begin: boxes that are not busy, ACTIVE at most."""
        for queued in list(self._queue):
            if len(self._tasks) >= ACTIVE:
                break
            if not queued.box or all(task.box != queued.box for task in self._tasks):
                self._queue.remove(queued)
                self._begin(queued)
        while self._replies and self._send(*self._replies[0]):
            self._replies.popleft()

    def _begin(self, queued: Queued) -> None:
        try:
            answer = self._operations.begin(queued.request)
        except Exception as error:  # whatever it is: one request fails, the spawner goes on
            self._fail(queued.number, error)
            return
        if isinstance(answer, Answer):
            self._greeted = self._greeted or isinstance(queued.request, protocol.Greet)
            self._replies.append((packets.encode_reply(queued.number, answer.body), answer.fds))
            return
        task = Task(queued.number, queued.box, answer, Wait(0.0))
        self._tasks.append(task)
        self._step(task)

    def _advance(self, ready: dict[int, int]) -> None:
        now = time.monotonic()
        for task in list(self._tasks):
            if task.wait.until <= now or task.wait.fd in ready:
                self._step(task)

    def _step(self, task: Task) -> None:
        try:
            task.wait = next(task.steps)
            return
        except StopIteration as end:
            self._replies.append((packets.encode_reply(task.number, end.value.body), end.value.fds))
        except Exception as error:
            self._fail(task.number, error)
        self._tasks.remove(task)

    def _fail(self, number: int, error: Exception) -> None:
        if isinstance(error, OSError):
            error = of_os_error(error, "the spawner")
        if not isinstance(error, SpawnerError):
            error = Failed(f"the spawner: {error!r}", "ringfence doctor")
        self._refuse(number, error.code, error.message[:2000], error.remedy, error.of_host)


def _number(packet: bytes) -> int:
    """The id of a packet that is no request, so that its sender can tell which; 0 when it has none."""
    try:
        number = json.loads(packet[: protocol.MAX_PACKET]).get("id")
    except (ValueError, AttributeError, RecursionError):
        return 0
    return number if type(number) is int and 0 <= number < 1 << 53 else 0
