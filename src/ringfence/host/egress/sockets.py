"""The listening sockets of one box, in its network, held by the server: the fixed ones, one for each live invocation, and a few
that wait for the next.

A command is given one that waits, so that it pays no round trip to the spawner. A port that is nobody's is deaf: bound, and not
listening (shutdown(2) of a listener; listen(2) again needs no right). Ports go round, so that what a command has left behind in
a box does not soon speak through the next one's. Must never have two of one port.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ringfence.host.egress.chores import Chores
from ringfence.host.kernel.errors import Conflict, RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.listeners import PROXY_PORTS, Listener
from ringfence.host.kernel.outward.ports import Outlets

FIRST = 4  # as many commands as a person or a run starts at once
# From then on each command has one more made behind it, up to so many: a port is another command's after 16 others that ran one
# after another, and after 4 (FIRST) of which some overlap.
READY = 16
# Commands at once. A worker has 1,024 descriptors (confine.NOFILE): 128 connections with an upstream each, 64 upstreams that wait
# for a next request and some 20 of its own leave 680. With more it would be ended by its own control socket, each time anew.
MOST = 600
BACKLOG = 128  # as the spawner's listeners have


@dataclass(frozen=True, slots=True)
class _Held:
    """`sock` owns the descriptor of `listener`."""

    listener: Listener
    sock: socket.socket

    def hear(self) -> None:
        self.sock.listen(BACKLOG)

    def deafen(self) -> bool:
        """Connections in its queue are reset. False: this system does not let it."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True


def _held(listener: Listener) -> _Held:
    return _Held(listener, socket.socket(fileno=listener.fd))


class Sockets:
    """`appeared`: told of each listener that the box has from now on."""

    def __init__(self, box: BoxId, outlets: Outlets, chores: Chores, appeared: Callable[[Listener], None]) -> None:
        self._box, self._outlets, self._chores, self._appeared = box, outlets, chores, appeared
        self._fixed: list[_Held] = []
        self._used: dict[int, _Held] = {}
        self._fresh: deque[_Held] = deque()
        self._rested: deque[_Held] = deque()  # some command had them; the one that rests longest first
        self._opening: set[int] = set()
        self._next = PROXY_PORTS.start
        self._wanted = FIRST
        self._filling = False
        self._closed = False

    def __iter__(self) -> Iterator[Listener]:
        """All but those that wait: nobody knows their ports."""
        for held in (*self._fixed, *self._used.values()):
            yield held.listener

    def __len__(self) -> int:
        return len(self._fixed) + len(self._used)

    async def open(self, ports: Iterable[int]) -> list[int]:
        """The fixed set, and these of commands that run. Those that could be had. RingfenceError: the fixed set could not."""
        self._fixed = [_held(each) for each in await self._outlets.listen(self._box, 0)]
        had = []
        for port in ports:
            try:
                self._used[port] = await self._opened(port)
            except RingfenceError:
                continue
            had.append(port)
        self._next = max(had, default=PROXY_PORTS.start - 1) + 1
        self.fill()
        return had

    async def take(self) -> Listener:
        """Of a new invocation. Conflict: there are MOST. RingfenceError."""
        if len(self._used) + len(self._opening) >= MOST:
            raise Conflict(
                f"{MOST} commands of this box run at once, as many as its worker can listen for",
                remedy="wait for one to end, or end some: ringfence box stop USER",
            )
        held = self._waiting() or await self._opened(self._port())
        held.hear()
        listener = held.listener
        self._used[listener.port] = held
        self._appeared(listener)
        self._wanted = min(READY, self._wanted + 1)
        self.fill()
        return listener

    def used(self, port: int) -> Listener:
        return self._used[port].listener

    def drop(self, port: int) -> None:
        """Who still tries it is refused from now on."""
        held = self._used.pop(port, None)
        if held is not None:
            self._keep(held, self._rested)

    def _keep(self, held: _Held, among: deque[_Held]) -> None:
        if len(self._fresh) + len(self._rested) < READY and held.deafen():
            among.append(held)
        else:
            held.sock.close()

    def _waiting(self) -> _Held | None:
        """Not one whose command has only just ended."""
        if self._fresh:
            return self._fresh.popleft()
        all_there_are = len(self._used) + len(self._rested) >= len(PROXY_PORTS)
        return self._rested.popleft() if self._rested and (all_there_are or len(self._rested) >= FIRST) else None

    def close(self) -> None:
        self._closed = True
        for held in (*self._fixed, *self._used.values(), *self._fresh, *self._rested):
            held.sock.close()
        self._fixed, self._used = [], {}
        self._fresh.clear()
        self._rested.clear()

    def fill(self) -> None:
        """Behind whoever needs one now."""
        if not self._filling and not self._closed and self._short():
            self._filling = True
            if self._chores.go(self._fill(), f"listeners of {self._box}") is None:
                self._filling = False

    async def _fill(self) -> None:
        try:
            while self._short() and not self._closed:
                self._keep(await self._opened(self._port()), self._fresh)
        except (RingfenceError, OSError):  # its box ends, all ports or descriptors are taken: who needs one is told
            pass
        finally:
            self._filling = False

    def _short(self) -> bool:
        waiting = len(self._fresh) + len(self._rested)
        return waiting + len(self._used) < self._wanted or (not self._fresh and waiting < FIRST)

    def _port(self) -> int:
        """The next that is nobody's."""
        taken = self._used.keys() | self._opening | {each.listener.port for each in (*self._fresh, *self._rested)}
        for _ in PROXY_PORTS:
            port = self._next
            self._next = port + 1 if port + 1 in PROXY_PORTS else PROXY_PORTS.start
            if port not in taken:
                return port
        raise AssertionError("of 922 there are at most MOST and READY taken, and one that is being opened for these")

    async def _opened(self, port: int) -> _Held:
        self._opening.add(port)
        try:
            [listener] = await self._outlets.listen(self._box, port)
        finally:
            self._opening.discard(port)
        if self._closed:
            os.close(listener.fd)
            raise Conflict("the box is being closed", remedy="try again")
        return _held(listener)
