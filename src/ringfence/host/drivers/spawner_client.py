"""The kernel's end of the spawner's socket: requests out, replies in, matched by id.

One packet is one JSON object (`ringfence.spawner.protocol`). File descriptors are taken only with the reply to a
request that announces them (`files`, `worker`: one; `listen`: as many as its reply names kinds); whatever else arrives is closed at once and ends the client, for the far
end is then no spawner of ours. The end of the socket ends every waiter exactly once; it must never end a waiter twice,
lose a descriptor of a caller that has gone, or block the event loop.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ringfence.host.kernel.errors import (
    Conflict,
    DiskFull,
    Failed,
    NotFound,
    Refused,
    RingfenceError,
    Unavailable,
)
from ringfence.spawner import protocol

_ERRORS: dict[str, type[RingfenceError]] = {
    "bad_request": Failed,  # we said something that the spawner does not know: ours to mend
    "not_found": NotFound,
    "refused": Refused,
    "busy": Conflict,
    "no_space": DiskFull,
    "unavailable": Unavailable,
    "failed": Failed,
}
_FDS = {
    each.op: 1 for each in (protocol.Files, protocol.Worker, protocol.Pack, protocol.Unpack)
}  # operation -> descriptors that come with its reply
_MAX_FDS = 8  # room for more than any reply carries, so that surplus ones are seen, and closed, rather than truncated
_PACKETS_A_TURN = 64  # read before other work of the event loop gets its turn
_MAX_WAITING = 1024  # requests without a reply; the engine asks at most a few for each box


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply: its object, and the descriptors that came with it, now the caller's."""

    body: dict[str, Any]
    fds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Waiter:
    op: str
    future: asyncio.Future[Answer]


class SpawnerClient:
    """Takes the descriptor of a connected SOCK_SEQPACKET socket over. Made inside a running event loop."""

    def __init__(self, sock_fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = socket.socket(fileno=sock_fd)
        self._sock.setblocking(False)
        self._sock.set_inheritable(False)  # it came over an exec; no child of ours may hold it
        self._next = 0
        self._waiting: dict[int, _Waiter] = {}
        self._out: deque[bytes] = deque()
        self.closed: asyncio.Future[str] = self._loop.create_future()
        """Resolves with the reason once the socket has ended. The server ends then."""
        self._loop.add_reader(self._sock, self._readable)

    async def ask(self, request: protocol.Request) -> Answer:
        """The reply. Errors of `kernel.errors` by the spawner's code, with its remedy; Unavailable once the socket has
        ended. A caller that is cancelled leaves the request under way; descriptors of its reply are closed."""
        if self.closed.done():
            raise _ended(self.closed.result())
        if len(self._waiting) >= _MAX_WAITING:
            raise Unavailable(f"{_MAX_WAITING} requests to the spawner wait for their replies, the limit")
        self._next += 1
        number = self._next
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[number] = _Waiter(request.op, future)
        self._send(protocol.encode_request(number, request))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                _close(future.result().fds)  # the reply came in the very turn in which the caller was cancelled
            raise

    def close(self, reason: str = "closed by the server") -> None:
        """Ends the socket and every waiter. Idempotent."""
        if self.closed.done():
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._out.clear()
        self.closed.set_result(reason)
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            if not waiter.future.done():
                waiter.future.set_exception(_ended(reason))

    # --- out -----------------------------------------------------------------------------------------------------

    def _send(self, packet: bytes) -> None:
        self._out.append(packet)
        if len(self._out) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._out:
            try:
                self._sock.send(self._out[0], socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock, self._flush)
                return
            except OSError as error:
                self.close(f"the spawner's socket cannot be written: {os.strerror(error.errno or 0)}")
                return
            self._out.popleft()
        self._loop.remove_writer(self._sock)

    # --- in ------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        for _ in range(_PACKETS_A_TURN):
            if self.closed.done():
                return
            try:
                packet, fds, flags = self._receive()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(f"the spawner's socket cannot be read: {os.strerror(error.errno or 0)}")
                return
            if not packet:  # the protocol has no empty packet
                _close(fds)
                self.close("the spawner has ended")
                return
            self._packet(packet, fds, flags)

    def _receive(self) -> tuple[bytes, tuple[int, ...], int]:
        space = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
        how = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        packet, ancillary, flags, _ = self._sock.recvmsg(protocol.MAX_PACKET + 1, space, how)
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        return packet, tuple(fds), flags

    def _packet(self, packet: bytes, fds: tuple[int, ...], flags: int) -> None:
        number, reply = _parse(packet)
        waiter = self._waiting.pop(number, None)
        announced = _announced(waiter.op, reply["ok"]) if waiter is not None and "ok" in reply else 0
        truncated = flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC)
        if waiter is None or truncated or len(fds) != announced:
            _close(fds)
            if waiter is not None and not waiter.future.done():
                waiter.future.set_exception(Failed(f"the spawner's reply to {waiter.op} is malformed"))
            self.close("the spawner sent what is no reply of its protocol")
        elif waiter.future.done():  # its caller was cancelled
            _close(fds)
        elif "ok" in reply:
            waiter.future.set_result(Answer(reply["ok"], fds))
        else:
            waiter.future.set_exception(_error(waiter.op, reply["error"]))


def _announced(op: str, body: dict[str, Any]) -> int:
    """How many descriptors come with that reply."""
    if op != protocol.Listen.op:
        return _FDS.get(op, 0)
    kinds = body.get("kinds")
    return len(kinds) if isinstance(kinds, list) else -1  # -1: whatever came, it is no reply


def _parse(packet: bytes) -> tuple[int, dict[str, Any]]:
    """(id, the reply with either "ok" or "error", an object); id -1 for what is no reply."""
    try:
        reply = json.loads(packet)
    except (ValueError, RecursionError):
        return -1, {}
    if not isinstance(reply, dict) or type(reply.get("id")) is not int:
        return -1, {}
    parts = [part for part in ("ok", "error") if part in reply]
    if len(parts) != 1 or not isinstance(reply[parts[0]], dict):
        return -1, {}
    return reply["id"], reply


def _error(op: str, body: dict[str, Any]) -> RingfenceError:
    kind = _ERRORS.get(str(body.get("code")), Failed)
    message = str(body.get("message", "")) or f"{op} failed without a word"
    error = kind(message, remedy=str(body.get("remedy", "")), operation=op)
    error.of_host = str(body.get("of_host", ""))
    return error


def _ended(reason: str) -> Unavailable:
    return Unavailable(f"no spawner: {reason}", remedy="ringfence serve")


def _close(fds: tuple[int, ...]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
