"""Reservations at a bad moment: a sweep beside one, and one whose caller leaves before it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.models.granting import Expected
from ringfence.host.kernel.models.ports import Caller
from ringfence.host.kernel.models.upstreams import Kind, Upstream
from ringfence.host.kernel.models.usage import Amount, BudgetLimits, Spent, Usage
from ringfence.host.models.budgets import Budgets, Hold
from tests.support.clocks import CountingIds
from tests.support.store import Team, a_team

UP = Upstream("gpt", Kind.OPENAI, "https://api.test/v1", "real-1")
WORKER = "krn_here"


@dataclass
class Stage:
    team: Team
    budgets: Budgets

    async def hold(self) -> Hold:
        return await self.budgets.hold(Caller(self.team.tenant.id, self.team.alice.id), UP, Expected(1000, 100), "loop")

    async def spent(self) -> Spent:
        period = self.budgets.limits.period_of(self.team.clock.now())
        return await self.team.store.model_usage.of_user(self.team.alice.id, period)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with a_team(tmp_path) as team:
        budgets = Budgets(
            team.store.model_usage, BudgetLimits(user_tokens=10_000), CountingIds(1 << 40), team.clock, WORKER
        )
        yield Stage(team, budgets)
        await budgets.close()


async def test_a_call_that_is_reserved_during_a_sweep_is_not_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, held = stage.team.store, list[Hold]()
    database = store._database
    read = database.read

    async def first_a_call(question: Callable[[Any], Any]) -> Any:
        held.append(await stage.hold())
        return await read(question)

    with monkeypatch.context() as patch:
        patch.setattr(database, "read", first_a_call)
        assert await stage.budgets.sweep() == 0
        early: set[str] = set()  # what one that asked before it reads would know
        assert await store.model_usage.sweep(WORKER, lambda: early) == 2, "control: both would be lost"
    again = await stage.hold()
    stage.budgets.settle(again, UP, Usage(2, 3), "done")
    await stage.budgets.quiet()
    assert (await stage.spent()).usage == Usage(2 * 1100 + 2, 3)


async def test_a_call_of_before_a_sweep_is_settled_after_it(stage: Stage) -> None:
    held = await asyncio.gather(stage.budgets.sweep(), *(stage.hold() for _ in range(5)), stage.budgets.sweep())
    assert (held[0], held[-1]) == (0, 0)
    for each in held[1:-1]:
        assert isinstance(each, Hold)
        stage.budgets.settle(each, UP, Usage(1, 1), "done")
    await stage.budgets.quiet()
    spent = await stage.spent()
    assert (spent.usage, spent.reserved) == (Usage(5, 5), Amount())


async def test_a_reservation_that_is_there_only_after_its_caller_has_left_costs_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on PostgreSQL, where a write goes on when nobody waits for it any more, beside that of its end."""
    usage, going_on = stage.team.store.model_usage, asyncio.Event()
    reserve, late = usage.reserve, list[asyncio.Task[Amount]]()

    async def slowly(*of: Any) -> Amount:
        await going_on.wait()
        return await reserve(*of)

    def shielded(*of: Any) -> Any:
        late.append(asyncio.ensure_future(slowly(*of)))
        return asyncio.shield(late[-1])

    monkeypatch.setattr(usage, "reserve", shielded)
    calling = asyncio.ensure_future(stage.hold())
    async with asyncio.timeout(30):
        while not late:
            await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await stage.budgets.quiet()
        going_on.set()
        assert await late[0] == Amount(1100, 0)
    assert (await stage.spent()).reserved == Amount(1100, 0)
    assert await stage.budgets.sweep() == 0, "nothing is lost"
    spent = await stage.spent()
    assert (spent.calls, spent.usage, spent.reserved) == (1, Usage(), Amount())
