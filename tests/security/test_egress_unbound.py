"""An unbind that was confirmed holds, whoever had read before it and lands after it. Not the worker's word: the server's order.

Control: the same moves with nothing unbound leave the binding in force.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.outward.ports import Invoker
from tests.support.outpost_rig import BOUND, BOX, TENANT, USER, Worker, staged

UNBOUND = pytest.mark.parametrize("unbound", [True, False], ids=["unbound", "control"])


@UNBOUND
async def test_of_two_changes_the_later_holds(unbound: bool) -> None:
    async with staged() as s:
        await s.open()
        worker = await s.working()
        s.rows.delays = [0.2, 0.0]  # the first reads before the unbind, and comes back after it was confirmed
        first = asyncio.create_task(s.way_out.reload([USER]))
        await asyncio.sleep(0.05)
        if unbound:
            s.rows.bound = []
        await s.way_out.reload([USER])
        expected = [] if unbound else [BOUND.id]
        assert (s.bound(), worker.bound()) == (expected, expected)
        await first
        assert (s.bound(), worker.bound()) == (expected, expected)


@UNBOUND
async def test_while_the_box_starts(unbound: bool) -> None:
    async with staged() as s:
        opening = asyncio.create_task(s.way_out.open(BOX, TENANT, USER, []))
        await asyncio.sleep(0.05)  # it has read, and waits for the listeners
        if unbound:
            s.rows.bound = []
        await s.way_out.reload([USER])
        s.outlets.gate.set()
        await opening
        assert s.bound() == ([] if unbound else [BOUND.id])


@UNBOUND
async def test_while_the_worker_starts(unbound: bool) -> None:
    async with staged() as s:
        await s.open()
        s.rows.delays = [0.3, 0.0]  # of the worker that starts
        await s.ring()
        if unbound:
            s.rows.bound = []
        await s.way_out.reload([USER])
        worker = await s.working()
        assert worker.bound() == s.bound() == ([] if unbound else [BOUND.id])


@pytest.mark.parametrize(
    "error", [Unavailable("the store is busy", remedy="try again"), KeyError("shape"), TypeError()]
)
async def test_what_cannot_be_read_ends_the_worker(error: Exception) -> None:
    """Whatever the fault is: else what was unbound would stay in force."""
    async with staged() as s:
        await s.open()
        await s.working()
        s.rows.failing = error
        with pytest.raises(type(error)):
            await s.way_out.reload([USER])
        assert not s.outpost.worker
        s.rows.failing = None
        assert (await s.working()).bound() == [BOUND.id] and s.outlets.calls == 2


@pytest.mark.parametrize("error", [Unavailable("no template", remedy=""), OSError(24, "x"), RuntimeError("x")])
async def test_a_worker_that_cannot_be_had_is_called_for_again(error: Exception) -> None:
    """Whatever kept it from coming: a bell that is not armed again is a box without a way out until it is stopped."""
    async with staged() as s:
        await s.open()
        s.outlets.errors = [error]
        await s.ring()
        assert (s.outlets.calls, s.outpost.tally.crashes) == (1, 1)
        assert (await s.working()).bound() == [BOUND.id]


async def test_uses_do_not_end_with_the_worker() -> None:
    """A box can end its worker, and has another with the next connection. Control: the first value is given."""
    async with staged() as s:
        await s.open()
        invocation = await s.way_out.begin(Invoker(TENANT, USER, BOX, "x/1"))
        ask = {"t": "secret", "credential": "crd_1", "binding": "bnd_1", "invocation": invocation.id}
        ask |= {"host": "api.test", "method": "GET", "path": "/"}

        async def answered(worker: Worker, number: int) -> dict[str, Any]:
            await worker.say(**ask, n=number)
            async with asyncio.timeout(5):
                while len(worker.of("secret")) < number:
                    await asyncio.sleep(0.01)
            return worker.of("secret")[-1]

        first = await s.working()
        assert [each["uses"] for each in first.of("tickets")[-1]["items"]] == [1]
        assert "value" in await answered(first, 1)
        assert "as often as" in (await answered(first, 2))["error"]
        first.sock.close()
        async with asyncio.timeout(5):
            while s.outlets.calls < 2:  # for the connection that the first one never took
                await asyncio.sleep(0.01)
        second = await s.working()
        assert second is not first
        assert "as often as" in (await answered(second, 1))["error"]
        assert [each["uses"] for each in second.of("tickets")[-1]["items"]] == [0]
