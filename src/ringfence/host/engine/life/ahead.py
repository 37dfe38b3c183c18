"""A stream that is made by a task of its own, a little ahead of who takes it: what is held for it is let go of when its making is
over, whatever its reader does.

A reader may be slow, but not for ever: one that takes no part for `stall` seconds, or fewer than `least` bytes a second in the long run,
has gone. The making is never cancelled for that: whoever streams may be cancelled again and again, and a box would be left as it
stands. It must never wait for anybody once its reader has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext

from ringfence.host.engine.crew import Crew
from ringfence.host.kernel.errors import Failed, RingfenceError, Unavailable

PARTS = 2  # that are made before somebody takes them: 8 MiB of a backup
STALL_SECONDS = 60.0
LEAST = 512 << 10  # bytes a second, where a box stands still for it: for a tree of a GiB 35 minutes at the most


class Gone(Exception):
    """Nobody takes the bytes any more."""


class Ahead:
    """Of one stream. `left`: its reader has gone, for what is waited for meanwhile."""

    def __init__(
        self, crew: Crew, what: str, *, parts: int = PARTS, stall: float = STALL_SECONDS, least: int = 0
    ) -> None:
        """`least` 0: only whether anything is taken counts."""
        self._crew, self._what, self._stall, self._least = crew, what, stall, least
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(parts)
        self._waited, self._size = 0.0, 0  # seconds for room so far; bytes
        self.left = asyncio.Event()

    async def of(
        self, parts: AsyncGenerator[bytes, None], within: AbstractAsyncContextManager[object] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The same parts; once. `within`: entered by who makes them, and left when that is over. Failed: they were not taken; `parts` has
        that thrown into it, and what it yields then is the last."""
        made = self._crew.begin(self._make(parts, within or nullcontext()), self._what)
        made.add_done_callback(self._over)
        try:
            while (part := await self._queue.get()) is not None:
                if isinstance(part, Exception):
                    raise part
                self._room.release()
                yield part
        finally:
            self.left.set()
            self._room.release()

    def _over(self, made: asyncio.Future[None]) -> None:
        stopping = Unavailable("the server is stopping", remedy="try again in a moment")
        error = stopping if made.cancelled() else made.exception()
        if isinstance(error, Exception) and not isinstance(error, (RingfenceError, Gone)):
            logging.getLogger("ringfence.engine").error("%s ended by an error", self._what, exc_info=error)
        self._queue.put_nowait(error if isinstance(error, Exception) else None)

    async def _make(self, parts: AsyncGenerator[bytes, None], within: AbstractAsyncContextManager[object]) -> None:
        async with within, aclosing(parts):
            async for part in parts:
                try:
                    await self._put(part)
                except Failed as error:
                    self._queue.put_nowait(await parts.athrow(error))
                    raise

    async def _put(self, part: bytes) -> None:
        loop = asyncio.get_running_loop()
        began, patience = loop.time(), self._patience()
        try:
            async with asyncio.timeout(patience):
                await self._room.acquire()
        except TimeoutError:
            raise Failed(
                f"nobody took a part of the {self._what} for {patience:.0f} s",
                remedy="ask for it again, and read it faster",
            ) from None
        if self.left.is_set():
            raise Gone
        self._waited += loop.time() - began
        self._size += len(part)
        self._queue.put_nowait(part)

    def _patience(self) -> float:
        """Seconds that are waited for the next part to be taken."""
        if not self._least:
            return self._stall
        return max(0.0, min(self._stall, self._stall + self._size / self._least - self._waited))
