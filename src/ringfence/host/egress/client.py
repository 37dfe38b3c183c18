"""One connection from the box once its bytes can be read: heads, what is left behind them, answers, its end.

A box that has left (closed its sending side, or gone) ends the exchange it waited for at once: no upstream works for nobody.
It must never read past the message that is being handled: what follows waits in `pending` for its own judgement.
"""

from __future__ import annotations

import asyncio

from ringfence.host.egress import head, streams
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.refusals import Refusal, Where, response

_LINGER_SECONDS = 2.0
_LINGER_BYTES = 4 << 20  # a push of 4 MiB in flight still gets to read why it was refused


class Left(ConnectionError):
    """The box closed the connection."""


class Client:
    """`begin()` ... `end()` stand around the time in which its leaving cancels the task that serves it."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.pending = bytearray()
        self.left = False
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._parted = False

    def attach(self, opened: streams.Streams, pending: bytes = b"") -> None:
        self._reader, self._writer = opened
        self.pending += pending

    def gone(self) -> None:
        """Given to `streams.accepted`."""
        if not self.left and self._task is not None:
            self._task.cancel()
        self.left = True

    def begin(self) -> None:
        """Raises Left when it has gone already."""
        if self.left:
            raise Left
        self._task = asyncio.current_task()

    def end(self) -> None:
        self._task = None

    @property
    def attached(self) -> bool:
        return self._writer is not None

    @property
    def reader(self) -> asyncio.StreamReader:
        assert self._reader is not None
        return self._reader

    @property
    def writer(self) -> asyncio.StreamWriter:
        assert self._writer is not None
        return self._writer

    async def more(self) -> bytes:
        """b"": the end. Taken from `pending` first."""
        if self.pending:
            data = bytes(self.pending)
            self.pending.clear()
            return data
        return await self.reader.read(streams.LONG)

    async def waited(self) -> bool:
        """Until the first byte of a head is there. False: the end came instead."""
        if not self.pending:
            self.pending += await self.reader.read(streams.READ)
        return bool(self.pending)

    async def head(self) -> head.RequestHead:
        """Refusal: not one. Left: it ended inside of it."""
        raw = await read_head(self.reader, self.pending, self.bounds)
        if raw is None:
            raise Left
        return head.request(raw, self.bounds)

    async def write(self, data: bytes) -> None:
        if data:
            self.writer.write(data)
            await self.writer.drain()

    async def refuse(self, refusal: Refusal, where: Where, *, close: bool) -> None:
        await self.write(response(refusal, where, close=close, bodyless=where.method == "HEAD"))

    @property
    def listens(self) -> bool:
        """Whether it has closed its sending side alone, so that it can be told why it gets nothing: TLS of asyncio ends whole."""
        return self.left and not self.reader.exception() and self.writer.can_write_eof()

    def part(self, refusal: Refusal, where: Where) -> None:
        """The last word to one that sends no more. It is on its way when this returns, and no `cut` takes it back."""
        self.writer.write(response(refusal, where, close=True, bodyless=where.method == "HEAD"))
        self.writer.close()
        self._parted = True

    async def close(self, *, linger: bool) -> None:
        """`linger`: something was answered that must arrive though unread bytes are still coming."""
        if self._writer is None:
            return
        if linger and not self.left:
            if self._writer.can_write_eof():
                self._writer.write_eof()
            await streams.linger(self.reader, _LINGER_SECONDS, _LINGER_BYTES)
        self._writer.close()

    def cut(self) -> None:
        """With a reset: whoever was reading sees that it is not complete."""
        if self._writer is not None and not self._parted:
            streams.reset(self._writer)


async def read_head(reader: asyncio.StreamReader, pending: bytearray, bounds: Bounds) -> bytes | None:
    """The next head of the stream, with its end; what follows it stays in `pending`. None: the stream ended before.
    Refusal: it is seen to be none, or too long, before its end."""
    sought = 0
    while (at := pending.find(head.END, sought)) < 0:
        head.early(pending, bounds, sought)
        sought = max(0, len(pending) - 3)
        data = await reader.read(streams.READ)
        if not data:
            return None
        pending += data
    end = at + len(head.END)
    raw = bytes(pending[:end])
    del pending[:end]
    return raw
