"""One connection of the gateway's HTTP/1.1: heads and bodies in, answers out, each piece as soon as it is there.

What comes here comes through an egress worker, from a box: hostile. A usual request and its answer are framed by framing.py, any
other by h11; bounds are here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import h11

from ringfence.host.models import framing
from ringfence.host.models.framing import MAX_HEAD, Request

_READ = 64 * 1024
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
        self._came = b""  # and was not read yet: of the body, then of a next request
        self._out: list[bytes] = []  # to be sent before anything is waited for
        self._http: h11.Connection | None = None  # which frames this request; None: it is usual
        self._left = 0  # of a usual body
        self._answer: int | None = None  # bytes that a usual answer still has; None: it goes in chunks
        self._bodiless = False  # it answers HEAD
        self._said: tuple[int, Headers] | None = None  # head of the answer, as long as another can take its place
        self._begun = self._over = False  # the answer

    @property
    def begun(self) -> bool:
        """Something of an answer is on its way, so that no other can be given."""
        return self._begun

    async def request(self) -> Request | None:
        """The next head. None: there is none any more. Left."""
        data = self._came or await self._read()
        head, end, self._came = data.partition(framing.END)
        found = framing.request(head) if end else None
        if found is not None:
            self._http, self._left, self._bodiless = None, found.length, False
            return found
        self._came, self._left, self._http = b"", 0, h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._http.receive_data(data)
        event = await self._next(self._http)
        self._bodiless = isinstance(event, h11.Request) and event.method == b"HEAD"
        return _read(event) if isinstance(event, h11.Request) else None

    async def body(self, most: int) -> list[bytes]:
        """In pieces. TooLong; Left."""
        if self._http is None and self._left <= min(most, len(self._came)):  # most come with their heads
            return [self._taken()] if self._left else []
        pieces: list[bytes] = []
        size = 0
        if self._left > most:
            raise TooLong
        await self._expected()
        async with asyncio.timeout(BODY_SECONDS):
            while piece := await self._piece():
                size += len(piece)
                if size > most:
                    raise TooLong
                pieces.append(piece)
        return pieces

    async def _expected(self) -> None:
        if self._http is not None and self._http.they_are_waiting_for_100_continue:
            self._framed(self._http, h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            await self.flush()

    async def _piece(self) -> bytes:
        """b"": the end of the body. Left."""
        if self._http is not None:
            event = await self._next(self._http)
            return bytes(event.data) if isinstance(event, h11.Data) else b""
        if not self._left:
            return b""
        self._came = self._came or await self._read()
        if not self._came:
            raise Left("the body ended before its length")
        return self._taken()

    def _taken(self) -> bytes:
        piece, self._came = self._came[: self._left], self._came[self._left :]
        self._left -= len(piece)
        return piece

    async def head(self, status: int, headers: Headers) -> None:
        """Goes with what comes next, at the latest by `flush`; until then another may take its place."""
        self._said = status, headers

    def _begin(self) -> None:
        """The head of the answer, once. Left. Whoever did not read the request to its end ends the connection, and says so."""
        if self._said is None:
            return
        (status, headers), self._said, self._begun = self._said, None, True
        close = [] if self._heard else [("connection", "close")]
        if self._http is not None:
            self._framed(self._http, h11.Response(status_code=status, headers=[*headers, *close]))
            return
        length = next((int(value) for name, value in headers if name == "content-length"), None)
        self._answer = length
        chunked = [("transfer-encoding", "chunked")] if length is None else []
        try:
            self._out.append(framing.written(b"HTTP/1.1 %d " % status, [*headers, *close, *chunked]))
        except ValueError as error:
            raise Left(str(error)) from None

    async def piece(self, data: bytes) -> None:
        """On the wire, as far as the client takes it. Left."""
        if data:
            self._data(data)
            await self.flush()

    async def end(self) -> None:
        """Left."""
        self._begin()
        if self._http is not None:
            self._framed(self._http, h11.EndOfMessage())
        elif self._answer is None:
            self._out.append(framing.LAST_CHUNK)
        elif self._answer:
            raise Left("less of an answer than its length")
        self._over = True
        await self.flush()

    async def whole(self, status: int, headers: Headers, data: bytes) -> None:
        """Left."""
        await self.head(status, [*headers, ("content-length", str(len(data)))])
        if data and not self._bodiless:
            self._data(data)
        await self.end()

    async def flush(self) -> None:
        """Left."""
        self._begin()
        if self._out:
            self._writer.write(b"".join(self._out))
            self._out.clear()
        try:
            await self._writer.drain()
        except OSError as error:
            raise Left(str(error)) from None

    def again(self) -> bool:
        """Whether the connection takes a next request."""
        http, self._http = self._http, None
        whole = self._over and not self._left
        if http is not None:
            whole = http.our_state is http.their_state is h11.DONE
            self._came = http.trailing_data[0] + self._came
        self._said, self._begun, self._over = None, False, False
        return whole

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
            self._came += data

    @property
    def _heard(self) -> bool:
        """The request to its end."""
        return not self._left if self._http is None else self._http.their_state is h11.DONE

    def _data(self, data: bytes) -> None:
        self._begin()
        if self._http is not None:
            self._framed(self._http, h11.Data(data=data))
        elif self._answer is None:
            self._out.append(framing.chunk(data))
        elif len(data) > self._answer:
            raise Left("more of an answer than its length")
        else:
            self._answer -= len(data)
            self._out.append(data)

    async def _next(self, http: h11.Connection) -> h11.Event | type[h11.PAUSED]:
        """Left."""
        try:
            while (event := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await self._read())
        except h11.ProtocolError as error:
            raise Left(str(error)) from None
        if isinstance(event, h11.ConnectionClosed):
            return event
        assert not isinstance(event, type) or event is h11.PAUSED
        return event

    async def _read(self) -> bytes:
        """Left."""
        try:
            return await self._reader.read(_READ)
        except OSError as error:
            raise Left(str(error)) from None

    def _framed(self, http: h11.Connection, event: h11.Event) -> None:
        try:
            data = http.send(event)
        except h11.LocalProtocolError as error:
            raise Left(str(error)) from None
        if data:
            self._out.append(data)


def _read(request: h11.Request) -> Request:
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
    return Request(request.method.decode("ascii", "replace"), request.target, headers)
