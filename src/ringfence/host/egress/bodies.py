"""Bodies of both legs: what came, as h11 frames it, in pieces as they come. One object for one message.

It must never give a byte of what follows the message, nor a trailer: those are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import h11

from ringfence.host.egress import chunks, client, framing, head, streams
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.head import ResponseHead
from ringfence.host.egress.limits import Rate
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.kernel.outward import placeholders

T = TypeVar("T")
SCANNED = 64 << 10
_HOLD_SECONDS = 1.0  # the start of a body is waited for that long, to be looked at before anything goes out
_JOINED = 256  # chunks in one piece; then the others have their turn: one of a byte takes 6 on the wire and 15 us here
_OVERLAP = 32  # of a stand-in's 33 characters of marker and random part


class Upload:
    """The body of a request. `more`: reads from the box."""

    def __init__(self, of: head.RequestHead, box: client.Client, cap: int) -> None:
        self._box = box
        self._cap = cap
        self._clock = asyncio.get_running_loop().time
        self._rate = Rate(box.bounds, self._clock)
        self._tail = b""
        self._sizes = chunks.Sizes() if of.one(b"transfer-encoding") is not None else None
        self._full = False
        self.taken = 0
        self.ended = not of.has_body
        self.reply = framing.Reply(of, box.bounds.head_bytes * 2)

    async def next(self) -> bytes:
        """b"": its end, what follows is back in the box's `pending`. Refusal: too large, too slow, malformed. Left. Cancelled, it
        has lost nothing: with bytes in hand it never waits."""
        if self._full:
            self._full = False
            await asyncio.sleep(0)
        pieces: list[bytes] = []
        while not self.ended and len(pieces) < _JOINED:
            event = framing.event(self.reply.heard)
            if isinstance(event, h11.Data):
                self.taken += len(event.data)
                if self.taken > self._cap:
                    raise Refusal(Code.TOO_LARGE, f"the body is larger than {self._cap} bytes", close=True)
                pieces.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self.ended = True
                self._box.pending[:0] = self.reply.behind
            elif event is h11.NEED_DATA:
                if pieces:
                    break
                await self._read()
            else:
                raise Refusal(Code.MALFORMED, "the body ended before its length", close=True)
        self._full = len(pieces) >= _JOINED
        return _joined(pieces)

    async def _read(self) -> None:
        since = self._clock()
        data = await self._box.more()
        if not data:
            raise client.Left
        self._rate.took(since, len(data))
        if self._sizes is not None:
            self._sizes.feed(data)
        self.reply.heard.receive_data(data)

    async def short(self) -> bool:
        """Whether the box, which sends no more, has ended it before its end."""
        try:
            while await self.next():
                pass
        except client.Left:
            return True
        except (Refusal, OSError):
            pass
        return False

    async def beginning(self) -> list[bytes]:
        """Up to SCANNED bytes, or what came in a second: read before the request goes anywhere."""
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(_HOLD_SECONDS):
                while self.taken < SCANNED and (data := await self.next()):
                    pieces.append(data)
        except TimeoutError:
            pass
        return pieces

    def scan(self, data: bytes, before: int) -> None:
        """`data` begins at byte `before` of the body. Refusal: a stand-in is in the first SCANNED bytes."""
        if before >= SCANNED:
            return
        window = self._tail + data[: SCANNED - before]
        if placeholders.find(window):
            raise Refusal(Code.MISPLACED, "a stand-in is in the body, and no credential is ever used there", close=True)
        self._tail = window[-_OVERLAP:]


class Download:
    """The response of an upstream to `question`. Errors: Refusal `upstream_failed`. `before_wait`: awaited whenever nothing more
    can be had without waiting."""

    def __init__(self, question: framing.Question, reader: asyncio.StreamReader, bounds: Bounds) -> None:
        self._question = question
        self._reader = reader
        self._bounds = bounds
        self._left: int | None = None  # of a counted body
        self._full = False
        self.pending = bytearray()
        self.ended = False
        self.before_wait: Callable[[], Awaitable[None]] | None = None

    async def head(self) -> ResponseHead:
        """The next one, of 1xx too."""
        if self.before_wait is not None and not self.pending:
            await self.before_wait()
        try:
            raw = await self._guarded(lambda: client.read_head(self._reader, self.pending, self._bounds))
            if raw is None:
                raise Refusal(Code.UPSTREAM, "it ended before its head did")
            read = head.response(raw, self._bounds)
            if read.status >= 200:
                self._begin(read)
        except Refusal as error:
            raise _malformed(error.message) from None
        return read

    def _begin(self, read: ResponseHead) -> None:
        self._left = self._question.counted(read)
        if self._left is None:
            self._question.asked.receive_data(read.raw)
            framing.event(self._question.asked)
        else:
            self.ended = self._left == 0

    async def next(self) -> bytes:
        """b"": its end. It is never cut short in silence."""
        if self.ended:
            return b""
        try:
            return await (self._framed() if self._left is None else self._counted(self._left))
        except framing.Unframed as error:
            raise _malformed(error.message) from None

    async def _counted(self, left: int) -> bytes:
        data = await self._more()
        if not data:
            raise framing.Unframed
        if len(data) > left:  # what is behind it stays, and ends the connection
            self.pending[:0] = data[left:]
            data = data[:left]
        self._left = left - len(data)
        self.ended = self._left == 0
        return data

    async def _framed(self) -> bytes:
        if self._full:
            self._full = False
            await asyncio.sleep(0)
        pieces: list[bytes] = []
        while not self.ended and len(pieces) < _JOINED:
            event = framing.event(self._question.asked)
            if isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
            elif event is h11.NEED_DATA:
                if pieces:
                    break
                self._question.asked.receive_data(await self._more())
            else:
                self.ended = True
        self._full = len(pieces) >= _JOINED
        return _joined(pieces)

    @property
    def whole(self) -> bool:
        """All of it came, nothing behind it, and the connection can carry another request."""
        return self.ended and not self.pending and (self._left is not None or self._question.over)

    async def _more(self) -> bytes:
        if self.pending:
            data = bytes(self.pending)
            self.pending.clear()
            return data
        if self.before_wait is not None:
            await self.before_wait()
        return await self._guarded(lambda: self._reader.read(streams.LONG))

    async def _guarded(self, read: Callable[[], Awaitable[T]]) -> T:
        try:
            return await read()
        except OSError:
            raise Refusal(Code.UPSTREAM, "the connection was lost") from None


def _joined(pieces: list[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _malformed(message: str) -> Refusal:
    return Refusal(Code.UPSTREAM, f"the server's answer cannot be used: {message}")
