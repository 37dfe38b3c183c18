"""One socket of a box: lines in, bytes out, with every bound that a hostile far end needs.

A protocol of the event loop, not a stream: no task for each connection and one write a turn. It reads with `recv`,
which takes no control messages, so that descriptors that a box sends are dropped by the kernel and never installed
here (threats D08). It must never hold more than its bound for a peer that does not read, nor wait for ever for the
rest of a frame.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from ringfence.host.broker.bounds import Bounds
from ringfence.wire.framing import LineBuffer, RemoteProtocolError

_HIGH_WATER = 1024 * 1024  # above it `room` makes its callers wait, so honest callers add at most one frame at a time
_FLUSH_BYTES = 64 * 1024  # gathered in one turn, and then written at once


class Sink(Protocol):
    """Who the lines are for."""

    def line(self, line: bytes) -> None:
        """RemoteProtocolError ends the channel."""

    def over(self, kind: str, reason: str) -> None:
        """Called once. `kind`: "" for an end that breaks no rule, otherwise as Violations.report."""


class Channel(asyncio.Protocol):
    def __init__(self, sink: Sink, loop: asyncio.AbstractEventLoop, bounds: Bounds) -> None:
        self._sink = sink
        self._bounds = bounds
        self._loop = loop
        self._lines = LineBuffer()
        self._transport: asyncio.Transport | None = None
        self._over = False
        self._parts: list[bytes] = []
        self._size = 0  # of the parts
        self._total = 0  # bytes ever handed to the transport
        self._write_timer: asyncio.TimerHandle | None = None
        self._frame_began: float | None = None
        self._frame_timer: asyncio.TimerHandle | None = None
        self._still = False  # the far end can neither read nor say anything
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._turn = asyncio.Lock()  # of those that wait for room

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._over

    def still(self, still: bool) -> None:
        """While the far end stands still nothing is overdue; what it has not done by then has its whole time from its end
        on."""
        self._still = still
        if still or self._over:
            return
        if self._frame_began is not None:
            self._frame_began = self._loop.time()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._watch_writes()

    # --- out -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Queues; leaves at the end of this turn. Ends the channel when the far end has left too much unread."""
        if self._over or not data:
            return
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= _FLUSH_BYTES:
            self.flush()

    async def room(self) -> None:
        """Waits while the far end is behind. In order: who waits first writes first, and the next one looks again."""
        if self._resumed.is_set() and not self._turn.locked():
            return
        async with self._turn:
            await self._resumed.wait()

    def finish(self) -> None:
        """Writes what the far end has room for and closes: an end that breaks no rule."""
        self.flush()
        if self._transport is not None and not self._over:
            if self._transport.get_write_buffer_size():  # it does not read, and nobody waits for it any more
                self._transport.abort()
            else:
                self._transport.close()
        self._end("", "closed by the host")

    def flush(self) -> None:
        """Writes what was queued, now."""
        if self._over or not self._parts or self._transport is None:
            return
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._size = [], 0
        self._total += len(data)
        self._transport.write(data)
        waiting = self._transport.get_write_buffer_size()
        if waiting > self._bounds.queue_bytes:
            self.abort("slow_reader", f"{waiting} bytes wait to be read; the limit is {self._bounds.queue_bytes}")
        elif waiting and self._write_timer is None:
            self._watch_writes()

    def _watch_writes(self) -> None:
        self._write_timer = self._loop.call_later(self._bounds.write_seconds, self._check_writes, self._total)

    def _check_writes(self, due: int) -> None:
        self._write_timer = None
        if self._over or self._transport is None:
            return
        waiting = self._transport.get_write_buffer_size()
        if self._total - waiting < due and not self._still:
            self.abort(
                "slow_reader",
                f"{due - self._total + waiting} bytes were not read within {self._bounds.write_seconds:g} s",
            )
        elif waiting:
            self._watch_writes()

    # --- in ------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        try:
            lines = self._lines.feed(data)
            for line in lines:
                if self._over:
                    return
                self._sink.line(line)
        except RemoteProtocolError as error:
            self.abort("protocol", str(error))
            return
        if not self._over:
            self._watch_frame(bool(lines))

    def _watch_frame(self, ended_one: bool) -> None:
        if self._lines.pending:
            if ended_one or self._frame_began is None:
                self._frame_began = self._loop.time()
            if self._frame_timer is None:
                self._frame_timer = self._loop.call_later(self._bounds.frame_seconds, self._check_frame)
        else:
            self._frame_began = None

    def _check_frame(self) -> None:
        self._frame_timer = None
        if self._over or self._frame_began is None:
            return
        began = self._loop.time() if self._still else self._frame_began
        left = began + self._bounds.frame_seconds - self._loop.time()
        if left <= 0:
            self.abort(
                "slow_frame",
                f"{self._lines.pending} bytes of a frame, and no end within {self._bounds.frame_seconds:g} s",
            )
        else:
            self._frame_timer = self._loop.call_later(left, self._check_frame)

    # --- the end -------------------------------------------------------------------------------------------------

    def abort(self, kind: str, reason: str) -> None:
        """Ends at once; what was queued is dropped."""
        if self._transport is not None and not self._over:
            self._transport.abort()
        self._end(kind, reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)

    def pause_writing(self) -> None:
        self._resumed.clear()

    def resume_writing(self) -> None:
        self._resumed.set()

    def eof_received(self) -> None:
        """Nobody half-closes this wire: its end is the end of both directions."""

    def connection_lost(self, error: Exception | None) -> None:
        try:
            self._lines.at_eof()
        except RemoteProtocolError as half:
            self._end("half_frame", str(half))
        else:
            self._end("", "the box closed the wire" if error is None else f"the wire broke: {error}")

    def _end(self, kind: str, reason: str) -> None:
        if self._over:
            return
        self._over = True
        self._parts = []
        for timer in (self._write_timer, self._frame_timer):
            if timer is not None:
                timer.cancel()
        self._write_timer = self._frame_timer = None
        self._resumed.set()
        self._sink.over(kind, reason)
