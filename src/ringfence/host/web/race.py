"""Several pieces of work, of which the first to end decides. Leaves no task behind, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any


async def race(*works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Waits for the first to end, cancels the others and waits for them; raises what the first ones raised. Returns the
    tasks in order: `cancelled()` tells those that lost."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class Standing:
    """A race that is run again and again: those that lost go on into the next round instead of starting anew, so that
    many ends of the one cost the others nothing. Close it."""

    def __init__(self, works: Mapping[str, Callable[[], Coroutine[Any, Any, Any]]]) -> None:
        self._works = works
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def start(self) -> None:
        """Those that do not run: at the first round at the latest."""
        for name, work in self._works.items():
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(work())

    async def first(self) -> dict[str, Any]:
        """What has ended since the last time, and with what; raises what one of those raised."""
        self.start()
        await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        ended = [name for name, task in self._tasks.items() if task.done()]
        return {name: task.result() for name, task in [(name, self._tasks.pop(name)) for name in ended]}

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
