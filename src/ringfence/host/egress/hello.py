"""The ClientHello of a connection, looked at and left where it is: which name it is for, and whether it hides one.

Whoever sends it is hostile. Lengths are checked before they are believed; what does not add up is Malformed. It must never take
a byte off the socket, wait by asking again and again, nor read a name otherwise than `authority.py` does.

Sources: RFC 8446 4.1.2 and 5.1, RFC 6066 3 (server_name), RFC 7301 (ALPN), RFC 9849 (encrypted_client_hello).
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass

from ringfence.host.egress.arrivals import readable
from ringfence.host.kernel.outward import authority

SECONDS = 5.0  # Bounds.hello
MOST = 17 << 10  # bytes looked at: one record of 16 KiB and the headers of a few small ones. Hellos have 0.3 to 2 KiB

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_RECORD_HEADER, _MESSAGE_HEADER = 5, 4
_RECORD_MOST = 16 << 10
_SERVER_NAME, _ALPN = 0, 16
_HOST_NAME = 0
# encrypted_client_hello and its drafts; encrypted_server_name before it. The outer name of such a hello is not what it is for.
_HIDING = frozenset({0xFE0D, 0xFE0C, 0xFE0B, 0xFE0A, 0xFE09, 0xFE08, 0xFF02, 0xFF03, 0xFFCE})


class Malformed(ValueError):
    """No ClientHello, or not one that can be read in one way only. The text is constant."""


@dataclass(frozen=True, slots=True)
class Hello:
    """`name`: of SNI, canonical, None without one. `ech`: it hides something. `alpn`: in the client's order."""

    name: str | None
    ech: bool
    alpn: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Short:
    """`need`: bytes from the start without which nothing more can be said."""

    need: int


async def peek(sock: socket.socket, seconds: float = SECONDS) -> Hello:
    """Of a non-blocking TCP socket. Malformed; TimeoutError; ConnectionError: it ended before.

    A socket with unread bytes is always ready; by SO_RCVLOWAT the kernel says so only when what is missing has come."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            need = _RECORD_HEADER
            while True:
                data = _looked(sock)
                if len(data) >= need:
                    found = parse(data)
                    if isinstance(found, Hello):
                        return found
                    need = found.need
                await _more(loop, sock, need, len(data))
    finally:
        with suppress(OSError):  # it was closed meanwhile
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _looked(sock: socket.socket) -> bytes:
    try:
        return sock.recv(MOST, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


async def _more(loop: asyncio.AbstractEventLoop, sock: socket.socket, need: int, have: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, need)
    await readable(sock)
    if len(_looked(sock)) <= have:  # woken by the end, not by bytes
        raise ConnectionResetError("the connection ended in its ClientHello")


def parse(data: bytes) -> Hello | Short:
    """What begins a connection. Malformed."""
    message = bytearray()
    at = 0
    while True:
        if at + _RECORD_HEADER > len(data):
            return _short(at + _RECORD_HEADER)
        size = _record(data, at)
        end = at + _RECORD_HEADER + size
        message += data[at + _RECORD_HEADER : end]
        wanted = _wanted(message)
        if wanted is not None and len(message) >= wanted:
            return _hello(_Reader(bytes(message[_MESSAGE_HEADER:wanted])))
        if end > len(data):
            return _short(end)
        at = end


def _short(need: int) -> Short:
    if need > MOST:
        raise Malformed("the ClientHello is too long")
    return Short(need)


def _record(data: bytes, at: int) -> int:
    """The length of a record's fragment. RFC 8446 5.1: of a handshake never empty."""
    if data[at] != _HANDSHAKE or data[at + 1] != 3:
        raise Malformed("not a TLS handshake")
    size = int.from_bytes(data[at + 3 : at + 5], "big")
    if not 0 < size <= _RECORD_MOST:
        raise Malformed("a record of no possible length")
    return size


def _wanted(message: bytearray) -> int | None:
    """Length of the message with its header, once that is there."""
    if message and message[0] != _CLIENT_HELLO:
        raise Malformed("not a ClientHello")
    if len(message) < _MESSAGE_HEADER:
        return None
    wanted = _MESSAGE_HEADER + int.from_bytes(message[1:4], "big")
    if wanted > MOST:
        raise Malformed("the ClientHello is too long")
    return wanted


class _Reader:
    """Vectors of a message, each inside of its own bounds."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise Malformed("a length runs over its end")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, octets: int) -> int:
        return int.from_bytes(self.take(octets), "big")

    def vector(self, octets: int) -> bytes:
        """With its length before it."""
        return self.take(self.number(octets))

    def done(self) -> None:
        if self.left:
            raise Malformed("bytes behind the end")


def _hello(message: _Reader) -> Hello:
    message.take(2 + 32)  # legacy_version, random
    message.vector(1)  # legacy_session_id
    message.vector(2)  # cipher_suites
    message.vector(1)  # legacy_compression_methods
    found = _extensions(_Reader(message.vector(2))) if message.left else {}
    message.done()
    name = _name(found[_SERVER_NAME]) if _SERVER_NAME in found else None
    alpn = _protocols(found[_ALPN]) if _ALPN in found else ()
    return Hello(name, not _HIDING.isdisjoint(found), alpn)


def _extensions(block: _Reader) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while block.left:
        kind = block.number(2)
        if kind in found:
            raise Malformed("an extension stands twice")
        found[kind] = block.vector(2)
    return found


def _name(extension: bytes) -> str:
    outer = _Reader(extension)
    names = _Reader(outer.vector(2))
    outer.done()
    if names.number(1) != _HOST_NAME:
        raise Malformed("SNI names something other than a host")
    raw = names.vector(2)
    names.done()  # a second name: which of both would be meant?
    try:
        host = authority.host(raw)
    except authority.Malformed as error:
        raise Malformed(f"SNI: {error.reason}") from None
    if authority.literal(host) is not None:  # RFC 6066 3
        raise Malformed("SNI names an address")
    return host


def _protocols(extension: bytes) -> tuple[str, ...]:
    outer = _Reader(extension)
    names, found = _Reader(outer.vector(2)), []
    outer.done()
    while names.left:
        found.append(names.vector(1).decode("latin-1"))
    return tuple(found)
