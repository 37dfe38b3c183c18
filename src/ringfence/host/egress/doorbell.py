"""A box's listeners while no worker lives: the first that comes calls for one, and who comes while none can be had is refused.

Must never take a connection that a worker could serve, nor let one wait for a worker that does not come, nor touch a descriptor
that is not its box's any more: a number that was closed is soon another box's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from ringfence.host.kernel.outward.listeners import Listener

_AT_ONCE = 64  # connections that are refused before other work gets its turn


class Doorbell:
    def __init__(self, rung: Callable[[], None]) -> None:
        """`rung`: somebody is there. Not again until `arm`. The listeners stay their owner's, who takes each away, or closes
        this, before their sockets are closed."""
        self._loop = asyncio.get_running_loop()
        self._rung = rung
        self._listeners: dict[int, Listener] = {}  # by descriptor
        self._armed = self._closed = False

    def add(self, listener: Listener) -> None:
        if self._closed:
            return
        self._listeners[listener.fd] = listener
        if self._armed:
            self._loop.add_reader(listener.fd, self._ring)

    def remove(self, listener: Listener) -> None:
        """Before it is closed."""
        if self._listeners.pop(listener.fd, None) is not None and self._armed:
            self._loop.remove_reader(listener.fd)

    def arm(self) -> None:
        if not self._armed and not self._closed:
            self._armed = True
            for fd in self._listeners:
                self._loop.add_reader(fd, self._ring)

    def disarm(self) -> None:
        if self._armed:
            self._armed = False
            for fd in self._listeners:
                self._loop.remove_reader(fd)

    def close(self) -> None:
        """It knows no listener any more. Idempotent."""
        self.disarm()
        self._closed = True
        self._listeners.clear()

    def refuse(self) -> None:
        """Whoever waits now: connections end, questions are not answered. Needs no descriptor but for each connection; where
        there is none they wait on."""
        for listener in list(self._listeners.values()):
            sock = socket.socket(fileno=listener.fd)
            try:
                _refused(sock, listener.kind == "dns_udp")
            finally:
                sock.detach()

    def _ring(self) -> None:
        self.disarm()
        self._rung()


def _refused(sock: socket.socket, datagrams: bool) -> None:
    for _ in range(_AT_ONCE):
        try:
            if datagrams:
                sock.recv(1)
            else:
                sock.accept()[0].close()
        except OSError:
            return
