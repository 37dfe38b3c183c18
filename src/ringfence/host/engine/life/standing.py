"""A box that nothing moves in for as long as its tree is read: frozen, stopped, or stopped for it where the host cannot freeze.

As a pause that nobody asked for, and that ends by itself: time-outs of commands stand still too. A server that dies meanwhile
leaves a frozen box, which the next one lets go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.crew import Crew, uncut
from ringfence.host.engine.life.presence import Presence
from ringfence.host.engine.links import Slot
from ringfence.host.engine.outward import Outward
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, Desired, Observed
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.logs import Source
from ringfence.host.kernel.life.states import Verb, step

ENTERED_SECONDS = 60.0  # for commands that are being begun; each takes a ms
MAX_DRAIN = 86_400.0  # seconds
LOOK = 0.1  # seconds between two looks at whether it is at work still
END_IT = "wait (--drain SECONDS), or end it: --force"
AGAIN_SECONDS = (0.1, 1.0, 5.0, 20.0)  # after which the end of a verb that could not be written is written again


class Standing:
    def __init__(self, parts: Parts, crew: Crew, bringup: BringUp, presence: Presence, outward: Outward) -> None:
        self._parts, self._crew, self._bringup = parts, crew, bringup
        self._presence, self._outward = presence, outward
        self._log = logging.getLogger("ringfence.engine")

    @asynccontextmanager
    async def under(self, box: Box, verb: Verb, *, generation: int | None = None) -> AsyncIterator[None]:
        """The verb is under way with the box, from now on for as long as the table gives it. Conflict: another one is, or it is in no
        state for this one. Refused: quarantine. What became of it is told, whether or not its end can be written."""
        found = step(box, verb, generation=generation)
        await self._parts.store.boxes.begin(box.id, verb.value, found.seconds)
        self._parts.logs.tell(box.id, Source.LIFE, f"{verb.value} begins")
        try:
            yield
        except BaseException as error:
            self._parts.logs.tell(box.id, Source.LIFE, f"{verb.value} failed: {error or type(error).__name__}")
            raise
        else:
            self._parts.logs.tell(box.id, Source.LIFE, f"{verb.value} is done")
        finally:
            await uncut(self._over(box.id, verb))

    async def _over(self, box: BoxId, verb: Verb) -> None:
        try:
            await self._parts.store.boxes.end(box, verb.value)
        except RingfenceError as error:
            self._log.error("box %s: that %s is over is not written yet: %s", box, verb.value, error)
            with suppress(Unavailable):  # the server stops, and the next one ends what it finds under way
                self._crew.go(self._over_later(box, verb), f"end of {verb.value} of {box}")

    async def _over_later(self, box: BoxId, verb: Verb) -> None:
        """Nothing else begins with the box before that is written, or the verb's time is over."""
        for pause in AGAIN_SECONDS:
            await asyncio.sleep(pause)
            try:
                await self._parts.store.boxes.end(box, verb.value)
                return
            except RingfenceError as error:
                self._log.error("box %s: that %s is over cannot be written: %s", box, verb.value, error)

    @asynccontextmanager
    async def still(self, box: Box, *, force: bool) -> AsyncIterator[None]:
        """Nothing of the box moves within, and nobody starts it. Conflict: it would have to be stopped for that, is at work, and is
        not forced; or something else is being done with it. NotFound."""
        slot = self._bringup.slot(box.id)
        async with slot.hold("its files are being read"):
            await self._parts.store.boxes.get(box.id)
            sight = await self._parts.driver.observe(box.id)
            if sight.state is not Observed.RUNNING or sight.frozen:
                yield
                return
            try:
                async with self.frozen(slot):
                    yield
                return
            except CannotFreeze:
                pass
            if not force:
                self.check_idle(slot)
            await self._bringup.down_locked(slot, Desired.STOPPED)
            yield

    @asynccontextmanager
    async def down(
        self,
        box: Box,
        verb: Verb,
        *,
        force: bool,
        drain: float = 0.0,
        generation: int | None = None,
        source: Box | None = None,
    ) -> AsyncIterator[Slot]:
        """The verb is under way, no process of the box is left within, and nobody starts it; it is left stopped. `source`: another box
        whose tree is read within. Both are as they were, and free for others, for as long as it drains. Conflict: it is at work, after
        `drain` seconds still, and is not forced; or another verb is under way with either. Invalid. Refused, NotFound: it was put into
        quarantine, or removed, meanwhile."""
        check_drain(drain)
        slot, until = self._bringup.slot(box.id), self._parts.clock.monotonic() + drain
        step(box, verb, generation=generation)
        while True:
            if not force:
                await self._drained(slot, until)
                self.check_idle(slot, drain)
            async with self._both(box, verb, generation, source), slot.hold(f"{verb.value} is under way"):
                row = await self._parts.store.boxes.get(box.id)
                if row.desired is Desired.REMOVED:
                    raise NotFound(f"no such box: {box.id!r}")
                step(row, verb, generation=generation)
                if not force and self._presence.at_work(slot) and self._parts.clock.monotonic() < until:
                    continue  # something began in between: that is waited for too
                if not force:
                    self.check_idle(slot, drain)
                await self._bringup.down_locked(slot, Desired.STOPPED)
                yield slot
                return

    async def _drained(self, slot: Slot, until: float) -> None:
        while self._presence.at_work(slot):
            if self._parts.clock.monotonic() >= until:
                return
            await asyncio.sleep(LOOK)

    @asynccontextmanager
    async def _both(self, box: Box, verb: Verb, generation: int | None, source: Box | None) -> AsyncIterator[None]:
        """In the order of their ids: of two that cross, one goes on."""
        async with AsyncExitStack() as stack:
            wanted = [(box, verb, generation)]
            if source is not None:
                wanted.append((source, Verb.SNAPSHOT, None))
            for one, what, of in sorted(wanted, key=lambda each: each[0].id):
                await stack.enter_async_context(self.under(one, what, generation=of))
            yield

    def check_idle(self, slot: Slot, waited: float = 0.0) -> None:
        """Conflict, which names what is at work."""
        if work := self._presence.at_work(slot):
            still = f"still at work after {waited:.0f} s" if waited else "at work"
            raise Conflict(f"the box is {still}: {work}", remedy=END_IT, work=work)

    @asynccontextmanager
    async def frozen(self, slot: Slot) -> AsyncIterator[None]:
        """For who has the slot's lock, of a box that runs. CannotFreeze. Conflict: a command that is being begun in it keeps it."""
        slot.paused, slot.paused_at = True, None  # whoever wants to begin something waits for the lock
        try:
            await entered(slot, ENTERED_SECONDS)
            slot.paused_at = self._parts.clock.monotonic()
            if slot.link is not None:
                slot.link.paused()
            await self._outward.paused(slot.box)
            try:
                await self._parts.driver.freeze(slot.box)
            except Unavailable as error:
                raise CannotFreeze(error.message, remedy=error.remedy) from error
            yield
        finally:
            try:
                await self._crew.whole(self._goes_on(slot), f"box {slot.box} goes on")
            except Unavailable:  # the server stops, and boxes go on without it
                await uncut(self._goes_on(slot))

    async def _goes_on(self, slot: Slot) -> None:
        try:
            row = await self._parts.store.boxes.get(slot.box)
        except RingfenceError as error:
            self._log.error("box %s after its tree was read: %s", slot.box, error)
            row = None
        await self._bringup.goes_on(slot, row)


def check_drain(drain: float) -> None:
    if not 0 <= drain <= MAX_DRAIN:  # NaN is neither
        raise Invalid(f"a wait of {drain!r} seconds is not allowed", remedy=f"0 to {MAX_DRAIN:.0f}")


async def entered(slot: Slot, seconds: float) -> None:
    """No command is being begun any more. Conflict."""
    try:
        async with asyncio.timeout(seconds):
            while slot.entering:
                await slot.entered.wait()
    except TimeoutError:
        raise Conflict("a command of the box is being begun and does not come about", remedy="try again") from None


class CannotFreeze(Unavailable):
    """Nothing was changed."""
