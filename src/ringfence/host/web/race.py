"""Several pieces of work, of which the first to end decides. Leaves no task behind, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
