"""The answer of a provider, out of its framing: head and body as they come over one connection.

A usual one is read by framing.py, any other by h11: interim answers, ends by the end of the connection, HTTP/1.0. Must never call a
connection good for another request that has more to say, or whose end was not seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import h11

from ringfence.host.models import framing
from ringfence.host.models.framing import MAX_HEAD, Chunks, Malformed
from ringfence.host.models.upstream_wire import Wire

# A model may think for minutes before its first byte; providers send comments meanwhile only in streams.
_READ_SECONDS = 600.0
_ASKED = h11.Request(
    method="POST", target="/", headers=[("host", "any")]
)  # all that h11 needs to know to read an answer


class BrokeOff(Exception):
    """The provider did, or speaks no HTTP, or says nothing for too long. Its text names no secret."""


async def _quiet() -> None:
    """Nothing waits to be sent."""


class Answer:
    """`headers`: by name in lower case, the first of each."""

    def __init__(self, wire: Wire) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._wire = wire
        self._came = b""  # and was not read yet
        self._left = 0  # of a counted body
        self._chunks: Chunks | None = None
        self._http: h11.Connection | None = None  # which frames it; None: it is usual

    async def begin(self) -> None:
        """The head. BrokeOff."""
        data = await self._read()
        head, end, rest = data.partition(framing.END)
        found = framing.reply(head) if end else None
        if found is None:
            await self._strange(data)
            return
        self.status, self.headers, self._came = found.status, found.headers, rest
        if found.length is None:
            self._chunks = Chunks()
        else:
            self._left = found.length

    async def pieces(self, waits: Callable[[], Awaitable[None]] = _quiet) -> AsyncIterator[bytes]:
        """The body as it comes, in one piece what one read brought. `waits`: before anything is waited for. BrokeOff."""
        if self._http is not None:
            async for piece in self._framed(self._http, waits):
                yield piece
            return
        while not self._ended:
            if not self._came:
                await waits()
                self._came = await self._read()
            if not self._came:
                raise BrokeOff("it ended within its answer")
            if piece := self._taken():
                yield piece

    @property
    def over(self) -> bool:
        """It was read to its end, nothing came behind it, and the provider keeps the connection."""
        if self._http is not None:
            return self._http.our_state is self._http.their_state is h11.DONE and not self._http.trailing_data[0]
        return self.status > 0 and self._ended and not self._came

    @property
    def _ended(self) -> bool:
        return not self._left if self._chunks is None else self._chunks.ended

    def _taken(self) -> bytes:
        """BrokeOff."""
        if self._chunks is None:
            piece, self._came = self._came[: self._left], self._came[self._left :]
            self._left -= len(piece)
            return piece
        try:
            piece = self._chunks.take(self._came)
        except Malformed as error:
            raise BrokeOff(f"{error}") from None
        self._came = self._chunks.behind
        return piece

    async def _read(self) -> bytes:
        """BrokeOff."""
        try:
            return await self._wire.read(_READ_SECONDS)
        except (OSError, TimeoutError) as error:
            raise BrokeOff(type(error).__name__) from error

    # --- by h11

    async def _strange(self, data: bytes) -> None:
        self._http = http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        http.send(_ASKED)
        http.send(h11.EndOfMessage())
        http.receive_data(data)
        head = await self._next(http)
        while isinstance(head, h11.InformationalResponse):
            head = await self._next(http)
        if not isinstance(head, h11.Response):
            raise BrokeOff("it ended without an answer")
        self.status = head.status_code
        for name, value in head.headers:
            self.headers.setdefault(name.decode("ascii"), value.decode("latin-1"))

    async def _framed(self, http: h11.Connection, waits: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(http, waits), h11.Data):
            yield bytes(event.data)

    async def _next(
        self, http: h11.Connection, waits: Callable[[], Awaitable[None]] = _quiet
    ) -> h11.Event | type[h11.PAUSED]:
        """BrokeOff."""
        try:
            while (event := http.next_event()) is h11.NEED_DATA:
                await waits()
                http.receive_data(await self._read())
        except h11.ProtocolError as error:
            raise BrokeOff(type(error).__name__) from error
        assert not isinstance(event, type) or event is h11.PAUSED
        return event
