"""Packets of the control socket, at both ends: one JSON object each, sent in order, read some at a time. No meaning here.

Who does not read is given up: a queue that is full ends the connection. Work is bounded by bytes and not by packets alone: one of
128 KiB costs as much as a hundred small ones. Must never block the event loop, nor lose a descriptor
that it was given to send or has received.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringfence.host.egress.control import MAX_PACKET

# Before other work of the loop gets its turn: 128 KiB of JSON are read in 2 ms.
_A_TURN, _A_TURN_BYTES = 64, 128 << 10
# Waiting to be sent: listeners and tickets of 922 invocations, the parts of a configuration, answers.
_MAX_QUEUE = 4096
MAX_WAITING = 2 << 20  # bytes of answers, which the far end causes: 23 of the largest values


class Malformed(Exception):
    """The far end said something that it may not. The text is constant: nothing of what it said."""


class Packets:
    """Takes `sock` over: SOCK_SEQPACKET. `heard`: each object with its descriptors, now the listener's; Malformed from it ends
    this. `closed` resolves with the reason. Made inside of a running loop; `fds`: descriptors that a packet may carry. `weighed`:
    told of the bytes of each packet before it is read; Malformed from it ends this."""

    def __init__(
        self,
        sock: socket.socket,
        heard: Callable[[Mapping[str, Any], Sequence[int]], None],
        *,
        fds: int = 0,
        weighed: Callable[[int], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock, self._heard, self._fds, self._weighed = sock, heard, fds, weighed
        self._out: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._waiting = 0  # bytes of it
        self.closed: asyncio.Future[str] = self._loop.create_future()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def send(self, body: Mapping[str, Any], fds: Sequence[int] = (), *, most: int | None = None) -> bool:
        """Descriptors are taken over. False: it has ended, or does now because the far end does not read. `most`: bytes that may
        wait with this one."""
        owned = tuple(fds)
        packet = json.dumps(body, separators=(",", ":")).encode()
        if len(packet) > MAX_PACKET:
            self.close("a packet that is too long")
        elif len(self._out) >= _MAX_QUEUE or (most is not None and self._waiting + len(packet) > most):
            self.close("the far end does not read")
        if self.closed.done():
            _close(owned)
            return False
        self._out.append((packet, owned))
        self._waiting += len(packet)
        if len(self._out) == 1:
            self._flush()
        return not self.closed.done()

    def close(self, why: str) -> None:
        """Idempotent; the first reason counts."""
        if self.closed.done():
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        while self._out:
            _close(self._out.popleft()[1])
        self._waiting = 0
        self.closed.set_result(why)

    def _flush(self) -> None:
        while self._out:
            packet, fds = self._out[0]
            try:
                if fds:
                    socket.send_fds(self._sock, [packet], list(fds), socket.MSG_NOSIGNAL)
                else:
                    self._sock.send(packet, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock, self._flush)
                return
            except OSError as error:
                self.close(f"the control socket cannot be written: {os.strerror(error.errno or 0)}")
                return
            self._out.popleft()
            self._waiting -= len(packet)
            _close(fds)
        self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        taken = 0
        for _ in range(_A_TURN):
            if self.closed.done() or taken >= _A_TURN_BYTES:
                return
            try:
                data, fds, flags, _ = socket.recv_fds(self._sock, MAX_PACKET + 1, self._fds)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(f"the control socket cannot be read: {os.strerror(error.errno or 0)}")
                return
            if not data:
                _close(fds)
                self.close("its end was closed")
                return
            taken += len(data)
            self._take(data, fds, flags)

    def _take(self, data: bytes, fds: Sequence[int], flags: int) -> None:
        for fd in fds:
            os.set_inheritable(fd, False)
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(data) > MAX_PACKET:
                raise Malformed("a packet that is too long")
            if self._weighed is not None:
                self._weighed(len(data))
            body = _object(data)
        except Malformed as error:
            _close(fds)
            self.close(f"{error}")
            return
        try:
            self._heard(body, fds)
        except Malformed as error:
            self.close(f"{error}")


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed("a packet that is no JSON") from None
    if not isinstance(body, dict):
        raise Malformed("a packet that is no object")
    return body


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
