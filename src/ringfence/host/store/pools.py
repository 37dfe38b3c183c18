"""How plain functions over a connection get run without blocking the loop.

SQLite: in threads, a whole function in one hop. An asyncio driver hops three times for each statement, which made
accepting a message (ten statements) take 7.5 ms instead of 3.4. PostgreSQL: on the loop itself, over asyncpg, in
SQLAlchemy's greenlet. The functions are the same. They may run in another thread than the loop's: they touch their
arguments and the connection only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")


class Pool(Protocol):
    async def run(self, function: Callable[[Connection], T]) -> T:
        """Whatever the function does not commit is rolled back. Errors as they come."""

    async def close(self) -> None:
        """Waits for what runs."""


class ThreadPool:
    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="store")

    async def run(self, function: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, function)

    def _call(self, function: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection:
            return function(connection)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._engine.dispose)


class LoopPool:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def run(self, function: Callable[[Connection], T]) -> T:
        async with self._engine.connect() as connection:
            return await connection.run_sync(function)

    async def close(self) -> None:
        await self._engine.dispose()
