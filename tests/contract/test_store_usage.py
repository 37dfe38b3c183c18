"""What boxes used, in both databases: added once, whoever asks again; by day, user and tenant; with tokens of models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import Box, BoxKind, Desired, Limits, Observed, Rest
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.usage import Amount, Batch, Gauge
from ringfence.host.kernel.models.granting import Expected, fit
from ringfence.host.kernel.models.ports import Call, Caller
from ringfence.host.kernel.models.usage import BudgetLimits, Prices, Usage
from ringfence.host.kernel.people import User, UserKind
from ringfence.host.kernel.retention import Keep
from tests.support.store import Team, a_team, opened

DAY, NEXT = "2026-01-01", "2026-01-02"
GAUGE = Gauge(1000, "boot:a", 5)


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def box_of(team: Team, user: User | None = None) -> Box:
    box = await team.store.boxes.home_of(user or team.alice, "fake", Limits())
    return await team.store.boxes.update(box.id, uid=5000, observed=Observed.RUNNING, identity={"pid": 1}, started=True)


def batch(name: str, box: BoxId, day: str = DAY, gauge: Gauge | None = GAUGE, **amounts: int) -> Batch:
    gauges = {} if gauge is None else {box: gauge}
    return Batch(name, {(day, box): Amount(**amounts)}, gauges)


async def test_amounts_of_a_day_add_up_and_a_batch_counts_once(team: Team) -> None:
    usage, box = team.store.usage, (await box_of(team)).id
    first = batch("use_1", box, cpu_ms=5, egress_up=7)
    await usage.add(first)
    await usage.add(first)
    await usage.add(batch("use_2", box, cpu_ms=10, active_ms=3))
    await usage.add(batch("use_3", box, day=NEXT, cpu_ms=100))
    [today, then] = await usage.days(team.tenant.id, team.alice.id, DAY, NEXT, 10)
    assert (today.day, today.name, today.amount) == (DAY, "alice", Amount(active_ms=3, cpu_ms=15, egress_up=7))
    assert (then.day, then.amount, then.starts) == (NEXT, Amount(cpu_ms=100), 0)


async def test_a_batch_of_nothing_but_bytes_counts_once_too(team: Team) -> None:
    usage, box, other = team.store.usage, (await box_of(team)).id, (await box_of(team, team.bob)).id
    await usage.add(batch("use_0", other, cpu_ms=1))
    only = Batch("use_1", {(DAY, box): Amount(egress_down=9), (DAY, other): Amount(egress_down=1)}, {})
    await usage.add(only)
    await usage.add(only)
    assert [each.amount.egress_down for each in await usage.days(team.tenant.id, None, DAY, DAY, 10)] == [9, 1]
    assert await usage.gauge(other) == GAUGE, "what it was counted to is as it was"


async def test_what_no_box_had_is_left_out(team: Team) -> None:
    await team.store.usage.add(batch("use_1", BoxId("b0nobody"), cpu_ms=1))
    assert await team.store.usage.days(team.tenant.id, None, DAY, DAY, 10) == []


async def test_gauges_are_those_of_the_last_batch(team: Team) -> None:
    usage, box = team.store.usage, await box_of(team)
    assert [(each.box.id, each.gauge) for each in await usage.looked_at(all_of_them=False)] == [(box.id, None)]
    await usage.add(batch("use_1", box.id, cpu_ms=1))
    await usage.add(batch("use_2", box.id, gauge=Gauge(2000, "boot:b", 9), cpu_ms=1))
    assert [each.gauge for each in await usage.looked_at(all_of_them=False)] == [Gauge(2000, "boot:b", 9)]
    await team.store.boxes.update(box.id, observed=Observed.STOPPED)
    assert await usage.looked_at(all_of_them=False) == []
    assert [each.box.id for each in await usage.looked_at(all_of_them=True)] == [box.id]


async def test_starts_and_pauses_are_counted_where_they_are_noted(team: Team) -> None:
    box = (await box_of(team)).id
    for rest in (Rest.PAUSED, Rest.PAUSED, Rest.NONE, Rest.PAUSED):
        await team.store.boxes.update(box, rest=rest)
    team.clock.pass_seconds(86_400)
    await team.store.boxes.update(box, observed=Observed.STOPPED)
    await team.store.boxes.update(box, observed=Observed.RUNNING, identity={"pid": 2}, started=True)
    rows = await team.store.usage.days(team.tenant.id, team.alice.id, DAY, NEXT, 10)
    assert [(each.day, each.starts, each.pauses) for each in rows] == [(DAY, 1, 2), (NEXT, 1, 0)]


async def test_tokens_are_those_of_calls_by_the_day_on_which_they_ended(team: Team) -> None:
    for n, (user, seconds) in enumerate(((team.alice, 0), (team.alice, 86_400), (team.bob, 0))):
        call = Call(f"mdl_{n}", Caller(team.tenant.id, user.id, None), "gpt", "openai", "krn")
        team.clock.pass_seconds(seconds)
        await team.store.model_usage.reserve(call, BudgetLimits(), lambda room: fit(Expected(9, 9), Prices(), room))
        await team.store.model_usage.settle(call.id, Usage(20, 30, 40, 5), 0, "done")
    await team.store.usage.add(batch("use_1", (await box_of(team)).id, cpu_ms=1))
    rows = await team.store.usage.days(team.tenant.id, None, DAY, NEXT, 10)
    assert [(each.day, each.name, each.tokens) for each in rows] == [
        (DAY, "alice", 95),
        (NEXT, "alice", 95),
        (NEXT, "bob", 95),
    ]
    assert [each.tokens for each in await team.store.usage.days(team.tenant.id, team.bob.id, DAY, NEXT, 10)] == [95]
    assert await team.store.usage.days(team.tenant.id, None, "0001-01-01", "0001-01-02", 10) == []
    assert len(await team.store.usage.days(team.tenant.id, None, "9999-12-30", "9999-12-31", 10)) == 0


async def test_who_is_removed_is_counted_under_the_name_of_then_and_apart_from_a_namesake(team: Team) -> None:
    usage, box = team.store.usage, await box_of(team)
    await usage.add(batch("use_1", box.id, cpu_ms=5))
    await team.store.users.remove(team.alice.id)
    await team.store.boxes.update(box.id, desired=Desired.REMOVED, observed=Observed.ABSENT)
    second = await team.store.users.add("default", "alice", UserKind.PERSON, None)
    await usage.add(batch("use_2", (await box_of(team, second)).id, cpu_ms=7))
    rows = await usage.days(team.tenant.id, None, DAY, DAY, 10)
    assert sorted((each.name, each.amount.cpu_ms) for each in rows) == [("alice", 5), ("alice", 7)]
    assert [each.amount.cpu_ms for each in await usage.days(team.tenant.id, second.id, DAY, DAY, 10)] == [7]
    other = await team.store.tenants.add("other")
    assert await usage.days(other.id, None, DAY, DAY, 10) == []


async def test_two_boxes_of_a_user_are_one_row(team: Team) -> None:
    home = (await box_of(team)).id
    run = (await team.store.boxes.add(team.alice, BoxKind.RUN, "fake", Limits())).id
    await team.store.usage.add(Batch("use_1", {(DAY, box): Amount(cpu_ms=5) for box in (home, run)}, {}))
    [row] = await team.store.usage.days(team.tenant.id, team.alice.id, DAY, DAY, 10)
    assert (row.amount.cpu_ms, row.starts) == (10, 1)


async def test_more_than_is_wanted_is_seen_by_one_row_more(team: Team) -> None:
    box = (await box_of(team)).id
    days = [f"2026-02-{n:02d}" for n in range(1, 11)]
    await team.store.usage.add(Batch("use_1", {(day, box): Amount(cpu_ms=1) for day in days}, {}))
    rows = await team.store.usage.days(team.tenant.id, None, days[0], days[-1], 3)
    assert [each.day for each in rows] == days[:4]


async def test_old_days_are_taken_away_in_batches(team: Team) -> None:
    box = (await box_of(team)).id
    team.clock.pass_seconds(timedelta(days=10).total_seconds())
    days = [f"2026-01-{n:02d}" for n in range(2, 12)]
    await team.store.usage.add(Batch("use_1", {(day, box): Amount(cpu_ms=1) for day in days}, {}))
    assert (await team.store.retention.sweep(Keep(usage_days=3)))["usage"] == 7, "the first is that of its start"
    left = await team.store.usage.days(team.tenant.id, None, DAY, "2026-12-31", 100)
    assert [each.day for each in left] == days[-4:]
    assert "usage" not in await team.store.retention.sweep(Keep(usage_days=0))


async def test_it_is_there_after_the_store_was_opened_anew(tmp_path: Path) -> None:
    async with a_team(tmp_path) as team:
        box = (await box_of(team)).id
        await team.store.usage.add(batch("use_1", box, cpu_ms=5))
    async with opened(tmp_path, first=10_000) as store:
        await store.usage.add(batch("use_1", box, cpu_ms=5))
        [row] = await store.usage.days(team.tenant.id, None, DAY, DAY, 10)
        assert row.amount.cpu_ms == 5
