"""The meter over a real store: once each, over restarts, failures, jumps of the wall clock; and who may see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ringfence.host.engine.life.usage import RESTING_SECONDS
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.boxes import BLOCK, DiskUse, Sight
from ringfence.host.kernel.errors import DiskFull, NotFound, Refused
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.usage import Amount, Batch, DayUse
from tests.support.engine_rig import OPERATOR, Rig, rig

GIB = 1 << 30
NOON = datetime(2026, 3, 15, 12, tzinfo=UTC)
DAY = "2026-03-15"


class Hand:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.wall, self.seconds = NOON, 1000.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def passes(self, seconds: float) -> None:
        self.wall, self.seconds = self.wall + timedelta(seconds=seconds), self.seconds + seconds


class Seen:
    """What the driver says of boxes beside what it says anyway."""

    def __init__(self, r: Rig) -> None:
        self.cpu: dict[BoxId, int] = {}
        self.frozen: set[BoxId] = set()
        self.looks = 0
        self._observe = r.driver.observe
        r.driver.observe = self.observe  # type: ignore[method-assign]

    async def observe(self, box: BoxId) -> Sight:
        self.looks += 1
        sight = await self._observe(box)
        running = sight.identity is not None
        use = DiskUse("image", 2 * GIB, BLOCK)
        memory, cpu = (GIB, self.cpu.get(box, 0)) if running else (0, 0)
        return replace(sight, memory_bytes=memory, cpu_usec=cpu, disk=use, frozen=box in self.frozen)


class Scene:
    def __init__(self, r: Rig, clock: Hand) -> None:
        self.rig, self.clock, self.seen = r, clock, Seen(r)
        self.alice = r.box("alice").id

    async def passes(self, seconds: float) -> None:
        self.clock.passes(seconds)
        await self.rig.engine._usage.write()

    async def days(self, name: str = "alice", last: str = "2099-01-01") -> list[DayUse]:
        user = self.rig.actors[name].user
        assert user is not None
        return await self.rig.store.usage.days(user.tenant, user.id, "0001-01-01", last, 1000)

    async def amount(self, name: str = "alice") -> Amount:
        return sum((each.amount for each in await self.days(name)), Amount())


@pytest.fixture
async def s(tmp_path: Path) -> AsyncIterator[Scene]:
    """With alice's box running, and counted until now."""
    clock = Hand()
    async with rig(tmp_path, parts={"clock": clock}, usage_seconds=1e9) as r:
        made = Scene(r, clock)
        await r.exec("alice", "exit 0")
        clock.passes(5)
        await r.engine._usage.write()
        yield made


async def test_what_a_running_box_uses(s: Scene) -> None:
    before = await s.amount()
    s.seen.cpu[s.alice] = 7_250_000
    await s.passes(30)
    used = await s.amount()
    assert used.running_ms - before.running_ms == 30_000
    assert used.cpu_ms - before.cpu_ms == 7_250
    assert used.memory_mib_ms - before.memory_mib_ms == 1024 * 30_000
    assert used.disk_mib_ms - before.disk_mib_ms == 2048 * 30_000
    assert used.active_ms == before.active_ms, "nothing was at work"


async def test_work_counts_while_it_lasts(s: Scene) -> None:
    before = await s.amount()
    said = await s.rig.say("alice", "wait")
    await s.rig.loop(said)
    await s.passes(30)
    assert (await s.amount()).active_ms - before.active_ms == 30_000
    await s.rig.engine.runs.cancel(s.rig.actors["alice"], said.run.id)
    await s.rig.ended(said.run.id)
    await s.passes(1)
    at_rest = (await s.amount()).active_ms
    await s.passes(30)
    assert (await s.amount()).active_ms == at_rest


async def test_a_server_that_starts_anew_goes_on_where_the_last_one_was(s: Scene) -> None:
    before = await s.amount()
    s.seen.cpu[s.alice] = 1_000_000
    await s.passes(30)

    async def down() -> None:
        s.clock.passes(600)
        s.seen.cpu[s.alice] = 4_000_000

    await s.rig.restart(down)
    await s.passes(30)
    used = await s.amount()
    assert used.cpu_ms - before.cpu_ms == 4_000
    assert used.running_ms - before.running_ms == 660_000


async def test_a_server_that_is_killed_counts_what_ran_and_nothing_twice(s: Scene) -> None:
    before = await s.amount()
    s.seen.cpu[s.alice] = 1_000_000
    await s.passes(30)
    s.rig.store.audit.traffic(s.alice, "a.test", "allow", 1, 0)
    s.clock.passes(20)

    async def not_written() -> None:
        """It is dead."""

    s.rig.engine._usage.write = not_written  # type: ignore[method-assign]
    s.seen.cpu[s.alice] = 2_000_000
    await s.rig.restart()
    await s.passes(10)
    await s.passes(30)
    used = await s.amount()
    assert used.cpu_ms - before.cpu_ms == 2_000
    assert used.running_ms - before.running_ms == 90_000


async def test_one_that_was_started_anew_counts_from_nothing(s: Scene) -> None:
    s.seen.cpu[s.alice] = 5_000_000
    await s.passes(30)
    before = await s.amount()
    await s.rig.engine.boxes.stop(s.rig.actors["alice"], "default", "alice")
    s.seen.cpu[s.alice] = 300_000
    await s.rig.exec("alice", "exit 0")
    s.clock.passes(10)
    await s.passes(0)
    used = await s.amount()
    assert used.cpu_ms - before.cpu_ms == 300
    assert 0 < used.running_ms - before.running_ms <= 10_000
    assert sum(each.starts for each in await s.days()) == 2, "by the store's clock, which goes on"


async def test_what_ran_is_counted_to_its_end_when_somebody_says_so(s: Scene) -> None:
    before = await s.amount()
    s.clock.passes(20)
    s.seen.cpu[s.alice] = 900_000
    await s.rig.engine._usage.look_at(s.alice)
    await s.rig.engine.boxes.stop(s.rig.actors["alice"], "default", "alice")
    await s.passes(10)
    used = await s.amount()
    assert (used.running_ms - before.running_ms, used.cpu_ms - before.cpu_ms) == (20_000, 900)


async def test_looks_at_once_count_once(s: Scene) -> None:
    before = await s.amount()
    s.clock.passes(20)
    s.seen.cpu[s.alice] = 900_000
    meter = s.rig.engine._usage
    await asyncio.gather(meter.look_at(s.alice), meter.write(), meter.look_at(s.alice), meter.write())
    await s.passes(0)
    used = await s.amount()
    assert (used.running_ms - before.running_ms, used.cpu_ms - before.cpu_ms) == (20_000, 900)


async def test_one_that_stands_still_does_not_run(s: Scene) -> None:
    before = await s.amount()
    s.seen.frozen.add(s.alice)
    await s.passes(30)
    used = await s.amount()
    assert used.running_ms == before.running_ms
    assert used.memory_mib_ms - before.memory_mib_ms == 1024 * 30_000


async def test_one_that_is_stopped_is_looked_at_once_an_hour(s: Scene) -> None:
    await s.rig.engine.boxes.stop(s.rig.actors["alice"], "default", "alice")
    before, looks = await s.amount(), s.seen.looks
    await s.passes(30)
    assert (s.seen.looks, await s.amount()) == (looks, before), "no look and no row"
    await s.passes(RESTING_SECONDS)
    used = await s.amount()
    assert used.disk_mib_ms - before.disk_mib_ms == 2048 * (RESTING_SECONDS + 30) * 1000
    assert used.running_ms == before.running_ms


async def test_what_went_out_is_filed_by_box(s: Scene) -> None:
    s.rig.store.audit.traffic(s.alice, "a.test", "allow", 10, 200)
    s.rig.store.audit.traffic(s.alice, "b.test", "allow", 1, 2)
    s.rig.store.audit.traffic(s.rig.box("bob").id, "a.test", "allow", 5, 6)
    await s.passes(1)
    await s.passes(1)
    found = [await s.amount(name) for name in ("alice", "bob")]
    assert [(each.egress_up, each.egress_down) for each in found] == [(11, 202), (5, 6)]


@pytest.mark.parametrize("committed", [False, True], ids=["not written", "written, and nobody heard it"])
async def test_what_could_not_be_written_is_written_with_the_next_and_once(s: Scene, committed: bool) -> None:
    before, usage = await s.amount(), s.rig.store.usage
    add = usage.add

    async def full(batch: Batch) -> None:
        if committed:
            await add(batch)
        raise DiskFull("no room")

    usage.add = full  # type: ignore[method-assign]
    for n in range(3):
        s.seen.cpu[s.alice] = (n + 1) * 1_000_000
        s.rig.store.audit.traffic(s.alice, "a.test", "allow", 10, 0)
        await s.passes(30)
    usage.add = add  # type: ignore[method-assign]
    await s.passes(30)
    used = await s.amount()
    assert used.running_ms - before.running_ms == 120_000
    assert (used.cpu_ms - before.cpu_ms, used.egress_up) == (3_000, 30)


@pytest.mark.parametrize("by", [timedelta(days=-400), timedelta(days=400), timedelta(days=-700_000)])
async def test_a_wall_clock_that_jumps_changes_no_amount(s: Scene, by: timedelta) -> None:
    before = await s.amount()
    s.clock.wall += by
    s.seen.cpu[s.alice] = 2_000_000
    await s.passes(30)
    s.clock.wall -= by
    await s.passes(30)
    used = await s.amount()
    assert used.running_ms - before.running_ms == 60_000
    assert used.cpu_ms - before.cpu_ms == 2_000
    assert all(min(each.amount.running_ms, each.amount.cpu_ms) >= 0 for each in await s.days())


async def test_midnight_splits(s: Scene) -> None:
    s.clock.wall = datetime(2026, 3, 15, 23, 59, 50, tzinfo=UTC)
    before = await s.amount()
    await s.passes(30)
    days = {each.day: each.amount.running_ms for each in await s.days()}
    assert (days[DAY] - before.running_ms, days["2026-03-16"]) == (10_000, 20_000)


async def test_a_driver_that_sees_nothing_ends_no_loop(s: Scene) -> None:
    async def gone(box: BoxId) -> Sight:
        raise NotFound(f"no such box: {box}")

    s.rig.driver.observe = gone  # type: ignore[method-assign]
    before = await s.amount()
    await s.passes(30)
    assert await s.amount() == before


# --- who may see it --------------------------------------------------------------------------------------------------


async def test_who_may_see_it(s: Scene) -> None:
    reports, alice, bob = s.rig.engine.usage, s.rig.actors["alice"], s.rig.actors["bob"]
    for actor in (alice, OPERATOR):
        report = await reports.user(actor, "default", "alice", None, None)
        assert [(each.day, each.name) for each in report.rows] == [(DAY, "alice")]
        assert (report.first, report.last) == ("2026-02-14", DAY)
    with pytest.raises(NotFound):
        await reports.user(bob, "default", "alice", None, None)
    whole = await reports.tenant(OPERATOR, "default", DAY, DAY)
    assert {each.name for each in whole.rows} == {"alice", "bob"}
    for tenant in ("default", "other"):
        with pytest.raises(Refused):
            await reports.tenant(alice, tenant, None, None)


async def test_looking_is_no_act_of_its_own(s: Scene) -> None:
    await s.rig.engine.usage.user(OPERATOR, "default", "alice", None, None)
    rows = await s.rig.store.audit.page({Lane.ACT}, None, None, 1000)
    assert not [row for row in rows if row["action"].startswith("usage")]
