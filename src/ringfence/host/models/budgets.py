"""Reservations: what a call may use is counted, durably, before it goes out; what it did use takes its place
afterwards.

Both the gateway and the native loop go through here. What was used is written with the next reservation, in its
commit, or LINGER later. A process that is killed leaves its reservations counted: the sweep of another one ends them
at all they had reserved. Must never let a call out that is not counted, nor reserve before the ends that it knows of,
and never keep an answer waiting for the second half.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from ringfence.host.kernel.errors import Exhausted, Refused, RingfenceError
from ringfence.host.kernel.ids import RunId, UserId
from ringfence.host.kernel.models.granting import Expected, fit, output_of
from ringfence.host.kernel.models.ports import Call, Caller, Changed, Going, ModelUsage
from ringfence.host.kernel.models.upstreams import Upstream
from ringfence.host.kernel.models.usage import BudgetLimits, Usage
from ringfence.host.kernel.ports import Clock, Ids

LINGER = 0.05  # seconds: of a loop's next call, which may be there 5 ms after an answer, a commit is saved


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation. `output`: tokens that the answer may have. It is to be settled, once."""

    call: str
    output: int


class Budgets:
    """To be closed: what is still to be written is."""

    def __init__(self, usage: ModelUsage, limits: BudgetLimits, ids: Ids, clock: Clock, worker: str) -> None:
        self.limits = limits
        self._usage, self._ids, self._clock, self._worker = usage, ids, clock, worker
        self._live: set[str] = set()  # from before each reservation until after its settlement
        self._doubtful: set[str] = set()  # of them those whose reservation may still be on its way
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: list[tuple[str, Usage, int, str]] = []  # to be written
        self._log = logging.getLogger("ringfence.models")

    async def hold(
        self, caller: Caller, upstream: Upstream, expected: Expected, front: str, going: Going | None = None
    ) -> Hold:
        """Exhausted: no room is left. Refused: the run has ended. Of `going`: Changed, Unavailable."""
        if self._write():
            await asyncio.sleep(0)  # a turn of the loop, in which each of them comes before us, for the same commit
        call = Call(self._ids.new("mdl"), caller, upstream.alias, front, self._worker)
        self._live.add(call.id)
        try:
            given = await self._usage.reserve(
                call, self.limits, lambda room: fit(expected, upstream.prices, room), going
            )
        except (Changed, Exhausted, Refused):  # nothing is counted
            self._live.discard(call.id)
            raise
        except BaseException:  # cancelled, or too late: it may be written all the same, and even after its end is
            self._keep(self._unsaid(call.id))
            raise
        return Hold(call.id, output_of(expected, given))

    def settle(self, hold: Hold, upstream: Upstream, usage: Usage, outcome: str) -> None:
        """Soon; nobody waits for it."""
        self._ended.append((hold.call, usage, upstream.prices.cost(usage), outcome))
        if len(self._ended) == 1:
            self._keep(self._later())

    async def sweep(self) -> int:
        """How many reservations that nobody settles any more were ended."""
        for call in list(self._doubtful):
            self._doubtful.discard(call)
            await self._settled(call, Usage(), 0, "failed")
        ended = await self._usage.sweep(self._worker, lambda: self._live)
        if ended:
            self._log.warning("%d calls of models had no end: they are counted with all that was reserved", ended)
        return ended

    async def of_run(self, run: RunId) -> dict[str, Any]:
        return (await self._usage.of_run(run)).as_json(self.limits.run)

    async def of_user(self, user: UserId) -> dict[str, Any]:
        """In the present period."""
        period = self.limits.period_of(self._clock.now())
        spent = await self._usage.of_user(user, period)
        return {"period": period, **spent.as_json(self.limits.user)}

    async def quiet(self) -> None:
        """Returns when what was to be settled is."""
        self._write()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    close = quiet

    async def _later(self) -> None:
        await asyncio.sleep(LINGER)
        self._write()

    def _write(self) -> bool:
        """Whether there was anything."""
        ended, self._ended = self._ended, []
        for each in ended:
            self._keep(self._settled(*each))
        return bool(ended)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _unsaid(self, call: str) -> None:
        """Of a reservation that nobody waits for any more. One that is not there yet is looked for once more, at the
        next sweep: no write takes so long."""
        try:
            if await self._usage.settle(call, Usage(), 0, "failed"):
                self._live.discard(call)
                return
        except RingfenceError as error:
            self._log.warning("a reservation is not taken back yet, call %s: %s", call, error)
        self._doubtful.add(call)

    async def _settled(self, call: str, usage: Usage, micros: int, outcome: str) -> None:
        """One that cannot be written stays reserved, and is the sweep's."""
        try:
            await self._usage.settle(call, usage, micros, outcome)
        except RingfenceError as error:
            self._log.error("the use of a model is not recorded, call %s: %s", call, error)
        finally:
            self._live.discard(call)
