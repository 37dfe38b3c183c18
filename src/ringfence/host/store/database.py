"""The two doors to the database that every noun uses: `read` a snapshot, `write` through the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import DiskFull, Unavailable
from ringfence.host.store.engine import Engines
from ringfence.host.store.failures import disconnected, translate
from ringfence.host.store.reserve import FileReserve
from ringfence.host.store.transaction import Tx, World
from ringfence.host.store.wakes import Wakes
from ringfence.host.store.writer import Writer

T = TypeVar("T")


class Database:
    def __init__(self, engines: Engines, world: World) -> None:
        self._engines = engines
        self.world = world
        self.wakes = Wakes(world.installation)
        self._bell = world.dialect.bell(self.wakes)
        self.writer = Writer(engines.write, world, self.wakes, self._bell)
        self.reserve = FileReserve(world.dialect)
        self._reading = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    async def read(self, question: Callable[[Connection], T]) -> T:
        """Answers from one consistent snapshot of what is committed. Errors of kernel.errors only."""
        if self._closed:
            raise Unavailable("the store is closed", remedy="the server is stopping: try again when it is back")
        self._reading += 1
        self._idle.clear()
        try:
            return await self._read(question)
        except Exception as error:
            raise translate(error) from error
        finally:
            self._reading -= 1
            if not self._reading:
                self._idle.set()

    async def _read(self, question: Callable[[Connection], T]) -> T:
        """Once more when the connection was lost: the server may have been started anew since it was used last."""
        try:
            return await self._engines.read.run(question)
        except Exception as error:
            if not disconnected(error):
                raise
        return await self._engines.read.run(question)

    async def write(self, work: Callable[[Tx], T]) -> T:
        """The result of `work`, once it is on disk. Errors of kernel.errors only."""
        try:
            return await self.writer.write(work)
        except DiskFull:
            await asyncio.to_thread(self.reserve.release)
            raise

    async def close(self) -> None:
        """Writes what is queued, lets reads end, closes every connection. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.wakes.close()
        await self.writer.close()
        await self._bell.close()
        await self._idle.wait()
        await self._engines.close()
