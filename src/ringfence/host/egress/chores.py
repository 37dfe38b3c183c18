"""Tasks of the server's side of egress: kept until they end, ended and awaited at `close`. An error in one is logged.

Two kinds are never ended half-way: what has to be on record when all is over (`last`), and what a change in the store comes
into force by (`through`), whoever asked for it and has gone. `close` waits for both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_LAST_SECONDS = (
    10.0  # that `close` waits: a worker confirms in 5 s or is ended, and a database answers or is given up by then
)


class Chores:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: set[asyncio.Task[None]] = set()
        self._closed = False
        self._log = logging.getLogger("ringfence.egress")

    def go(self, work: Coroutine[Any, Any, Any], name: str, *, last: bool = False) -> asyncio.Task[None] | None:
        """None: nothing is begun any more. `last`: it is begun still, and not cancelled."""
        if self._closed and not last:
            work.close()
            return None
        return self._begun(self._guarded(work, name), name, self._last if last else self._tasks)

    async def through(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Awaits it; it goes on when who awaits it is cancelled. Its errors."""
        await asyncio.shield(self._begun(work, name, self._last))

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._last:
            await asyncio.wait(list(self._last), timeout=_LAST_SECONDS)
        for task in list(self._last):
            task.cancel()
        await asyncio.gather(*self._last, return_exceptions=True)

    def _begun(self, work: Coroutine[Any, Any, None], name: str, among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        among.add(task)
        task.add_done_callback(among.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        try:
            await work
        except Exception:
            self._log.exception("%s ended by an error", name)
