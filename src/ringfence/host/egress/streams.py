"""Accepted sockets as streams: small buffers, and word at once when the box's end has left.

A TLS leg of asyncio allocates 256 KiB; 200 held tunnels would be 50 MB of buffers alone. Records are 16 KiB at most (RFC 8446
section 5.1), so that is what a read takes here, until more comes than that. A buffer must never stay large behind a long body.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from contextlib import suppress

_RECORD = 16 << 10
HIGH_WATER = 64 << 10  # bytes waiting to be written before the writer waits
READ = 64 << 10
# A read of a body that comes fast. Twice that takes a thirtieth less of processor time, and who stalls holds 1.7 MB in place of 1.1.
LONG = 128 << 10
AHEAD = LONG // 2 + _RECORD  # limit of a stream, which holds twice that: such a read behind a record that has begun
_SILENCE = 0.25  # a box sends over loopback: it has stopped


class SmallTls(SSLProtocol):
    """Its buffer is a record's, and grows to LONG while it is filled: a turn of the loop for every record would be most of what
    a long body costs. It is a record's again where less comes, and where the reader has enough: who stalls has no large one."""

    max_size = _RECORD
    _app_reading_paused: bool

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        size = len(self._ssl_buffer)
        if nbytes < _RECORD or self._app_reading_paused:
            if size > _RECORD:
                self._buffered(_RECORD)
        elif nbytes == size < LONG:
            self._buffered(min(LONG, 4 * size))

    def _buffered(self, size: int) -> None:
        self._ssl_buffer = bytearray(size)
        self._ssl_buffer_view = memoryview(self._ssl_buffer)


class _Leaving(asyncio.StreamReaderProtocol):
    """Calls `left` when the other end has closed its sending side or is gone: nobody waits for an answer any more."""

    def __init__(self, reader: asyncio.StreamReader, left: Callable[[], None]) -> None:
        super().__init__(reader)
        self._left = left
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        super().connection_made(transport)

    def eof_received(self) -> bool:
        self._left()
        return bool(super().eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
        super().connection_lost(exc)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def accepted(
    sock: socket.socket, left: Callable[[], None], context: ssl.SSLContext | None = None, *, seconds: float = 5.0
) -> Streams:
    """Takes the socket over: it is closed with the streams, also when this fails. With a context the TLS handshake is done
    when it returns, within `seconds`: OSError (ssl.SSLError, ConnectionError, TimeoutError) else."""
    loop = asyncio.get_running_loop()
    if (
        sock.family != socket.AF_UNIX
    ):  # asyncio does so only for sockets made with a protocol number: 40 ms a response else
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = asyncio.StreamReader(limit=AHEAD)
    protocol = _Leaving(reader, left)
    if context is None:
        await loop.connect_accepted_socket(lambda: protocol, sock)
    else:
        waiter = loop.create_future()
        tls = SmallTls(loop, protocol, context, waiter, True, ssl_shutdown_timeout=2)
        raw, _ = await loop.connect_accepted_socket(lambda: tls, sock)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException:
            raw.abort()
            raise
    if protocol.transport is None:
        raise ConnectionResetError("the connection ended in its handshake")
    protocol.transport.set_write_buffer_limits(high=HIGH_WATER)
    return reader, asyncio.StreamWriter(protocol.transport, protocol, reader, loop)


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends it so that the other end sees that it was cut. In TLS it sees that no end was said (RFC 8446 section 6.1); in clear an
    end is as good as any, and it takes a reset (SO_LINGER of 0 s), by which it loses what was on its way."""
    sock = writer.get_extra_info("socket")
    if writer.get_extra_info("ssl_object") is None and sock is not None and sock.fileno() >= 0:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    abort(writer)


def abort(writer: asyncio.StreamWriter) -> None:
    """At once, whatever is unsent. In TLS asyncio of Python 3.11.2 raises where the transport was closed twice, as nothing is left
    of it then."""
    with suppress(AttributeError):
        writer.transport.abort()


async def linger(reader: asyncio.StreamReader, seconds: float, most: int) -> None:
    """Reads and forgets what still comes: closing on unread bytes would reset the connection, and the last answer with it.
    Until the end, a moment of silence, `seconds` or `most` bytes."""
    try:
        async with asyncio.timeout(seconds):
            while most > 0:
                async with asyncio.timeout(_SILENCE):
                    data = await reader.read(READ)
                if not data:
                    return
                most -= len(data)
    except (TimeoutError, OSError):
        return
