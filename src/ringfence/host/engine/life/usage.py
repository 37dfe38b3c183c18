"""The meter: what each box of this server uses, counted every `usage_seconds` and written in one transaction; and who may see it.

Whether a box is at work is asked each second in memory; the rest comes from one look of the driver at each box that runs, and once
an hour at those that do not, whose trees take room. A server that is killed loses what was at work since the last write: the
rest goes on from the gauges in the store. It must never be in anybody's way: what cannot be written waits, and is written with the
next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ringfence.host.engine.disk import DiskMeter
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.homes import is_here
from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.boxes import Box, Observed, Sight
from ringfence.host.kernel.canonical import sha256_json
from ringfence.host.kernel.errors import RingfenceError, TooLarge
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.life.usage import (
    MOST_ROWS,
    Amount,
    Batch,
    DayUse,
    Gauge,
    Look,
    by_day,
    counted,
    span,
)
from ringfence.host.kernel.people import Actor

TICK_SECONDS = 1.0  # to which it is known how long a box was at work
RESTING_SECONDS = 3600.0  # between two looks at all boxes
WALK_SECONDS = 600.0  # between two walks of a tree that nothing else can tell the size of
_NOTHING = Amount()


@dataclass(slots=True)
class _Sum:
    """What is to be written. One that was tried stays as it is: the store may have it, though nobody heard that."""

    id: str
    amounts: dict[tuple[str, BoxId], Amount] = field(default_factory=dict)
    gauges: dict[BoxId, Gauge] = field(default_factory=dict)
    tried: bool = False

    def add(self, day: str, box: BoxId, amount: Amount) -> None:
        if amount:
            self.amounts[day, box] = self.amounts.get((day, box), _NOTHING) + amount


class UsageMeter:
    def __init__(self, parts: Parts, links: Links, at_work: Callable[[Slot], object], disk: DiskMeter) -> None:
        """`at_work`: whether a command, terminal or run is."""
        self._parts, self._links, self._at_work, self._disk = parts, links, at_work, disk
        self._sums: list[_Sum] = []  # of two at most the first was tried
        self._gauges: dict[BoxId, Gauge] = {}  # of this server's boxes, written or not: nobody else counts them
        self._walked: dict[BoxId, tuple[float, int]] = {}  # monotonic, bytes: of trees that only a walk can tell of
        self._active: dict[BoxId, int] = {}  # ms
        self._ticked = self._looked = parts.clock.monotonic()
        self._looked_at_all: float | None = None
        self._turn = asyncio.Lock()
        self._trouble = ""
        self._log = logging.getLogger("ringfence.engine")

    async def loop(self) -> None:
        while True:
            await asyncio.sleep(min(TICK_SECONDS, self._parts.config.usage_seconds))
            self.tick()
            if self._parts.clock.monotonic() - self._looked >= self._parts.config.usage_seconds:
                await self.write()

    def tick(self) -> None:
        """A second in which something was at work counts as a whole one."""
        now = self._parts.clock.monotonic()
        passed, since = round(max(0.0, now - self._ticked) * 1000), self._ticked
        self._ticked = now
        for slot in self._links:
            if slot.active_at > since or self._at_work(slot):
                up = passed if not slot.started_at else min(passed, round(max(0.0, now - slot.started_at) * 1000))
                self._active[slot.box] = self._active.get(slot.box, 0) + up

    async def write(self) -> None:
        """Counts, and writes what there is. Never raises: what went wrong is logged once."""
        async with self._turn:
            self.tick()
            try:
                await self._count()
                await self._flush()
            except RingfenceError as error:
                if self._trouble != error.message:
                    self._log.warning("what boxes use is not written, and will be with the next: %s", error)
                self._trouble = error.message
            else:
                self._trouble = ""

    async def look_at(self, box: BoxId) -> None:
        """To be called right before a box is stopped or frozen and right after it was thawed: it is counted until then, and
        written with the others. Never raises, and waits for no round of all boxes."""
        try:
            gauge = self._gauges.get(box) or await self._parts.store.usage.gauge(box)
            await self._look(box, gauge, self._passed())
        except RingfenceError as error:
            self._log.debug("box %s is not counted to its end: %s", box, error)

    # --- counting --------------------------------------------------------------------------------------------------

    def _passed(self) -> int:
        """ms since the last look at all that run."""
        return round(max(0.0, self._parts.clock.monotonic() - self._looked) * 1000)

    async def _count(self) -> None:
        now = self._parts.clock.monotonic()
        everything = self._looked_at_all is None or now - self._looked_at_all >= RESTING_SECONDS
        rows = await self._parts.store.usage.looked_at(all_of_them=everything)
        passed, self._looked = self._passed(), now
        for each in rows:
            if is_here(self._parts, each.box):
                await self._look(each.box.id, each.gauge, passed, walk=each.box)
        if everything:
            self._looked_at_all = now
            there = {each.box.id for each in rows}
            self._gauges = {box: gauge for box, gauge in self._gauges.items() if box in there}
            self._walked = {box: walked for box, walked in self._walked.items() if box in there}
        self._gather()

    async def _look(self, box: BoxId, before: Gauge | None, passed: int, *, walk: Box | None = None) -> None:
        """From what the driver said on, nothing waits: two looks at one box count from one another. `before`: by the store. `walk`:
        the box, whose tree may be walked for its size."""
        try:
            sight = await self._parts.driver.observe(box)
            used = await self._disk_of(box, sight, walk)
        except RingfenceError as error:
            self._log.debug("box %s is not counted: %s", box, error)
            return
        at = round(self._parts.clock.monotonic() * 1000)
        look = Look(at, self._mark(sight), sight.frozen, sight.cpu_usec, sight.memory_bytes, used)
        slot = self._links.find(box)
        most = passed if slot is None or not slot.started_at else min(passed, at - round(slot.started_at * 1000))
        amount, gauge, over = counted(self._gauges.get(box) or before, look, max(0, most))
        self._put(box, amount, over)
        self._gauges[box] = self._sum().gauges[box] = gauge

    async def _disk_of(self, box: BoxId, sight: Sight, walk: Box | None) -> int:
        """Bytes. A tree that is only counted is walked once in a while; one that is not known counts as it was."""
        if sight.disk is not None and sight.disk.known:
            return sight.disk.used
        at, used = self._walked.get(box, (-WALK_SECONDS, 0))
        if walk is not None and self._parts.clock.monotonic() - at >= WALK_SECONDS:
            use = await self._disk.use(walk, sight, fresh=False)
            used = use.used if use is not None and use.known else used
            self._walked[box] = (self._parts.clock.monotonic(), used)
        return used

    def _mark(self, sight: Sight) -> str:
        boot = str(self._parts.facts.get("boot_id", ""))
        if sight.state is not Observed.RUNNING or sight.identity is None:
            return f"{boot}:"
        return f"{boot}:{sha256_json(sight.identity)[:32]}"

    def _gather(self) -> None:
        """What was counted in memory since the last time."""
        passed = self._passed() or round(self._parts.config.usage_seconds * 1000)
        active, self._active = self._active, {}
        for box, ms in active.items():
            self._put(box, Amount(active_ms=ms), ms)
        for name, (up, down) in self._parts.store.audit.carried().items():
            self._put(BoxId(name), Amount(egress_up=up, egress_down=down), passed)

    def _put(self, box: BoxId, amount: Amount, passed: int) -> None:
        for day, part in by_day(amount, passed, self._parts.clock.now()).items():
            self._sum().add(day, box, part)

    def _sum(self) -> _Sum:
        """The one that more may be added to."""
        if not self._sums or self._sums[-1].tried:
            self._sums.append(_Sum(self._parts.ids.new("use")))
        return self._sums[-1]

    async def _flush(self) -> None:
        while self._sums:
            first = self._sums[0]
            first.tried = True
            await self._parts.store.usage.add(Batch(first.id, first.amounts, first.gauges))
            del self._sums[0]


@dataclass(frozen=True, slots=True)
class Report:
    """Days from `first` to `last`, both included."""

    tenant: str
    first: str
    last: str
    rows: list[DayUse]


class UsageReports:
    """Who may see what was used."""

    def __init__(self, parts: Parts, doors: Doors) -> None:
        self._parts, self._doors = parts, doors

    async def user(self, actor: Actor, tenant: str, user: str, first: str | None, last: str | None) -> Report:
        target = await self._doors.user(Action.USAGE_SEE, actor, tenant, user)
        return await self._report(tenant, target.tenant, target.id, first, last)

    async def tenant(self, actor: Actor, tenant: str, first: str | None, last: str | None) -> Report:
        """Of every user of then, also of those who are removed. Refused, but to operators."""
        found = await self._doors.tenant(Action.USAGE_ALL, actor, tenant)
        return await self._report(tenant, found.id, None, first, last)

    async def _report(
        self, name: str, tenant: TenantId, user: UserId | None, first: str | None, last: str | None
    ) -> Report:
        begin, end = span(first, last, self._parts.clock.now().date())
        rows = await self._parts.store.usage.days(tenant, user, begin, end, MOST_ROWS)
        if len(rows) > MOST_ROWS:
            raise TooLarge(
                f"more than {MOST_ROWS} rows from {begin} to {end}", remedy="ask for fewer days: --from DAY --to DAY"
            )
        return Report(name, begin, end, rows)
