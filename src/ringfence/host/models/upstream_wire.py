"""One connection to a provider, as bytes: read as they come, written as they are taken, kept between answers.

What comes while nothing was asked is no answer to anybody: the connection has ended then (RFC 9112 9.2: an answer
belongs to the request before it). Must never give such bytes to the next request.
"""

from __future__ import annotations

import asyncio
from collections import deque

_MOST = 256 * 1024  # bytes that wait to be read; more stay in the socket


class Wire(asyncio.Protocol):
    """`idle`: nothing was asked. `among`: holds it while its socket is open. One reader at a time."""

    def __init__(self, among: set[Wire]) -> None:
        self.idle = False
        self._among = among
        self.gone = asyncio.Event()  # its socket is closed
        self._transport: asyncio.Transport | None = None
        self._data: deque[bytes] = deque()
        self._size = 0
        self._ended = False  # nothing more comes
        self._lost = False  # nor goes
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None  # while its buffer is full

    # --- whoever uses it ---------------------------------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @transport.setter
    def transport(self, transport: asyncio.Transport) -> None:
        """After TLS was begun on it."""
        self._transport = transport

    @property
    def usable(self) -> bool:
        """For a next request."""
        return not (self._ended or self._data or self.transport.is_closing())

    async def read(self, seconds: float) -> bytes:
        """What is there; b"": it has ended. TimeoutError: nothing has come for so long. OSError."""
        if not self._data and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(seconds):
                    await self._reader
            finally:
                self._reader = None
        if not self._data:
            if self._error is not None:
                raise _broken(self._error)
            return b""
        data = self._data[0] if len(self._data) == 1 else b"".join(self._data)
        self._data.clear()
        if self._size > _MOST and not self._lost:
            self.transport.resume_reading()
        self._size = 0
        return data

    async def write(self, data: bytes | memoryview, seconds: float) -> None:
        """Returns when there is room for more. TimeoutError. OSError."""
        if self._ended:  # who closes one side here has heard enough
            raise _broken(self._error)
        self.transport.write(data)
        if self._writable is not None:
            async with asyncio.timeout(seconds):
                await self._writable

    def abort(self) -> None:
        """Idempotent. One that asyncio has closed to its end, with a full buffer, cannot be aborted."""
        if self._transport is not None and not self._lost:
            self._transport.abort()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._among.add(self)

    def data_received(self, data: bytes) -> None:
        if self.idle:
            self._ended = True
            self.abort()
            return
        self._data.append(data)
        self._size += len(data)
        if self._size > _MOST:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = self._lost = True
        self._among.discard(self)
        self.gone.set()
        self._error = error
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _broken(error: Exception | None) -> OSError:
    return error if isinstance(error, OSError) else ConnectionResetError(str(error or "the connection has ended"))
