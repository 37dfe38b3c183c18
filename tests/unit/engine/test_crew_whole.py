"""Work that is to come to its end although who waits for it is cancelled, again and again."""

from __future__ import annotations

import asyncio

import pytest

from ringfence.host.engine.crew import Crew, uncut


async def _cancelled_often(waiting: asyncio.Task[str], may: asyncio.Event) -> None:
    for _ in range(5):  # at each wait, as the scopes of an HTTP server do
        await asyncio.sleep(0)
        waiting.cancel()
    may.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_it_ends_and_then_the_cancellation_is_raised() -> None:
    may, steps = asyncio.Event(), list[str]()

    async def work() -> str:
        await may.wait()
        steps.append("first")
        await asyncio.sleep(0)
        steps.append("second")
        return "done"

    crew = Crew()
    await crew.start()
    await _cancelled_often(asyncio.create_task(crew.whole(work(), "work")), may)
    assert steps == ["first", "second"]
    assert await crew.whole(work(), "again") == "done"
    await crew.stop()


async def test_control_what_is_awaited_in_a_finally_is_cut() -> None:
    may, steps = asyncio.Event(), list[str]()

    async def work() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            await may.wait()
            steps.append("never")
        return ""

    await _cancelled_often(asyncio.create_task(work()), may)
    assert steps == []


async def test_what_it_raises_is_raised() -> None:
    async def fails() -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await uncut(fails())
