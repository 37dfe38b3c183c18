"""Boxes up and down: the one way to a running box with a wire.

`ensure` is single flight: whoever needs a box meets the start that is under way (E84). A wire that is lost is dialled
again at once while the box runs; a box that is gone is observed and started again by the next `ensure`, once (E83).
Nothing here decides who may: callers have authorised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.outward import Outward
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, Desired, Observed
from ringfence.host.kernel.errors import BoxLost, NotFound, RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import Link, Sight

REDIALS = 3  # of a lost wire, at once, while the driver still sees the box running
_REDIAL_PAUSE = 0.05  # seconds, times the number of failures so far
STEADY_SECONDS = 10.0  # a wire that lived this long was a good one
# Wires in a row that did not: 0 + 0 + 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 2 s of pauses, then the box is lost. A guest that
# breaks a rule with each hello would otherwise be dialled 400 times a second, for ever.
MOST_BREAKS = 8


class BringUp:
    def __init__(
        self, parts: Parts, crew: Crew, links: Links, lost: Callable[[BoxId], None], outward: Outward | None = None
    ) -> None:
        """`lost`: told that a box is found gone, before anything starts it again; under the box's lock, so it waits for
        nothing."""
        self._parts, self._crew, self._links, self._lost = parts, crew, links, lost
        self._outward = outward or Outward(parts)
        self._log = logging.getLogger("ringfence.engine")

    async def ensure(self, box: BoxId) -> Link:
        """A live wire to the running box. BoxLost: it ended twice while it was started. Unavailable, DiskFull."""
        slot = self._links.slot(box)
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
        async with slot.lock:
            if (link := slot.wire()) is not None:
                return link
            try:
                return await self._up(slot)
            except BoxLost as error:
                self._log.warning("box %s was lost while it was started: %s; once more", slot.box, error)
            await self._fell(slot)
            await self._parts.driver.stop(slot.box)  # whatever is left of it answers nobody
            try:
                return await self._up(slot)
            except BoxLost as error:
                await self._fell(slot)
                with suppress(RingfenceError):  # it answers nobody and would only use up the host
                    await self._parts.driver.stop(slot.box)
                raise BoxLost(
                    f"box {slot.box} ended twice while it was started: {error.message}",
                    remedy=error.remedy or "ringfence status",
                    box=slot.box,
                ) from error

    async def _up(self, slot: Slot) -> Link:
        store, driver = self._parts.store, self._parts.driver
        box = await self._kept(slot)
        uid = box.uid or await driver.provision(box.id, box.kind, box.limits)
        await self._outward.before(box)
        identity = await self._started(box)
        fresh = identity != box.identity
        if fresh:
            slot.kills.reset(self._parts.clock.monotonic())
            slot.full = None
        # The row and the dial at once: should the row be lost, a restart finds the box by the driver's list.
        link, row, listens = await asyncio.gather(
            self._links.connect(slot, identity),
            store.boxes.update(box.id, observed=Observed.RUNNING, uid=uid, identity=identity, started=fresh),
            self._outward.opened(box, (), fresh=True) if fresh else _nothing(),
            return_exceptions=True,
        )
        if isinstance(listens, BaseException) and not isinstance(link, BaseException):
            await self._unready(slot, link)
        for result in (link, row, listens):
            if isinstance(result, BaseException):
                raise result
        assert not isinstance(link, BaseException)
        if not fresh:
            await self._listening(slot, box, link)
        return link

    async def _listening(self, slot: Slot, box: Box, link: Link) -> None:
        """Of a box that ran before. A box is not called ready without its way out."""
        try:
            await self._outward.opened(box, slot.running(), fresh=False)
        except BaseException:
            await self._unready(slot, link)
            raise

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
            return await self._parts.driver.start(box.id, box.limits)
        identity, row = await asyncio.gather(
            self._parts.driver.start(box.id, box.limits),
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
        if box.uid and box.observed is not Observed.ABSENT:
            return box
        slot = self._links.slot(box.id)
        async with slot.lock:
            box = await self._parts.store.boxes.get(box.id)
            if box.uid and box.observed is not Observed.ABSENT:
                return box
            uid = await self._parts.driver.provision(box.id, box.kind, box.limits)
            made = await self._parts.store.boxes.update(box.id, observed=Observed.STOPPED, uid=uid)
            await self._outward.provisioned(made)
            return made

    async def down(self, box: BoxId, desired: Desired) -> Box:
        """Every process of the box ended. Idempotent. Nothing is kept of one that is removed."""
        slot = self._links.slot(box)
        if slot.lock.locked():  # dialling a guest that does not answer takes half a minute: without it, none
            with suppress(NotFound):
                await self._parts.driver.stop(box)
        async with slot.lock:
            store = self._parts.store
            row = await store.boxes.update(box, desired=desired)
            link, slot.link = slot.link, None
            if link is not None and link.alive:
                await link.close()
            await self._outward.closed(box)
            with suppress(NotFound):  # never provisioned
                await self._parts.driver.stop(box)
            try:
                if row.observed is not Observed.ABSENT:
                    row = await store.boxes.update(box, observed=Observed.STOPPED)
            finally:  # it is down, whatever the store takes now
                self._lost(box)
        if desired is Desired.REMOVED:
            self._links.drop(slot)
        return row

    async def link_lost(self, box: BoxId) -> None:
        """The wire ended and no newer one is there. Dials again, or finds the box gone; returns when that is known."""
        slot = self._links.find(box)
        if slot is None:
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
        await self._calm(slot)
        async with slot.lock:
            if (link := slot.wire()) is not None:
                return link
            if slot.breaks <= MOST_BREAKS and (link := await self._dialled(slot)) is not None:
                return link
            slot.breaks = 0
            await self._fell(slot)
        raise BoxLost(f"box {slot.box} ended while it was needed", remedy="try again: it is started anew", box=slot.box)

    async def _calm(self, slot: Slot) -> None:
        """Counts wires that end as soon as they are made, and waits before the next one. Without the lock: a stop is
        not to wait for this."""
        lived = self._parts.clock.monotonic() - slot.dialled_at
        slot.breaks = slot.breaks + 1 if lived < STEADY_SECONDS else 1
        if 2 < slot.breaks <= MOST_BREAKS:
            await asyncio.sleep(min(2.0, 0.1 * 2 ** (slot.breaks - 3)))
        elif slot.breaks > MOST_BREAKS:
            self._log.warning("box %s: %d wires in a row were broken at once: given up", slot.box, slot.breaks)

    async def _dialled(self, slot: Slot) -> Link | None:
        """None: it does not run, or does not answer."""
        for failures in range(1, REDIALS + 1):
            sight = await self._parts.driver.observe(slot.box)
            if sight.state is not Observed.RUNNING or sight.identity is None:
                return None
            try:
                return await self._links.connect(slot, sight.identity)
            except BoxLost as error:
                self._log.warning("box %s runs and does not answer (%d): %s", slot.box, failures, error)
                await asyncio.sleep(_REDIAL_PAUSE * failures)
        return None

    async def _fell(self, slot: Slot) -> None:
        """Whether or not the store takes it now: whoever waits for something in the box would wait for ever."""
        slot.link = None
        await self._outward.closed(slot.box)
        try:
            await self._parts.store.boxes.update(slot.box, observed=Observed.LOST)
        except RingfenceError as error:
            self._log.error("box %s is lost, and the store does not have it: %s", slot.box, error)
        self._lost(slot.box)

    async def adopt(self, box: Box, sight: Sight) -> bool:
        """A box that ran before this server did: its wire, without starting anything. False: it does not answer."""
        slot = self._links.slot(box.id)
        async with slot.lock:
            if slot.wire() is not None:
                return True
            if sight.identity is None:
                return False
            slot.kills.reset(self._parts.clock.monotonic(), sight.oom_kills)
            try:
                await self._links.connect(slot, sight.identity)
            except BoxLost as error:
                self._log.warning("box %s was not adopted: %s", box.id, error)
                await self._fell(slot)
                return False
            if box.identity != sight.identity or box.observed is not Observed.RUNNING:
                await self._parts.store.boxes.update(
                    box.id,
                    observed=Observed.RUNNING,
                    uid=sight.uid,
                    identity=sight.identity,
                    started=box.identity != sight.identity,
                )
            if (link := slot.wire()) is not None:
                await self._listening(slot, box, link)
            return True


async def _nothing() -> None:
    pass


def _under_way(slot: Slot) -> asyncio.Future[Link] | None:
    """Not one that has landed and whose callbacks have yet to run: to wait for that takes no time, so that who asks again
    and again for as long as it is there keeps the whole server from running them."""
    return slot.flight if slot.flight is not None and not slot.flight.done() else None
