"""A batch of writes as one transaction: a savepoint around each, so that one that fails leaves its neighbours alone.

On PostgreSQL a write may lose a race: it looked, another kernel committed, and then a unique value or a foreign key
does not hold. It is run again, sees what was committed meanwhile, and answers as it would have on a database of its
own. Runs where the pool runs functions: it touches its batch, which the loop leaves alone meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.failpoints import Point
from ringfence.host.kernel.ids import ThreadId
from ringfence.host.store.dialect import Savepoint
from ringfence.host.store.failures import ends_transaction, raced, translate
from ringfence.host.store.transaction import Alike, Tx, World

RACES = 3  # lost by one write in a row: each needs another kernel's commit in the same millisecond


class Job:
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
        """Nothing when it was answered before. `error` may be that of a whole batch: each has a copy of its own."""
        self.error = error
        if isinstance(error, RingfenceError):
            self.error = copy(error)
            self.error.__cause__ = error
        self.resolve()


def _raisable(error: Exception) -> RingfenceError:
    """An instance of its own for each caller: raising shares no traceback between them."""
    translated = translate(error)
    if translated is not error:
        translated.__cause__ = error
    return translated


class Attempt:
    """One try. Of one that did not come to its end nothing is written, unless it was `committing`."""

    def __init__(self, world: World, batch: list[Job]) -> None:
        self.batch = batch
        self.committing = False
        self.seconds = 0.0  # that COMMIT took
        self.grown: dict[ThreadId, int] = {}
        self.offered: set[str] = set()
        self._world = world

    def run(self, connection: Connection) -> None:
        with connection.begin() as transaction:
            tx = Tx(connection, self._world, self.grown, self.offered)
            if len(self.batch) == 1:
                self._alone(tx)
            else:
                self._world.dialect.several(connection)
                for jobs in _neighbours(self.batch):
                    _together(tx, jobs)
            self._world.failpoints.reach(Point.STORE_COMMIT_BEFORE)
            started = self._world.clock.monotonic()
            self.committing = True
            transaction.commit()
            self.seconds = self._world.clock.monotonic() - started
            self._world.failpoints.reach(Point.STORE_COMMIT_AFTER)

    def _alone(self, tx: Tx) -> None:
        """No neighbours: the transaction itself is its savepoint."""
        job = self.batch[0]
        job.error = None  # of an earlier try, beside others
        job.value = job.work(tx)


def _neighbours(batch: Sequence[Job]) -> list[list[Job]]:
    """In their order; those in a row that one call can do, together."""
    found: list[list[Job]] = []
    for job in batch:
        before = found[-1][-1].work if found else None
        if isinstance(job.work, Alike) and isinstance(before, Alike) and before.each is job.work.each:
            found[-1].append(job)
        else:
            found.append([job])
    return found


def _together(tx: Tx, jobs: list[Job]) -> None:
    """In one call behind one savepoint; when that does not do, each by itself."""
    first = jobs[0].work
    if len(jobs) == 1 or not isinstance(first, Alike) or not _at_once(tx, first, jobs):
        for job in jobs:
            _beside(tx, job)


def _at_once(tx: Tx, first: Alike[Any, Any], jobs: list[Job]) -> bool:
    grown, savepoint = dict(tx.grown), tx.world.dialect.savepoint(tx.connection)
    try:
        answers = first.each(tx, [job.work.item for job in jobs if isinstance(job.work, Alike)])
    except Exception as error:
        if ends_transaction(error):
            raise
        _taken_back(tx, savepoint, grown)
        return False
    savepoint.commit()
    for job, answer in zip(jobs, answers, strict=True):
        job.error, job.value = (answer, None) if isinstance(answer, RingfenceError) else (None, answer)
    return True


def _beside(tx: Tx, job: Job) -> None:
    """Its value or its error. What ends the whole transaction is raised."""
    for number in range(RACES):
        grown = dict(tx.grown)
        savepoint = tx.world.dialect.savepoint(tx.connection)
        job.error = None
        try:
            job.value = job.work(tx)
        except Exception as error:
            if ends_transaction(error):
                raise
            _taken_back(tx, savepoint, grown)
            job.error = error
            if not raced(error) or number == RACES - 1:
                return
        else:
            savepoint.commit()
            return


def _taken_back(tx: Tx, savepoint: Savepoint, grown: Mapping[ThreadId, int]) -> None:
    """With the rest, its events."""
    savepoint.rollback()
    tx.grown.clear()
    tx.grown.update(grown)
