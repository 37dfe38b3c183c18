"""The sweep's tasks: taken some at once, each for itself."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any, cast

import pytest

from ringfence.host.engine import sweep
from ringfence.host.engine.sweep import Sweep


class Clock:
    def monotonic(self) -> float:
        return 0.0


class Parts:
    clock = Clock()


def made() -> Sweep:
    nothing: Any = None
    return Sweep(cast(Any, Parts()), nothing, nothing, nothing, nothing, lambda: None)


async def test_one_that_breaks_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_AT_ONCE", 2)
    one, done = made(), []

    async def work(n: int) -> None:
        if n == 1:
            raise ZeroDivisionError("canary")
        done.append(n)

    await one._each((f"task {n}", work(n)) for n in range(5))
    assert (done, one._trouble) == ([0, 2, 3, 4], {"task 1": "ZeroDivisionError: canary"})


async def test_a_sweep_that_is_cancelled_has_begun_none_of_the_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine that nobody awaits is a warning, and here an error."""
    monkeypatch.setattr(sweep, "_AT_ONCE", 2)
    begun: list[int] = []

    async def hangs(n: int) -> None:
        begun.append(n)
        await asyncio.get_running_loop().create_future()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        all_of_them = asyncio.ensure_future(made()._each((f"task {n}", hangs(n)) for n in range(5)))
        while len(begun) < 2:
            await asyncio.sleep(0)
        all_of_them.cancel()
        with pytest.raises(asyncio.CancelledError):
            await all_of_them
        del all_of_them
    assert (begun, [str(each.message) for each in said]) == ([0, 1], [])
