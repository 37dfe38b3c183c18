"""The broker's tasks: kept, named, and awaited at its end. One that fails is logged and ends alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any


class Tasks:
    def __init__(self) -> None:
        self._all: set[asyncio.Task[None]] = set()
        self._log = logging.getLogger("ringfence.broker")
        self._closed = False

    def go(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Starts it. After `close` nothing starts any more."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._all.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Cancels all of them and waits until each has ended."""
        self._closed = True
        tasks = list(self._all)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._all.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s ended by an error", task.get_name(), exc_info=error)
