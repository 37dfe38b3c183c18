"""How much and how long: requests at once and a second, deadlines of one exchange. Source: the attack list, G.

Clocks are monotonic: a jump of the wall clock ends nothing. It must never hold a connection longer than `Bounds.total`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal

from ringfence.host.egress.bucket import Bucket
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.refusals import Code, Refusal

Blame = Literal["box", "server"]


class Flow:
    """Requests of one worker: `in_flight` at once, `requests_second` on average with `burst` at a time."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self.bounds = bounds
        self.clock = clock
        self._flying = 0
        self._requests = Bucket(bounds.requests_second, float(bounds.burst), clock)
        self._rows = Bucket(bounds.writes_second, bounds.writes_burst, clock)

    def record(self) -> None:
        """Of a write, which makes rows that stay. Refusal `too_many`."""
        if not self._rows.take():
            raise Refusal(Code.TOO_MANY, f"more than {self.bounds.writes_second:g} requests a second that are recorded")

    def begin(self) -> None:
        """A request, or a connection that is passed through. Refusal `too_many`."""
        if not self._requests.take():
            raise Refusal(Code.TOO_MANY, f"more than {self.bounds.requests_second:g} requests a second")

    @contextmanager
    def request(self) -> Iterator[None]:
        """Refusal `too_many`."""
        if self._flying >= self.bounds.in_flight:
            raise Refusal(Code.TOO_MANY, f"{self.bounds.in_flight} requests are in flight already")
        self.begin()
        self._flying += 1
        try:
            yield
        finally:
            self._flying -= 1


class Deadline:
    """Of the exchanges of one connection, one at a time: each wait says how long it may take, and all of one ends after `total`.

        deadline = Deadline(bounds)
        try:
            async with deadline:
                deadline.within(bounds.head, "box")
        except TimeoutError: deadline.blame says who was waited for
        ...
        deadline.end()

    One timer runs, through all of them; a deadline that moves away costs an assignment, and the timer looks again when it fires.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._loop = asyncio.get_running_loop()
        self._total = bounds.total
        self._timeout: asyncio.Timeout | None = None
        self._last = self._when = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.blame: Blame = "server"

    async def __aenter__(self) -> Deadline:
        self.blame = "server"
        self._last = self._loop.time() + self._total
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()
        self.within(self._total, "server")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timeout, self._timeout = self._timeout, None
        assert timeout is not None
        await timeout.__aexit__(kind, error, trace)

    def end(self) -> None:
        """Nothing is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def within(self, seconds: float, blame: Blame) -> None:
        """From now on."""
        self.blame = blame
        self._when = min(self._loop.time() + seconds, self._last)
        if self._timer is None or self._when < self._timer.when():
            self._arm()

    def _arm(self) -> None:
        self.end()
        self._timer = self._loop.call_at(self._when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._timeout is None:
            return
        if self._loop.time() < self._when:
            self._arm()
        else:
            self._timeout.reschedule(self._when)


class Rate:
    """A body from the box: after `slow_after` seconds of waiting for it, it has come at `slow_rate` or it is refused. Only the
    time spent waiting for the box counts: an upstream that reads slowly is not its fault."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self._bounds = bounds
        self._clock = clock
        self._waited = 0.0
        self._bytes = 0

    def took(self, since: float, count: int) -> None:
        """`count` bytes came after a wait that began at `since`. Refusal `too_slow`."""
        self._waited += self._clock() - since
        self._bytes += count
        late = self._waited - self._bounds.slow_after
        if late > 0 and self._bytes < self._bounds.slow_rate * self._waited:
            raise Refusal(
                Code.TOO_SLOW, f"the body came slower than {self._bounds.slow_rate} bytes a second", close=True
            )
