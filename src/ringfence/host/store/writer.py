"""The one writer: group commit. Every write of this process goes through here, and is on disk when it is answered.

A batch is one transaction (SQLite: BEGIN IMMEDIATE) with a savepoint around each write, so that one that fails leaves
its neighbours alone. Answers go out only after COMMIT has returned; when it fails, nobody's write has happened.

A lone writer is never kept waiting. Only when the last batch had more writes than the queue holds now do we linger
2 ms for the rest of them: a commit costs an fsync of about that much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any, TypeVar

from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import RingfenceError, Unavailable
from ringfence.host.kernel.ids import ThreadId
from ringfence.host.store.failures import ends_transaction, translate
from ringfence.host.store.pools import Pool
from ringfence.host.store.transaction import Tx, World
from ringfence.host.store.wakes import Wakes

T = TypeVar("T")
MAX_BATCH = 64  # writes in one commit: at about 1 ms each, the first of them waits a tenth of a second at most
LINGER_SECONDS = 0.002


class _Job:
    """A write and its future answer."""

    __slots__ = ("answer", "error", "value", "work")

    def __init__(self, work: Callable[[Tx], Any], answer: asyncio.Future[Any]) -> None:
        self.work = work
        self.answer = answer
        self.value: Any = None
        self.error: Exception | None = None

    def resolve(self) -> None:
        if self.answer.done():  # the caller was cancelled meanwhile; the write stands
            return
        if self.error is None:
            self.answer.set_result(self.value)
        else:
            self.answer.set_exception(_raisable(self.error))

    def fail(self, error: Exception) -> None:
        self.error = error
        self.resolve()


def _raisable(error: Exception) -> RingfenceError:
    """An instance of its own for each caller: raising shares no traceback between them."""
    translated = translate(error)
    if translated is not error:
        translated.__cause__ = error
    return translated


class Writer:
    def __init__(self, pool: Pool, world: World, wakes: Wakes) -> None:
        self._pool = pool
        self._world = world
        self._wakes = wakes
        self._jobs: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self._last_size = 1
        self._commit_seconds: deque[float] = deque(maxlen=32)
        self.commits = 0
        self.failure: RingfenceError | None = None  # of the last batch
        self._task = asyncio.create_task(self._work(), name="store writer")

    @property
    def commit_ms(self) -> float:
        """Median of the last 32 commits; 0 before the first."""
        return median(self._commit_seconds) * 1000 if self._commit_seconds else 0.0

    @property
    def running(self) -> bool:
        return not self._task.done()

    async def write(self, work: Callable[[Tx], T]) -> T:
        """The result of `work`, once it is on disk. Cancelling the caller takes back a write that has not begun."""
        if self._closed or self._task.done():
            raise _closed()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append(_Job(work, answer))
        self._wake.set()
        return await answer

    async def close(self) -> None:
        """Writes what is queued, then ends."""
        self._closed = True
        self._wake.set()
        await self._task

    async def _work(self) -> None:
        try:
            while await self._wait():
                if batch := self._take():
                    self._last_size = len(batch)
                    await self._write(batch)
        finally:
            self._closed = True
            while self._jobs:
                self._jobs.popleft().fail(_closed())

    async def _wait(self) -> bool:
        """Until there is something to write; False when there will be nothing any more."""
        while not self._jobs:
            if self._closed:
                return False
            self._wake.clear()
            await self._wake.wait()
        await asyncio.sleep(0)  # whoever is ready to run may still join
        if len(self._jobs) < min(self._last_size, MAX_BATCH):
            await asyncio.sleep(LINGER_SECONDS)
        return True

    def _take(self) -> list[_Job]:
        batch: list[_Job] = []
        while self._jobs and len(batch) < MAX_BATCH:
            job = self._jobs.popleft()
            if not job.answer.done():
                batch.append(job)
        return batch

    async def _write(self, batch: list[_Job]) -> None:
        """One transaction. Whatever happens, each job is answered exactly once."""
        try:
            grown = await self._pool.run(lambda connection: self._transact(connection, batch))
        except Exception as error:
            alone = len(batch) == 1 and not ends_transaction(error)
            self.failure = self.failure if alone else translate(error)
            for job in batch:
                job.fail(error)
        except BaseException:
            for job in batch:
                job.fail(_closed())
            raise
        else:
            self.failure = None
            for job in batch:
                job.resolve()
            self._wakes.notify(grown)

    def _transact(self, connection: Connection, batch: list[_Job]) -> dict[ThreadId, int]:
        """In the database's thread. Touches the batch, which the loop leaves alone until this has returned."""
        clock = self._world.clock
        with connection.begin() as transaction:
            tx = self._apply(connection, batch)
            started = clock.monotonic()
            transaction.commit()
            self._commit_seconds.append(clock.monotonic() - started)
            self.commits += 1
        return tx.grown

    def _apply(self, connection: Connection, batch: list[_Job]) -> Tx:
        tx = Tx(connection, self._world)
        if len(batch) == 1:  # no neighbours: the transaction itself is its savepoint
            batch[0].value = batch[0].work(tx)
            return tx
        for job in batch:
            savepoint, grown = connection.begin_nested(), dict(tx.grown)
            try:
                job.value = job.work(tx)
            except Exception as error:
                if ends_transaction(error):
                    raise
                savepoint.rollback()
                tx.grown.clear()  # its events are taken back with the rest
                tx.grown.update(grown)
                job.error = error
            else:
                savepoint.commit()
        return tx


def _closed() -> Unavailable:
    return Unavailable("the store is closed", remedy="the server is stopping: try again when it is back")
