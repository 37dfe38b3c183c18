"""Requests at once and a second; bodies that come too slowly; deadlines that move."""

from __future__ import annotations

import asyncio

import pytest

from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.counting import RING, Counting, Findings
from ringfence.host.egress.limits import Deadline, Flow, Rate
from ringfence.host.egress.needs import Traffic
from ringfence.host.egress.refusals import Code, Refusal
from tests.support.egress_rig import FakeKernel


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_burst_and_then_the_rate() -> None:
    clock = Clock()
    flow = Flow(Bounds(requests_second=10, burst=3), clock)

    def passes() -> bool:
        try:
            with flow.request():
                return True
        except Refusal as error:
            assert (error.code, error.status) == (Code.TOO_MANY, 429)
            return False

    assert [passes() for _ in range(4)] == [True, True, True, False]
    clock.now = 0.1  # one tenth of a second at ten a second: one
    assert [passes() for _ in range(2)] == [True, False]
    clock.now = 100
    assert [passes() for _ in range(4)] == [True, True, True, False]


def test_what_is_recorded_has_a_rate_of_its_own() -> None:
    """Each makes rows that stay. Control: requests that make none go on."""
    clock = Clock()
    flow = Flow(Bounds(writes_second=2, writes_burst=3), clock)

    def recorded() -> bool:
        with flow.request():
            pass
        try:
            flow.record()
        except Refusal as error:
            assert (error.code, error.status) == (Code.TOO_MANY, 429)
            return False
        return True

    assert [recorded() for _ in range(5)] == [True, True, True, False, False]
    clock.now = 0.5
    assert [recorded() for _ in range(2)] == [True, False]


def test_in_flight_counts_those_that_have_not_ended() -> None:
    flow = Flow(Bounds(in_flight=2), Clock())
    with flow.request():
        with flow.request(), pytest.raises(Refusal), flow.request():
            raise AssertionError("the third is not let in")
        with flow.request():
            pass


def test_a_slow_body() -> None:
    clock = Clock()
    rate = Rate(Bounds(slow_after=30, slow_rate=1024), clock)
    clock.now = 29
    rate.took(0, 1)  # slow, but the first half minute is free
    clock.now = 31
    with pytest.raises(Refusal) as caught:
        rate.took(29, 1)
    assert caught.value.status == 408


def test_a_body_that_waited_for_the_server_is_not_slow() -> None:
    clock = Clock()
    rate = Rate(Bounds(), clock)
    clock.now = 3600
    rate.took(3599.9, 1)


async def test_a_deadline_moves_both_ways_and_never_past_the_total() -> None:
    bounds = Bounds(total=0.3)
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with Deadline(bounds) as deadline:
            deadline.within(0.05, "box")
            deadline.within(100, "server")
            await asyncio.sleep(5)
    assert 0.25 < asyncio.get_running_loop().time() - began < 2
    with pytest.raises(TimeoutError):
        async with Deadline(Bounds()) as deadline:
            deadline.within(100, "server")
            deadline.within(0.05, "box")
            await asyncio.sleep(5)


async def test_a_deadline_is_of_the_exchange_in_hand_and_one_timer_serves_all() -> None:
    deadline = Deadline(Bounds())
    async with deadline:
        deadline.within(0.05, "box")
    timer = deadline._timer
    async with deadline:  # the timer of the one before fires within this one, and ends nothing
        deadline.within(100, "server")
        assert deadline._timer is timer
        await asyncio.sleep(0.2)
    with pytest.raises(TimeoutError):
        async with deadline:
            deadline.within(0.05, "box")
            await asyncio.sleep(5)
    assert deadline.blame == "box"
    deadline.end()
    assert deadline._timer is None


def test_traffic_is_counted_together_and_its_kinds_are_bounded() -> None:
    counting = Counting()
    for number in range(RING + 5):
        counting.add(Traffic(f"h{number}", 443, "allow", "r", "", "GET", 1, 2, 3))
    counting.add(Traffic("h1", 443, "allow", "r", "", "GET", 1, 2, 3))
    items, dropped = counting.drain()
    assert (len(items), dropped) == (RING, 5)
    assert items[1] == Traffic("h1", 443, "allow", "r", "", "GET", 2, 4, 6)
    assert counting.drain() == ([], 0)


def test_findings_are_told_in_bounds() -> None:
    clock, kernel = Clock(), FakeKernel()
    findings = Findings(kernel, clock)
    for _ in range(100):
        findings.tell("placeholder_unknown", "inv_1", {})
    assert len(kernel.findings) == 30
    clock.now = 4
    for _ in range(100):
        findings.tell("placeholder_unknown", "inv_1", {})
    assert len(kernel.findings) == 32


def test_a_connection_that_is_passed_through_counts_as_a_request() -> None:
    flow = Flow(Bounds(requests_second=10, burst=3), Clock())
    for _ in range(3):
        flow.begin()
    with pytest.raises(Refusal), flow.request():
        pass
