"""The one writer: group commit. Every write of this process goes through here, and is on disk when it is answered.

A batch is one transaction (transact.py). Answers go out only after COMMIT has returned; when it fails, nobody's write has
happened. What is in another kernel's way is run again: write functions may be, for they are seen by nobody before that.

Nobody is kept waiting for somebody else to come: what comes while a batch is written is the next one (decision 0067).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import TypeVar

from ringfence.host.kernel.errors import RingfenceError, Unavailable
from ringfence.host.store.dialect import Bell
from ringfence.host.store.failures import (
    disconnected,
    ends_transaction,
    in_the_way,
    locked_out,
    raced,
    shut_out,
    translate,
    unknown,
)
from ringfence.host.store.pools import Pool
from ringfence.host.store.transact import RACES, Attempt, Job
from ringfence.host.store.transaction import Alike, Tx, World
from ringfence.host.store.wakes import Wakes

T = TypeVar("T")
MAX_BATCH = 64  # writes in one commit: at about 1 ms each, the first of them waits a tenth of a second at most
_COST, _COST_ALIKE = 8, 1  # what one takes of a batch: those that are alike are done in one call, at 20 us each
TRIES = 8  # of a transaction that is in another's way: of two, PostgreSQL lets one through each time
_PAUSE_SECONDS = 0.005  # and twice as long after each try: 5 ms to 0.3 s, 0.6 s together


class Writer:
    def __init__(self, pool: Pool, world: World, wakes: Wakes, bell: Bell) -> None:
        self._pool = pool
        self._world = world
        self._wakes = wakes
        self._bell = bell
        self._jobs: deque[Job] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self._behind = 0  # who was in the queue when the batch was taken
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
        self._jobs.append(Job(work, answer))
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
                    await self._write(batch)
        finally:
            self._closed = True
            while self._jobs:
                self._jobs.popleft().fail(_closed())

    async def _wait(self) -> bool:
        """Until there is something to write; False when there will be nothing any more."""
        if self._jobs:  # of those who were just answered, some may want to write again
            await asyncio.sleep(0)
        while not self._jobs:
            if self._closed:
                return False
            self._wake.clear()
            await self._wake.wait()  # a turn of the loop, in which whoever was ready to run has joined
        return True

    def _take(self) -> list[Job]:
        batch: list[Job] = []
        room = MAX_BATCH * _COST
        while self._jobs and room > 0:
            job = self._jobs.popleft()
            if not job.answer.done():
                batch.append(job)
                room -= _COST_ALIKE if isinstance(job.work, Alike) else _COST
        self._behind = len(self._jobs)
        return batch

    async def _write(self, batch: list[Job]) -> None:
        """Whatever happens, each job is answered exactly once."""
        try:
            await self._until_written(batch)
        except BaseException as error:
            for job in batch:
                job.fail(error if isinstance(error, Exception) else _closed())
            if not isinstance(error, Exception):
                raise
            if shut_out(error):  # who was behind them has waited as long: nobody is to wait for batch after batch
                for _ in range(self._behind):
                    self._jobs.popleft().fail(error)

    async def _until_written(self, batch: list[Job]) -> None:
        """One transaction; or one for each job, when it is a batch that others are in the way of."""
        for number in range(1, TRIES + 1):
            attempt = Attempt(self._world, batch)
            try:
                await self._pool.run(attempt.run)
            except Exception as error:
                if len(batch) > 1 and (locked_out(error) or in_the_way(error)):
                    for job in batch:
                        await self._write([job])
                    return
                lost_race = len(batch) == 1 and raced(error) and number < RACES
                if number == TRIES or not (lost_race or _may_repeat(error, attempt)):
                    self._failed(error, attempt)
                    told = _told(error, attempt)
                    if told is error:
                        raise
                    raise told from error
                await asyncio.sleep(_PAUSE_SECONDS * 2 ** (number - 1))
            else:
                self._done(attempt)
                return

    def _done(self, attempt: Attempt) -> None:
        self.failure = None
        self.commits += 1
        self._commit_seconds.append(attempt.seconds)
        for job in attempt.batch:
            job.resolve()
        self._wakes.notify(attempt.grown)
        self._bell.ring(attempt.grown, sorted(attempt.offered))

    def _failed(self, error: Exception, attempt: Attempt) -> None:
        """A write that is refused for itself says nothing of the database."""
        if len(attempt.batch) > 1 or ends_transaction(error):
            self.failure = translate(_told(error, attempt))


def _may_repeat(error: Exception, attempt: Attempt) -> bool:
    """Whether nothing of it is written, and another try may do better. In particular not when the connection was lost
    after COMMIT had been sent: it may be written."""
    return in_the_way(error) or (disconnected(error) and not attempt.committing)


def _told(error: Exception, attempt: Attempt) -> Exception:
    """What the callers are told."""
    return unknown(error) if attempt.committing and disconnected(error) else error


def _closed() -> Unavailable:
    return Unavailable("the store is closed", remedy="the server is stopping: try again when it is back")
