"""One connection of the gateway's HTTP/1.1: heads and bodies in, answers out, each piece as soon as it is there.

What comes here comes through an egress worker, from a box: hostile. h11 frames it; bounds are here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import h11

_READ = 64 * 1024
_MAX_HEAD = 64 * 1024
_MAX_AHEAD = 256 * 1024  # bytes of a next request that are taken while one is answered
BODY_SECONDS = 120.0  # for all of a body
Headers = Sequence[tuple[str, str]]


class Left(Exception):
    """The client is gone, or speaks no HTTP."""


class TooLong(Exception):
    """The body is longer than it may be."""


class Front:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self._begun = False  # the answer

    @property
    def begun(self) -> bool:
        return self._begun

    async def request(self) -> h11.Request | None:
        """The next head. None: there is none any more. Left."""
        event = await self._next()
        return event if isinstance(event, h11.Request) else None

    async def body(self, most: int) -> list[bytes]:
        """In pieces. TooLong; Left."""
        pieces: list[bytes] = []
        size = 0
        if self._http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            await self._drain()
        async with asyncio.timeout(BODY_SECONDS):
            while isinstance(event := await self._next(), h11.Data):
                size += len(event.data)
                if size > most:
                    raise TooLong
                pieces.append(bytes(event.data))
        return pieces

    async def head(self, status: int, headers: Headers) -> None:
        """Left. Whoever did not read the request to its end ends the connection, and says so."""
        self._begun = True
        close = [] if self._http.their_state is h11.DONE else [("connection", "close")]
        self._write(h11.Response(status_code=status, headers=[*headers, *close]))
        await self._drain()

    async def piece(self, data: bytes) -> None:
        """On the wire, as far as the client takes it. Left."""
        if data:
            self._write(h11.Data(data=data))
            await self._drain()

    async def end(self) -> None:
        """Left."""
        self._write(h11.EndOfMessage())
        await self._drain()

    async def whole(self, status: int, headers: Headers, data: bytes) -> None:
        """Left."""
        await self.head(status, [*headers, ("content-length", str(len(data)))])
        await self.piece(data)
        await self.end()

    def again(self) -> bool:
        """Whether the connection takes a next request."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._begun = False
        return True

    async def gone(self) -> None:
        """Returns when the client is. What it says meanwhile is kept for its next request. One that closes its own side
        and would still read (RFC 9112 9.6 lets it) counts as gone: from here it looks like one that is."""
        ahead = 0
        while ahead < _MAX_AHEAD:
            try:
                data = await self._reader.read(_READ)
            except OSError:
                return
            if not data:
                return
            ahead += len(data)
            self._http.receive_data(data)

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        """Left."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(_READ))
        except (h11.ProtocolError, OSError) as error:
            raise Left(str(error)) from None
        if isinstance(event, h11.ConnectionClosed):
            return event
        assert not isinstance(event, type) or event is h11.PAUSED
        return event

    def _write(self, event: h11.Event) -> None:
        try:
            data = self._http.send(event)
        except h11.LocalProtocolError as error:
            raise Left(str(error)) from None
        if data:
            self._writer.write(data)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            raise Left(str(error)) from None
