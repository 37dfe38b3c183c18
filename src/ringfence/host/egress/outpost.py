"""One running box's way out, as the server has it: its listeners, its live invocations, and a worker while there is need.

The worker is asked for at the first connection, single flight, and ends when it has had nothing to do for a while. The next connection
calls for another, at once. One that ends otherwise is followed by the next at once the first time, later each time twice as late, and
who connects meanwhile is refused. Whatever it was told is told to the next. While its box stands still there is none, and who has
connected waits in the queue of a listener. Must never pass a byte itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ringfence.host.egress.attendant import Attendant, Counters
from ringfence.host.egress.bucket import Bucket
from ringfence.host.egress.channel import Channel
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.doorbell import Doorbell
from ringfence.host.egress.site import Home
from ringfence.host.egress.sockets import Sockets
from ringfence.host.egress.standins import Group, StandIns, grouped
from ringfence.host.egress.tally import Tally
from ringfence.host.egress.uses import Uses
from ringfence.host.kernel.errors import RingfenceError, Unavailable
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.listeners import Listener
from ringfence.host.kernel.outward.ports import Invoker, Outlets

LONG_LIFE, FIRST_DELAY, LAST_DELAY = 60.0, 0.1, 30.0  # seconds
# Rows that a box's requests make for good, whatever its worker says: twice what an honest worker lets out (Bounds.writes_second),
# for each recorded write may carry a secret. At 400 bytes a row it is 1.4 GB a day at worst.
ROWS_SECOND, ROWS_BURST = 40.0, 400.0
_REFUSE_PAUSE = 0.05  # between two looks at who is to be refused
_GRACE = 2.5  # a worker that is told to end gives its requests 2 s


@dataclass(frozen=True, slots=True)
class Live:
    """A command that runs. `port` of its own proxy."""

    id: str
    who: Invoker
    port: int
    given: StandIns


class Outpost:
    """`bindings`: those of now, as the store has them; they are read in the order in which they come into force. `configure`: the
    configuration of now. RingfenceError from either: there can be no worker. `given`: the placeholders of an invocation, always
    the same. `model_digest`: of its key for the model gateway."""

    def __init__(
        self,
        home: Home,
        outlets: Outlets,
        counters: Counters,
        clock: Callable[[], float],
        bindings: Callable[[UserId], Awaitable[Sequence[Binding]]],
        configure: Callable[[Home, Sequence[Binding]], Awaitable[Configuration]],
        given: Callable[[str, Sequence[Group]], StandIns],
        model_digest: Callable[[str], str],
    ) -> None:
        self.home, self._given, self._model_digest = home, given, model_digest
        self._outlets, self._counters, self._clock = outlets, counters, clock
        self._read, self._configure = bindings, configure
        self._doorbell = Doorbell(self._rung)
        self.sockets = Sockets(home.box, outlets, counters.chores, self._doorbell.add)
        self.tally = Tally(clock)
        self.live: dict[str, Live] = {}  # by id
        self.bindings: Mapping[str, Binding] = {}
        self._groups: tuple[Group, ...] = ()
        self._uses = Uses()
        self._rows = Bucket(ROWS_SECOND, ROWS_BURST, clock)
        self._revoked: dict[str, int] = {}
        self._names: tuple[tuple[str, str], ...] = ()  # of the last worker that rested
        self._worker: Channel | None = None
        self._attendant: Attendant | None = None  # of that worker
        self._tending: asyncio.Task[None] | None = None  # who stays with the worker, from the bell on
        self._configuring = asyncio.Lock()
        self._changes = 0  # of what the store says, and of whether that is known
        self._closed = self.suspended = False
        self._not_before = 0.0
        self._log = logging.getLogger("ringfence.egress")

    @property
    def worker(self) -> bool:
        return self._worker is not None and self._worker.alive

    @property
    def _shut(self) -> bool:
        """Whether there is to be no worker."""
        return self._closed or self.suspended

    # --- what attendants ask -----------------------------------------------------------------------------------------

    def binding(self, identifier: str) -> Binding | None:
        return self.bindings.get(identifier)

    def invoker(self, invocation: str) -> Invoker | None:
        if not invocation:
            return Invoker(self.home.tenant, self.home.user, self.home.box, "")
        found = self.live.get(invocation)
        return None if found is None else found.who

    def model_invoker(self, invocation: str, digest: str) -> Invoker | None:
        found = self.live.get(invocation)
        return found.who if found is not None and self._model_digest(invocation) == digest else None

    def revocations(self, credential: str) -> int:
        return self._revoked.get(credential, 0)

    def spend(self, invocation: str, binding: str) -> bool:
        return self._uses.spend(invocation, binding)

    def unspent(self, invocation: str, binding: str) -> None:
        self._uses.give_back(invocation, binding)

    def row(self) -> bool:
        return self._rows.take()

    # --- life --------------------------------------------------------------------------------------------------------

    async def open(self, ports: Collection[int]) -> list[int]:
        """Listens: the fixed set and these ports, of which those that could be had come back. RingfenceError."""
        await self._outlets.end_worker(self.home.box)  # of a server before: it has the ports
        had = await self.sockets.open(ports)
        for listener in self.sockets:
            self._doorbell.add(listener)
        self._doorbell.arm()
        return had

    async def close(self) -> None:
        """The worker gets the time to end what it has begun."""
        self._closed = True
        self._doorbell.close()
        self._counters.holds.end(self.home.box)
        if (worker := self._worker) is not None:
            await worker.end(_GRACE)
        self.sockets.close()

    async def suspend(self) -> None:
        """Its box is to stand still. The worker ends as at `close`, which is no crash. Listeners stay, and what is remembered of
        commands with them: not one is refused between the thaw and `resume`."""
        self.suspended = True
        self._doorbell.disarm()
        self._counters.holds.end(self.home.box)
        if (worker := self._worker) is not None:
            await worker.end(_GRACE)
        if self._tending is not None:
            await asyncio.wait([self._tending], timeout=_GRACE)

    async def resume(self) -> None:
        """Who has come meanwhile calls for a worker."""
        if self._worker is not None:
            self._worker.close("its box goes on")
        if self._tending is not None:  # else it would take its worker's end for a crash
            await asyncio.wait([self._tending])
        self.suspended = False
        self._doorbell.arm()

    def given(self, invocation: str) -> StandIns:
        return self._given(invocation, self._groups)

    def add(self, live: Live) -> None:
        """Unavailable: it is not added."""
        self.live[live.id] = live
        if self._worker is not None and self._worker.configured:
            try:
                self._introduce(self._worker, live)
            except RingfenceError:
                self.remove(live.id)
                raise

    def remove(self, identifier: str) -> None:
        live = self.live.pop(identifier, None)
        self._uses.ended(identifier)
        if live is None:
            return
        if (worker := self._worker) is not None:
            worker.tickets(live.id, [], ended=True)
            worker.unlisten(live.port)
        if self._attendant is not None:
            self._attendant.ended(live.id)
        self._doorbell.remove(self.sockets.used(live.port))
        self.sockets.drop(live.port)

    async def reconfigure(self) -> None:
        """What the store says now is in force: in the worker too, if there is one; one that does not confirm has ended when this
        returns. RingfenceError: the bindings could not be read, and the worker has ended."""
        async with self._configuring:
            self._changes += 1
            worker = self._worker if self._worker is not None and self._worker.configured else None
            try:
                await self._bind()
            except Exception as error:  # whatever it is: what was bound before must not stay in force
                if worker is not None:
                    worker.close(f"its bindings could not be read: {_said(error)}")
                raise
            if worker is None or worker is not self._worker:
                return  # the next one reads for itself
            try:
                await worker.configure(await self._configure(self.home, list(self.bindings.values())))
            except Exception as error:
                worker.close(f"its configuration could not be renewed: {_said(error)}")
                if not isinstance(error, RingfenceError):
                    raise
                return
            for live in list(self.live.values()):
                worker.tickets(live.id, self._tickets(live))

    async def _bind(self) -> None:
        """With `_configuring` held: who reads earlier is never in force later."""
        bindings = await self._read(self.home.user)
        self._groups = grouped(bindings)
        self.bindings = {each.id: each for each in self._uses.bind(bindings, self._groups)}
        for live in list(self.live.values()):
            self.live[live.id] = replace(live, given=self.given(live.id))

    async def revoke(self, credential: str) -> None:
        self._revoked[credential] = self._revoked.get(credential, 0) + 1
        if (worker := self._worker) is not None:
            try:
                await worker.revoke(credential)
            except RingfenceError as error:  # it has ended, and the value with it
                if worker.rested is None:
                    self._log.warning("box %s: %s", self.home.box, error.message)

    def cut(self, why: str) -> None:
        """Its worker ends; the next reads for itself."""
        self._changes += 1
        if self._worker is not None:
            self._worker.close(why)

    # --- the worker --------------------------------------------------------------------------------------------------

    def _rung(self) -> None:
        self._tending = self._counters.chores.go(self._called(), f"worker of {self.home.box}")
        if self._tending is None:
            self._refuse()

    async def _called(self) -> None:
        """Somebody is there and no worker: starts one and stays with it until it ends. The bell is armed again however that
        was: one that is not would be a box without a way out until it is stopped."""
        now = self._clock()
        try:
            if (now < self._not_before or not await self._worked(now)) and not self.suspended:
                self._refuse()
                await asyncio.sleep(_REFUSE_PAUSE)  # whoever could not be refused is there still, and rings at once
        finally:
            if not self._shut:
                self._doorbell.arm()

    def _refuse(self) -> None:
        with suppress(OSError):
            self._doorbell.refuse()

    async def _worked(self, began: float) -> bool:
        """The life of one worker. Whether there was one that served."""
        why, served = "a fault of the server", False
        try:
            channel = await self._started()
            served = True
            why = await asyncio.shield(channel.closed)
        except Exception as error:  # OSError: no descriptor is left, or the spawner has gone
            why = _said(error)
            if not isinstance(error, (RingfenceError, OSError)):
                self._log.exception("a worker of box %s ended by an error", self.home.box)
        finally:
            worker, self._worker = self._worker, None
            attendant, self._attendant = self._attendant, None
            if worker is not None:
                worker.close("its server lets it go")
            if attendant is not None:  # it goes on by itself: what is on record stands, whoever is ended here
                self._counters.chores.go(attendant.over(), f"end of a worker of {self.home.box}", last=True)
            if worker is not None and worker.rested is not None:
                self._names, self.tally.crashes = worker.rested, 0
            elif not self._shut:
                self._crashed(began, why)
        return served

    def _crashed(self, began: float, why: str) -> None:
        now = self._clock()
        if now - began > LONG_LIFE:
            self.tally.crashes = 0
        delay = min(LAST_DELAY, FIRST_DELAY * 2 ** min(self.tally.crashes, 16)) if self.tally.crashes else 0.0
        self.tally.crashes += 1
        self._not_before = now + delay
        self._log.warning("the egress worker of box %s has ended: %s", self.home.box, why)
        details = {"why": why[:500], "times": self.tally.crashes}
        if self.tally.worth("worker_ended"):
            audit = self._counters.audit
            self._counters.chores.go(
                audit.record(None, "egress.worker_ended", f"box:{self.home.box}", details), "audit"
            )

    async def _started(self) -> Channel:
        """RingfenceError: there is none; what there is of one is in `_worker` and `_attendant`."""
        reading = asyncio.create_task(self._read_early())  # while the worker is forked
        try:
            channel = await self._forked()
            configuration, changes = await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        async with self._configuring:
            await channel.configure(configuration if changes == self._changes else await self._looked_up())
        if self._shut:
            raise Unavailable("its box is closed", remedy="try again")
        channel.names(self._names)
        for listener in self.sockets:
            if listener.kind != "proxy":
                channel.listen(listener)
        for live in list(self.live.values()):
            self._introduce(channel, live)
        return channel

    async def _forked(self) -> Channel:
        fd = await self._outlets.worker(self.home.box)
        channel = self._worker = Channel(fd, lambda kind, said: attendant.asked(kind, said), lambda: attendant.busy)
        attendant = self._attendant = Attendant(self.home, self._counters, self, self.tally, channel.say)
        if self._shut:
            channel.close("its box is closed")
        await channel.ready()
        return channel

    async def _read_early(self) -> tuple[Configuration, int]:
        """And which change was the last one before it."""
        async with self._configuring:
            changes = self._changes
            return await self._looked_up(), changes

    async def _looked_up(self) -> Configuration:
        """With `_configuring` held."""
        await self._bind()
        return await self._configure(self.home, list(self.bindings.values()))

    def _introduce(self, worker: Channel, live: Live) -> None:
        """Tickets first: the command's port may be spoken through as soon as it is listened on."""
        listener: Listener = self.sockets.used(live.port)
        worker.tickets(live.id, self._tickets(live))
        worker.listen(listener, live.id)

    def _tickets(self, live: Live) -> Sequence[Mapping[str, Any]]:
        return self._uses.tickets(live.id, live.given.tickets)


def _said(error: Exception) -> str:
    """Of a fault of the server's nothing but its kind: it may hold what it choked on."""
    if isinstance(error, RingfenceError):
        return error.message
    return (error.strerror if isinstance(error, OSError) else "") or type(error).__name__


def facts(outpost: Outpost | None, holds: int) -> Mapping[str, Any]:
    """ports.Egress.facts."""
    if outpost is None:
        return {"open": False, "worker": False, "listeners": 0, "invocations": 0, "requests": 0, "denials": 0,
                "up": 0, "down": 0, "dropped": 0, "crashes": 0, "holds": holds}  # fmt: skip
    tally = outpost.tally
    return {
        "open": not outpost.suspended,
        "worker": outpost.worker,
        "listeners": len(outpost.sockets),
        "invocations": len(outpost.live),
        "requests": tally.requests,
        "denials": tally.denials,
        "up": tally.up,
        "down": tally.down,
        "dropped": tally.dropped,
        "crashes": tally.crashes,
        "holds": holds,
    }
