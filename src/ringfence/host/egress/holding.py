"""Values that the worker was given, kept so that not each request of a command asks the server. In memory only.

One is kept for the invocation that it was released to, until that ends, until it is revoked or not bound any more, until it
was not used for 15 minutes, or, of an access token, until the server wants to be asked again. Two that want the same at once ask once. A value of so many uses is never kept: the server counts
how often it gives it. Must never hand on what was taken back while it was on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from math import inf

from ringfence.host.egress.needs import Withheld
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.ports import Lent
from ringfence.host.kernel.outward.secret import Secret

IDLE = 900.0  # seconds
MOST = 256  # of 64 KiB at most: 16 MiB of the worker's 512


@dataclass(frozen=True, slots=True)
class Reason:
    """What a value is given for."""

    credential: str
    binding: str
    invocation: str


@dataclass(slots=True)
class _Kept:
    lent: Lent
    used: float
    until: float


@dataclass(eq=False, slots=True)
class _Flight:
    """One question on its way. `waiting`: who has not had its turn since; `void`: what comes is nobody's."""

    reason: Reason
    shared: bool
    task: asyncio.Task[Lent] | None = None
    waiting: int = 0
    void: bool = False


class Holding:
    """`clock`: monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[Reason, _Kept] = {}
        self._flights: set[_Flight] = set()
        self._shared: dict[Reason, _Flight] = {}
        self._counted: frozenset[str] = frozenset()  # bindings of so many uses

    async def get(self, reason: Reason, ask: Callable[[], Awaitable[Lent]]) -> Secret:
        """Withheld."""
        kept, now = self._kept.get(reason), self._clock()
        if kept is not None and now < kept.until:
            kept.used = now
            return kept.lent.value
        flight = self._shared.get(reason) or self._begin(reason, ask)
        assert flight.task is not None
        flight.waiting += 1
        try:
            value = await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            self._over(flight)
        if flight.void:  # between its arrival and this task's turn too
            raise Withheld("it was taken back meanwhile")
        return value.value

    async def another(self, reason: Reason, old: Secret, ask: Callable[[int], Awaitable[Lent]]) -> Secret | None:
        """In place of an access token that a server has just refused; None: there is no other. `ask`: is given the version
        of the old one. Withheld."""
        kept = self._kept.get(reason)
        version = kept.lent.version if kept is not None else 0
        if kept is None or kept.lent.keep is None:
            if reason not in self._shared:  # somebody asks for another already
                return None
        elif kept.lent.value == old:
            self._forget(lambda each: each.credential == reason.credential and self._kept[each].lent.value == old)
        value = await self.get(reason, lambda: ask(version))
        return None if value == old else value

    def _begin(self, reason: Reason, ask: Callable[[], Awaitable[Lent]]) -> _Flight:
        flight = _Flight(reason, reason.binding not in self._counted)
        self._flights.add(flight)
        if flight.shared:
            self._shared[reason] = flight
        flight.task = asyncio.ensure_future(self._ask(flight, ask))
        flight.task.add_done_callback(lambda done: self._landed(flight, done))
        return flight

    async def _ask(self, flight: _Flight, ask: Callable[[], Awaitable[Lent]]) -> Lent:
        lent = await ask()
        if flight.shared and not flight.void:
            if len(self._kept) >= MOST:
                del self._kept[min(self._kept, key=lambda each: self._kept[each].used)]
            now = self._clock()
            self._kept[flight.reason] = _Kept(lent, now, inf if lent.keep is None else now + lent.keep)
        return lent

    def _landed(self, flight: _Flight, done: asyncio.Future[Lent]) -> None:
        if self._shared.get(flight.reason) is flight:
            del self._shared[flight.reason]
        if not done.cancelled():
            done.exception()  # taken: those who waited may all have gone
        self._over(flight)

    def _over(self, flight: _Flight) -> None:
        if flight.waiting == 0 and flight.task is not None and flight.task.done():
            self._flights.discard(flight)

    def revoke(self, credential: str) -> None:
        self._take_back(lambda reason: reason.credential == credential)

    def ended(self, invocation: str) -> None:
        self._take_back(lambda reason: reason.invocation == invocation)

    def bound(self, bindings: Iterable[Binding]) -> None:
        """These are in force from now on, and no others."""
        now = {each.id: each for each in bindings}
        counted = frozenset(each.id for each in now.values() if each.uses is not None)
        fresh, self._counted = counted - self._counted, counted
        self._forget(lambda reason: reason.binding in fresh)
        self._take_back(lambda reason: reason.binding not in now or now[reason.binding].credential != reason.credential)

    def tidy(self) -> None:
        old = self._clock() - IDLE
        self._forget(lambda reason: self._kept[reason].used < old)

    def __len__(self) -> int:
        return len(self._kept)

    def _take_back(self, meant: Callable[[Reason], bool]) -> None:
        self._forget(meant)
        for flight in [each for each in self._flights if meant(each.reason)]:
            flight.void = True
            if self._shared.get(flight.reason) is flight:
                del self._shared[flight.reason]

    def _forget(self, meant: Callable[[Reason], bool]) -> None:
        for reason in [each for each in self._kept if meant(each)]:
            del self._kept[reason]
