"""The engine's tasks: all in one TaskGroup, none able to end another.

A task that raises what nobody expected is logged and ends alone. It must never start a task outside the group, so that
`stop` leaves none behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from ringfence.host.kernel.errors import Unavailable

Result = TypeVar("Result")


class Crew:
    def __init__(self) -> None:
        self._log = logging.getLogger("ringfence.engine")
        self._open = asyncio.Event()
        self._end = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._main: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.fallen: dict[str, str] = {}  # loops that were to work until the end, and what ended them before

    async def start(self) -> None:
        """Opens the group. Once."""
        self._main = asyncio.create_task(self._body(), name="engine")
        await self._open.wait()

    async def stop(self) -> None:
        """Cancels every task and waits for all of them. Idempotent."""
        self._end.set()
        if self._main is not None:
            await self._main

    async def _body(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._open.set()
            await self._end.wait()
            self._group = None
            for task in list(self._tasks):
                task.cancel()

    def go(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Starts a task whose result nobody waits for."""
        self._task(self._guarded(work, name), work, name)

    def keep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Starts a loop that is to work until the end. One that an error ends is in `fallen`: the server is not well."""
        self._task(self._kept(work, name), work, name)

    def begin(self, work: Coroutine[Any, Any, Result], name: str) -> asyncio.Future[Result]:
        """Starts a task; the future has its result or its error. A waiter that is cancelled does not end the task."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        task = self._task(_into(future, work), work, name)
        task.add_done_callback(lambda _: future.cancel())  # one that was cancelled before it began; else nothing
        return future

    async def whole(self, work: Coroutine[Any, Any, Result], name: str) -> Result:
        """`uncut`, in the group. Unavailable."""
        return await uncut(self.begin(work, name))

    def _task(self, around: Coroutine[Any, Any, None], work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[None]:
        """`around` awaits `work`. Both are closed, should neither ever begin: the group ends while they are made."""
        if self._group is None:
            around.close()
            work.close()
            raise Unavailable("the server is stopping", remedy="try again in a moment")
        task = self._group.create_task(around, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())
        return task

    async def _guarded(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        try:
            await work
        except Exception:
            self._log.exception("task %s ended by an error", name)

    async def _kept(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except Exception as error:
            self.fallen[name] = f"{type(error).__name__}: {error}"
            self._log.exception("loop %s ended by an error", name)


async def uncut(work: Awaitable[Result]) -> Result:
    """The work to its end, however often who waits for it is cancelled, as an HTTP server does with a stream whose reader has left;
    the cancellation is raised behind it."""
    future, cut = asyncio.ensure_future(work), False
    while not future.done():
        try:
            await asyncio.shield(asyncio.wait([future]))
        except asyncio.CancelledError:
            cut = True
    if cut:
        raise asyncio.CancelledError
    return future.result()


async def _into(future: asyncio.Future[Result], work: Coroutine[Any, Any, Result]) -> None:
    try:
        result = await work
    except asyncio.CancelledError:
        future.cancel()
        raise
    except Exception as error:
        if not future.done():
            future.set_exception(error)
            future.exception()  # taken: a flight that nobody waits for any more is no warning
    else:
        if not future.done():
            future.set_result(result)
