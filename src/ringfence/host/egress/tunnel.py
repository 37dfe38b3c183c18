"""Bytes both ways, opaque, up to a cap each: what a WebSocket and a passed-through connection become.

What one end has said before it closed arrives at the other. At a cap both ends are cut with a reset: no silent truncation. It
must never read what it carries, but for the change that its caller gives it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ringfence.host.egress import streams
from ringfence.host.egress.limits import Deadline

# Seconds without a byte once one end has said its last: the other may answer still, and who takes 64 KiB (streams.HIGH_WATER)
# slower than 2 KiB a second is as good as gone.
_AFTER = 30.0
_GOODBYE = 5.0  # of TLS, whose close waits for the other's


class Change(Protocol):
    """Of what the server says. OSError: it may not be said, and both ends are closed."""

    def feed(self, data: bytes) -> bytes:
        """What may go on now."""

    def end(self) -> bytes:
        """The rest: nothing follows."""


@dataclass(slots=True)
class End:
    """One end; `ahead`: what was read of it already. `moved`: bytes that came from it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    cap: int
    ahead: bytes = b""
    moved: int = 0


async def splice(box: End, server: End, deadline: Deadline, quiet: float, change: Change | None = None) -> bool:
    """Until both ends have closed, one has failed, `quiet` seconds pass without a byte, or a cap is met (False)."""
    return await _Splice(deadline, quiet).run(box, server, change)


class _Splice:
    def __init__(self, deadline: Deadline, quiet: float) -> None:
        self._deadline, self._quiet = deadline, quiet
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, box: End, server: End, change: Change | None) -> bool:
        self._waited()
        async with asyncio.TaskGroup() as group:
            self._tasks.append(group.create_task(self._carried(box, server, None)))
            self._tasks.append(group.create_task(self._carried(server, box, change)))
        whole = box.moved <= box.cap and server.moved <= server.cap
        if not whole:
            streams.reset(box.writer)
            streams.reset(server.writer)
        return whole

    async def _carried(self, source: End, sink: End, change: Change | None) -> None:
        try:
            if await self._all(source, sink, change):
                self._quiet = min(self._quiet, _AFTER)
                self._waited()
                await _closed(sink.writer)
                return
        except OSError:
            pass
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _all(self, source: End, sink: End, change: Change | None) -> bool:
        """Whether it came to its end, and not to its cap."""
        data = source.ahead or await source.reader.read(streams.READ)
        while data:
            source.moved += len(data)
            if source.moved > source.cap:
                return False
            self._waited()
            sink.writer.write(change.feed(data) if change is not None else data)
            await sink.writer.drain()
            data = await source.reader.read(streams.READ)
        if change is not None:
            sink.writer.write(change.end())
        return True

    def _waited(self) -> None:
        self._deadline.within(self._quiet, "server")


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Nothing more is written to it, and all that was is on its way. TLS cannot be closed by halves: it is whole."""
    await asyncio.sleep(0)  # TLS tells its stream of a loss a turn later than it knows of it itself
    await writer.drain()
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
        return
    writer.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_GOODBYE):
            await writer.wait_closed()
