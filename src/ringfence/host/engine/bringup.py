"""Boxes up and down: the one way to a running box with a wire.

`ensure` is single flight: whoever needs a box meets the start that is under way (E84). A wire that is lost is dialled
again at once while the box runs; a box that is gone is observed and started again by the next `ensure`, once (E83).
Nothing here decides who may: callers have authorised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.dialling import MOST_BREAKS, Dialling
from ringfence.host.engine.life.admission import Admission
from ringfence.host.engine.life.images import Images
from ringfence.host.engine.life.presence import Presence
from ringfence.host.engine.life.still import Still
from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.outward import Outward
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, Desired, Observed, Rest
from ringfence.host.kernel.errors import BoxLost, NotFound, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.debris import MISSING, PUT_IT_BACK
from ringfence.host.kernel.life.states import Verb, step
from ringfence.host.kernel.ports import Link

T = TypeVar("T")
UNKNOWN_USE = "?"  # in Slot.uses: what was at work in a box that another server paused


class BringUp:
    def __init__(
        self,
        parts: Parts,
        crew: Crew,
        links: Links,
        lost: Callable[[BoxId], None],
        outward: Outward | None = None,
        presence: Presence | None = None,
    ) -> None:
        """`lost`: told that a box is found gone, before anything starts it again; under the box's lock, so it waits for
        nothing."""
        self._parts, self._crew, self._links, self._lost = parts, crew, links, lost
        self._outward, self._dialling = outward or Outward(parts), Dialling(parts, links)
        self._presence = presence or Presence(parts, links, LiveRuns())
        self.leaving: Callable[[BoxId], Coroutine[Any, Any, None]] = (
            _nobody  # told before a box is stopped or frozen, and once it goes on
        )
        self.admission, self.images = Admission(parts, self._presence, self.evict), Images(parts)
        self.ready: Callable[[Box], Awaitable[Box]] = _as_it_is  # the box with its tree, where that is packed
        self._log = logging.getLogger("ringfence.engine")

    def slot(self, box: BoxId) -> Slot:
        return self._links.slot(box)

    async def ensure(self, box: BoxId) -> Link:
        """A live wire to the running box, which does not stand still. BoxLost: it ended twice while it was started.
        Unavailable, DiskFull. Refused: it is in quarantine. Busy: something else is done with it for longer than is waited."""
        slot = self._links.slot(box)
        slot.active_at = self._parts.clock.monotonic()
        if (link := slot.wire()) is not None:
            return link
        if (flight := _under_way(slot)) is not None:  # a start, or a re-dial that may find the box gone
            try:
                return await asyncio.shield(flight)
            except BoxLost:
                if (link := slot.wire()) is not None:
                    return link
        return await asyncio.shield(_under_way(slot) or self._fly(slot, self._start(slot)))

    def reachable(self, box: BoxId) -> Link | None:
        """The box's wire, if there is one. Starts nothing."""
        slot = self._links.find(box)
        return None if slot is None else slot.wire()

    def _fly(self, slot: Slot, work: Coroutine[Any, Any, Link]) -> asyncio.Future[Link]:
        flight = self._crew.begin(work, f"box {slot.box}")
        slot.flight = flight

        def landed(done: asyncio.Future[Link]) -> None:
            if slot.flight is done:
                slot.flight = None

        flight.add_done_callback(landed)
        return flight

    async def _start(self, slot: Slot) -> Link:
        async with slot.hold("it is being started"):
            if (link := slot.wire()) is not None:
                return link
            if slot.paused and (link := await self._resumed(slot)) is not None:
                return link
            try:
                return await self._up(slot)
            except BoxLost as error:
                self._log.warning("box %s was lost while it was started: %s; once more", slot.box, error)
            await self.fell(slot)
            await self._parts.driver.stop(slot.box)  # whatever is left of it answers nobody
            try:
                return await self._up(slot)
            except BoxLost as error:
                await self.fell(slot)
                with suppress(RingfenceError):  # it answers nobody and would only use up the host
                    await self._parts.driver.stop(slot.box)
                raise BoxLost(
                    f"box {slot.box} ended twice while it was started: {error.message}",
                    remedy=error.remedy or "ringfence status",
                    box=slot.box,
                ) from error

    async def _resumed(self, slot: Slot) -> Link | None:
        """Of a box that stands still, which goes on. None: it is gone, and to be started."""
        box = await self._kept(slot)
        still = self.still(slot, box)
        await still.write()
        wired = slot.link is not None and slot.link.alive  # else what runs in it, its hello says
        thawed, listens = await asyncio.gather(
            self._parts.driver.thaw(slot.box),
            self._outward.opened(box, slot.running() | slot.uses, fresh=False) if wired else _nothing(),
            return_exceptions=True,
        )
        if isinstance(thawed, Refused) or (isinstance(thawed, Unavailable) and await self._got_out(slot)):
            await self.fell(slot)
            return None
        if isinstance(thawed, BaseException):
            raise thawed
        # Behind the thaw: a row that is not written says paused of a box that runs, which the next server finds.
        await asyncio.gather(self._parts.store.boxes.update(slot.box, rest=Rest.NONE), still.heard())
        slot.paused = False
        self._crew.go(self.leaving(slot.box), f"use of {slot.box}")
        link = slot.wire()
        if link is None:  # paused by a former server, or its wire broke
            link = await self._dialling.dialled(slot)
            await still.heard()
        if link is None:
            await self.fell(slot)
            return None
        slot.uses.discard(UNKNOWN_USE)
        if isinstance(listens, BaseException):
            await self._unready(slot, link)
            raise _ended_meanwhile(slot.box, listens)
        if not wired:
            await self.listening(slot, box, link)
        return link

    async def _got_out(self, slot: Slot) -> bool:
        """Whether a box that was paused runs all the same: somebody has taken it out of what it stood still by. Its start ends it."""
        sight = await self._parts.driver.observe(slot.box)
        return sight.state is Observed.RUNNING and not sight.frozen

    async def _unseen(self, box: BoxId) -> bool:
        try:
            return (await self._parts.driver.observe(box)).state is Observed.ABSENT
        except RingfenceError:
            return True

    async def goes_on(self, slot: Slot, row: Box | None) -> None:
        """What stood still for a while and is to go on as if nothing had been, for who has the slot's lock. Never raises. A box that
        cannot be let go on stays paused, for the next who needs it; one that has ended is lost, and one that came into quarantine
        stands still on."""
        if slot.quarantined:
            return
        still = self.still(slot)
        try:
            await still.write()
            await self._parts.driver.thaw(slot.box)
        except Refused:
            await self.fell(slot)
            return
        except Unavailable as error:
            if await self._unseen(slot.box):  # nobody can tell whether it stands still
                self._log.error("box %s cannot be let go on: %s", slot.box, error)
                return
            # This host cannot freeze, or not this box: nothing stands still.
        except RingfenceError as error:
            self._log.error("box %s cannot be let go on: %s", slot.box, error)
            return
        slot.paused = False
        try:
            if row is not None:
                await self._outward.opened(row, slot.running() | slot.uses, fresh=False)
        except RingfenceError as error:  # without its way out nothing may begin in it
            self._log.error("the way out of box %s after it stood still: %s", slot.box, error)
            if slot.link is not None:
                await self._unready(slot, slot.link)
        await still.heard()
        if slot.link is not None and not slot.link.alive:  # it broke meanwhile, and nobody dialled
            self._crew.go(self.link_lost(slot.box), f"wire of {slot.box}")

    def still(self, slot: Slot, box: Box | None = None) -> Still:
        """What the box's PID 1 is told when it goes on; with its row, if it is paused by that."""
        return Still(self._parts, self._crew, slot, box)

    async def _up(self, slot: Slot) -> Link:
        box = await self._kept(slot)
        await self.admission.admit(box)
        try:
            return await self._started_up(slot, await self._kept(slot))  # it may have waited: as it is now
        finally:
            self.admission.done(box.id)

    async def _started_up(self, slot: Slot, box: Box) -> Link:
        store, driver = self._parts.store, self._parts.driver
        box = await self.images.bound(await self.ready(box))
        step(box, Verb.START)  # unpacking may take minutes, and it may have come into quarantine meanwhile
        uid = box.uid or await driver.provision(box.id, box.kind, box.limits)
        await self._outward.before(box)
        identity = await self._started(box)
        fresh = identity != box.identity
        made = self.images.of_start(box) if fresh else {}
        if fresh:
            slot.started_at = self._parts.clock.monotonic()
            slot.kills.reset(slot.started_at)
            slot.full, slot.drifted = None, ()
        # The row and the dial at once: should the row be lost, a restart finds the box by the driver's list.
        link, row, listens = await asyncio.gather(
            self._links.connect(slot, identity),
            store.boxes.update(box.id, observed=Observed.RUNNING, uid=uid, identity=identity, started=fresh, **made),
            self._outward.opened(box, (), fresh=True) if fresh else _nothing(),
            return_exceptions=True,
        )
        if isinstance(listens, BaseException) and not isinstance(link, BaseException):
            await self._unready(slot, link)
        for result in (link, row, _ended_meanwhile(slot.box, listens)):
            if isinstance(result, BaseException):
                raise result
        assert not isinstance(link, BaseException)
        if not fresh:
            await self.listening(slot, box, link)
        return link

    async def listening(self, slot: Slot, box: Box, link: Link) -> None:
        """Of a box that ran before. A box is not called ready without its way out."""
        try:
            await self._outward.opened(box, slot.running() | slot.uses, fresh=False)
        except BaseException as error:
            await self._unready(slot, link)
            raise _ended_meanwhile(slot.box, error) from None

    async def _unready(self, slot: Slot, link: Link) -> None:
        """The next who needs the box begins anew."""
        slot.link = None
        await link.close()

    async def _kept(self, slot: Slot) -> Box:
        """NotFound: it is removed, and nothing is remembered of it."""
        try:
            box = await self._parts.store.boxes.get(slot.box)
            if box.desired is Desired.REMOVED:
                raise NotFound(f"no such box: {box.id!r}")
            step(box, Verb.START)
        except NotFound:
            self._links.drop(slot)
            raise
        return box

    async def _started(self, box: Box) -> dict[str, Any]:
        """The driver's record of the box's PID 1. The start and the write of the intent go at once, and both are done
        when this returns: nobody is told of a box that the store does not want running. A server that dies in between
        leaves a box that runs and a row that says otherwise; the next one stops it (`reconcile`). A write that fails
        takes the box down again."""
        if box.desired is Desired.RUNNING:
            return await self._parts.driver.start(box.id, box.limits, box.image_bound)
        identity, row = await asyncio.gather(
            self._parts.driver.start(box.id, box.limits, box.image_bound),
            self._parts.store.boxes.update(box.id, desired=Desired.RUNNING),
            return_exceptions=True,
        )
        if isinstance(identity, BaseException):
            raise identity
        if isinstance(row, BaseException):
            await self._parts.driver.stop(box.id)
            raise row
        found: dict[str, Any] = identity
        return found

    async def provisioned(self, box: Box) -> Box:
        """The box with ids and tree, made now if need be. No process is started."""
        if box.uid and box.observed is not Observed.ABSENT and box.rest is not Rest.ARCHIVED:
            return box
        slot = self._links.slot(box.id)
        async with slot.hold("its files are being made, or unpacked"):
            box = await self._parts.store.boxes.get(box.id)
            if box.uid and box.observed is not Observed.ABSENT:
                return await self.ready(box)
            uid = await self._parts.driver.provision(box.id, box.kind, box.limits)
            made = await self._parts.store.boxes.update(box.id, observed=Observed.STOPPED, uid=uid)
            await self._outward.provisioned(made)
            return made

    async def down(self, box: BoxId, desired: Desired) -> Box:
        """Every process of the box ended. Idempotent. Nothing is kept of one that is removed. Conflict: they have ended, and it is
        busy with something else."""
        slot = self._links.slot(box)
        if slot.lock.locked():  # dialling a guest that does not answer takes half a minute: without it, none
            with suppress(NotFound):
                await self._parts.driver.stop(box)
        if desired is Desired.REMOVED:  # whoever has it has a bound of his own, and a removal is not asked for again
            async with slot.lock:
                row = await self.down_locked(slot, desired)
            self._links.drop(slot)
            return row
        async with slot.hold("it is being stopped"):
            return await self.down_locked(slot, desired)

    async def evict(self, box: BoxId, why: str, due: Callable[[], bool] | None = None) -> bool:
        """Stops it, if it is `due` still once it has it; None: if it is idle. Not while somebody else has it under way: who waits
        here may have another box that they wait for."""
        slot = self._links.slot(box)
        if slot.lock.locked():
            return False
        async with slot.hold("it is being stopped"):
            if not (due() if due is not None else self._presence.idle(slot) is not None):
                return False
            await self.down_locked(slot, Desired.STOPPED)
        self._log.info("box %s was stopped: %s", box, why)
        return True

    async def down_locked(self, slot: Slot, desired: Desired) -> Box:
        """`down` for who has the slot's lock. Unavailable: its directory is missing, and what ran of it may run still."""
        store, box = self._parts.store, slot.box
        row = await store.boxes.update(box, desired=desired)
        link, slot.link = slot.link, None
        if link is not None and link.alive:
            await link.close()
        slot.paused = False
        slot.uses.discard(UNKNOWN_USE)
        self.admission.gone(box)
        if link is not None:
            await self.leaving(box)
        await self._outward.closed(box)
        try:
            await self._parts.driver.stop(box)
        except NotFound as error:
            if row.observed is not Observed.ABSENT and desired is not Desired.REMOVED:  # else it is as it should be
                self._lost(box)  # nobody has its wire any more
                raise Unavailable(MISSING, remedy=PUT_IT_BACK) from error
        try:
            if row.observed is not Observed.ABSENT:
                row = await store.boxes.update(box, observed=Observed.STOPPED)
        finally:  # it is down, whatever the store takes now
            self._lost(box)
        return row

    async def link_lost(self, box: BoxId) -> None:
        """The wire ended and no newer one is there. Dials again, or finds the box gone; returns when that is known."""
        slot = self._links.find(box)
        if slot is None or slot.paused:  # whoever resumes it dials
            return
        while slot.link is not None and not slot.link.alive:  # else closed by us, or replaced already
            flight = _under_way(slot) or self._fly(slot, self._redial(slot))
            try:
                await asyncio.shield(flight)
            except RingfenceError as error:
                self._log.info("box %s: %s", box, error)
                return
            # A wire that ended while its own flight was landing: nobody else will dial again.

    async def _redial(self, slot: Slot) -> Link:
        await self._dialling.calm(slot)
        async with slot.hold("its connection is being made anew"):
            if (link := slot.wire()) is not None:
                return link
            if slot.paused:  # whoever resumes it dials
                raise BoxLost(f"box {slot.box} was paused while it was needed", remedy="try again", box=slot.box)
            if slot.link is None:  # stopped, or found lost, meanwhile
                raise BoxLost(f"box {slot.box} was stopped while it was needed", remedy="try again", box=slot.box)
            if slot.breaks <= MOST_BREAKS and (link := await self._dialling.dialled(slot)) is not None:
                return link
            slot.breaks = 0
            await self.fell(slot)
            with suppress(RingfenceError):  # what answers nobody must not go on by itself, unseen
                await self._parts.driver.stop(slot.box)
        raise BoxLost(f"box {slot.box} ended while it was needed", remedy="try again: it is started anew", box=slot.box)

    async def fell(self, slot: Slot) -> None:
        """Whether or not the store takes it now: whoever waits for something in the box would wait for ever."""
        slot.link, slot.paused = None, False
        slot.uses.discard(UNKNOWN_USE)
        self.admission.gone(slot.box)
        await self._outward.closed(slot.box)
        try:
            await self._parts.store.boxes.update(slot.box, observed=Observed.LOST)
        except RingfenceError as error:
            self._log.error("box %s is lost, and the store does not have it: %s", slot.box, error)
        self._lost(slot.box)


async def _as_it_is(box: Box) -> Box:
    return box


def _ended_meanwhile(box: BoxId, error: T) -> T | BoxLost:
    """A driver refuses what it is asked of a box that does not run: whoever needs it is told that it was lost, and not a policy."""
    if not isinstance(error, Refused):
        return error
    return BoxLost(f"box {box} ended while it was needed: {error.message}", remedy="try again", box=box)


async def _nobody(box: BoxId) -> None:
    """Is told of it."""


async def _nothing() -> None:
    pass


def _under_way(slot: Slot) -> asyncio.Future[Link] | None:
    """Not one that has landed and whose callbacks have yet to run: to wait for that takes no time, so that who asks again
    and again for as long as it is there keeps the whole server from running them."""
    return slot.flight if slot.flight is not None and not slot.flight.done() else None
