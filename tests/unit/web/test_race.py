"""The first to end decides, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from ringfence.host.web.race import Standing, race


async def test_the_losers_are_cancelled_and_over() -> None:
    over: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            over.append("slow")

    async def fast() -> int:
        await asyncio.sleep(0)
        return 7

    slowly, quickly = await race(slow(), fast())
    assert slowly.cancelled() and quickly.result() == 7
    assert over == ["slow"]


async def test_what_the_first_raises_is_raised_as_it_is() -> None:
    async def fails() -> None:
        raise KeyError("x")

    before = asyncio.all_tasks()
    with pytest.raises(KeyError):
        await race(fails(), asyncio.sleep(60))
    assert asyncio.all_tasks() == before


async def test_cancelling_the_race_cancels_all() -> None:
    racing = asyncio.create_task(race(asyncio.sleep(60), asyncio.sleep(60)))
    await asyncio.sleep(0)
    racing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_has_not_ended_goes_on_into_the_next_round() -> None:
    begun, slow_end = {"slow": 0, "quick": 0}, asyncio.Event()

    async def slow() -> str:
        begun["slow"] += 1
        await slow_end.wait()
        return "over"

    async def quick() -> int:
        begun["quick"] += 1
        return begun["quick"]

    standing = Standing({"slow": slow, "quick": quick})
    assert [await standing.first() for _ in range(3)] == [{"quick": 1}, {"quick": 2}, {"quick": 3}]
    assert begun["slow"] == 1
    slow_end.set()
    await asyncio.sleep(0)
    assert (await standing.first())["slow"] == "over"
    await standing.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_standing_race_raises_and_leaves_nothing() -> None:
    async def fails() -> None:
        raise KeyError("x")

    standing = Standing({"fails": fails, "slow": lambda: asyncio.sleep(60)})
    with pytest.raises(KeyError):
        await standing.first()
    await standing.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
