"""Reservations on both databases: never more than there is, whoever asks beside, and counted until somebody knows better."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Exhausted, Refused
from ringfence.host.kernel.ids import RunId, UserId
from ringfence.host.kernel.models.granting import Expected, fit
from ringfence.host.kernel.models.ports import Call, Caller
from ringfence.host.kernel.models.usage import Amount, BudgetLimits, Prices, Usage
from ringfence.host.kernel.retention import Keep
from ringfence.host.kernel.runs import RunState
from ringfence.host.store.store import SqlStore
from tests.support.store import Team, a_team, opened

WORKER = "krn_here"


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


def call(team: Team, n: int, user: UserId | None = None, run: RunId | None = None, worker: str = WORKER) -> Call:
    caller = Caller(team.tenant.id, user or team.alice.id, run)
    return Call(f"mdl_{n}", caller, "gpt", "openai", worker)


async def take(
    store: SqlStore, one: Call, tokens: int, limits: BudgetLimits, prices: Prices | None = None, output: int = 0
) -> Amount:
    expected = Expected(tokens, output)
    return await store.model_usage.reserve(one, limits, lambda room: fit(expected, prices or Prices(), room))


def period(team: Team, limits: BudgetLimits) -> str:
    return limits.period_of(team.clock.now())


async def test_what_is_used_takes_the_place_of_what_was_reserved(team: Team) -> None:
    run, limits = await team.running(), BudgetLimits(user_tokens=1000, run_tokens=600)
    assert await take(team.store, call(team, 1, run=run.id), 500, limits) == Amount(500, 0)
    usage = team.store.model_usage
    spent = await usage.of_run(run.id)
    assert (spent.calls, spent.usage, spent.reserved) == (1, Usage(), Amount(500, 0))
    assert await usage.settle("mdl_1", Usage(20, 30, 40, 5), 17, "done")
    assert not await usage.settle("mdl_1", Usage(1), 1, "done"), "once"
    for spent in (await usage.of_run(run.id), await usage.of_user(team.alice.id, period(team, limits))):
        assert (spent.usage, spent.micros, spent.reserved) == (Usage(20, 30, 40, 5), 17, Amount())
    with pytest.raises(Exhausted, match=r"the run's: 95 of 600 tokens"):
        await take(team.store, call(team, 2, run=run.id), 506, limits)
    assert await take(team.store, call(team, 3, run=run.id), 505, limits) == Amount(505, 0)
    with pytest.raises(Exhausted, match=r"the user's of .*: 600 of 1000 tokens"):
        await take(team.store, call(team, 4), 401, limits)
    assert await take(team.store, call(team, 5), 400, limits) == Amount(400, 0), "of no run, but the user's"
    assert await take(team.store, call(team, 6, team.bob.id), 1000, limits) == Amount(1000, 0), "another user's"


async def test_calls_beside_each_other_never_get_the_same_room(team: Team) -> None:
    limits = BudgetLimits(user_tokens=1000)
    tries = [take(team.store, call(team, n), 100, limits) for n in range(50)]
    given = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(each, Amount) for each in given) == 10
    assert sum(isinstance(each, Exhausted) for each in given) == 40
    assert (await team.store.model_usage.of_user(team.alice.id, period(team, limits))).reserved == Amount(1000, 0)


@pytest.mark.postgresql
async def test_two_kernels_never_give_the_same_room(tmp_path: Path) -> None:
    limits = BudgetLimits(user_tokens=1000)
    async with a_team(tmp_path) as team, opened(tmp_path, team.clock, 5000) as other:
        for turn in range(3):  # from nothing, too: the row of the sum is made once
            tries = [
                take((team.store, other)[n % 2], call(team, turn * 100 + n, worker=f"krn_{n % 2}"), 40, limits)
                for n in range(30)
            ]
            given = await asyncio.gather(*tries, return_exceptions=True)
            assert all(isinstance(each, Amount | Exhausted) for each in given), given
        spent = await other.model_usage.of_user(team.alice.id, period(team, limits))
        assert (spent.calls, spent.reserved) == (25, Amount(1000, 0))


async def test_money_is_held_too_and_what_is_left_is_given(team: Team) -> None:
    limits, prices = BudgetLimits(user_money=10_000), Prices(input=3000, output=15_000)
    given = await take(team.store, call(team, 1), 1000, limits, prices, output=400)
    assert given == Amount(1400, 9000), "3 and 15 micros a token"
    with pytest.raises(Exhausted):
        await take(team.store, call(team, 2), 100, limits, prices, output=400)
    await team.store.model_usage.settle("mdl_1", Usage(1000, 100), 4500, "done")
    given = await take(team.store, call(team, 3), 100, limits, prices, output=4000)
    assert given == Amount(100 + 346, 5490), "of 5500 that are left: (5500 - 300) / 15"


async def test_a_period_begins_anew_and_an_old_call_is_settled_in_its_own(team: Team) -> None:
    limits = BudgetLimits(period="day", user_tokens=100)
    first = period(team, limits)
    await take(team.store, call(team, 1), 100, limits)
    team.clock.jump(timedelta(days=1))
    await take(team.store, call(team, 2), 60, limits)
    await team.store.model_usage.settle("mdl_1", Usage(7), 0, "done")
    usage = team.store.model_usage
    assert (await usage.of_user(team.alice.id, first)).usage.tokens == 7
    assert (await usage.of_user(team.alice.id, period(team, limits))).reserved.tokens == 60
    team.clock.jump(timedelta(days=-1))
    with pytest.raises(Exhausted):  # a clock that is turned back opens no period again
        await take(team.store, call(team, 3), 60, limits)


async def test_whose_run_and_user_it_is(team: Team) -> None:
    run, limits = await team.running(), BudgetLimits()
    with pytest.raises(Refused):
        await take(team.store, call(team, 1, team.bob.id, run.id), 1, limits)
    with pytest.raises(Refused):
        await take(team.store, call(team, 2, UserId("usr_x")), 1, limits)
    await take(team.store, call(team, 3, run=run.id), 1, limits)
    await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", "done")
    with pytest.raises(Refused, match="has ended"):
        await take(team.store, call(team, 4, run=run.id), 1, limits)
    assert (await team.store.model_usage.of_run(run.id)).calls == 1


async def test_what_nobody_settles_stays_counted_at_its_most(team: Team) -> None:
    """A kernel that was killed has said nothing, and one that is at work is left alone."""
    limits, usage = BudgetLimits(user_tokens=1000), team.store.model_usage
    await team.store.kernels.hello("krn_other", "1", "i" * 16)
    await team.store.kernels.hello(WORKER, "1", "i" * 16)
    for n, worker in ((1, "krn_dead"), (2, "krn_other"), (3, WORKER), (4, WORKER)):
        await take(team.store, call(team, n, worker=worker), 100, limits)
    assert await usage.sweep(WORKER, lambda: {"mdl_3"}) == 2, "the dead one's, and our own that nobody makes"
    assert await usage.sweep(WORKER, lambda: {"mdl_3"}) == 0
    spent = await usage.of_user(team.alice.id, period(team, limits))
    assert (spent.usage.tokens, spent.reserved.tokens) == (200, 200)
    assert not await usage.settle("mdl_1", Usage(1), 0, "done"), "it is over"
    with pytest.raises(Exhausted):
        await take(team.store, call(team, 5), 601, limits)
    team.clock.pass_seconds(600)
    await team.store.kernels.hello(WORKER, "1", "i" * 16)
    assert await usage.sweep(WORKER, lambda: {"mdl_3"}) == 1, "the other has not been heard of"


async def test_a_reservation_is_there_after_a_restart(tmp_path: Path) -> None:
    limits = BudgetLimits(user_tokens=1000)
    async with a_team(tmp_path) as team:
        await take(team.store, call(team, 1), 900, limits)
    async with opened(tmp_path, team.clock, 9000) as again:
        with pytest.raises(Exhausted):
            await take(again, call(team, 2), 101, limits)
        assert await take(again, call(team, 3), 100, limits) == Amount(100, 0)


async def test_old_calls_go_and_what_is_shown_stays(team: Team) -> None:
    """It is what refuses: `0 of 1000` beside a refusal would be no help to anybody."""
    run, limits, usage = await team.running(), BudgetLimits(user_tokens=1000, run_tokens=1000), team.store.model_usage
    await take(team.store, call(team, 1, run=run.id), 900, limits)
    await take(team.store, call(team, 2, run=run.id), 100, limits)
    await usage.settle("mdl_1", Usage(700, 100, 60, 40), 17, "done")
    at = period(team, limits)
    team.clock.jump(timedelta(days=2))
    assert (await team.store.retention.sweep(Keep(runs_days=1)))["model_calls"] == 1, "one is under way"
    for spent in (await usage.of_user(team.alice.id, at), await usage.of_run(run.id)):
        assert (spent.calls, spent.usage, spent.micros) == (2, Usage(700, 100, 60, 40), 17)
        assert spent.reserved == Amount(100, 0)
    with pytest.raises(Exhausted, match=r"1000 of 1000 tokens"):
        await take(team.store, call(team, 3, run=run.id), 1, limits)
