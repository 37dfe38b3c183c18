"""Timers of PID 1 count the time that the box is awake: over a kernel of numbers, whose boxes stand still when a test says so."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.guest.poller import EARLY_SECONDS, OVERSLEPT_SECONDS, PUT_OFF_SECONDS, READ, Poller

WIRE = 9
SLACK = 0.005


class Kernel:
    """Clock and epoll. As with the real ones, who stood still in `poll` past its time-out comes back with nothing looked at."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.stops: list[tuple[float, float]] = []  # when the box stands still: (from, until), in order
        self.arrivals: dict[float, Callable[[], None]] = {}  # when something can be read of the wire: what that does
        self.watched: set[int] = set()
        self.polls = 0
        self.poller = Poller(self.clock, lambda: cast("select.epoll", self))
        self.poller.watch(WIRE, self._read)

    def clock(self) -> float:
        return self.time

    def register(self, fd: int, mask: int) -> None:
        self.watched.add(fd)

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        self.polls += 1
        deadline = self.time + timeout if timeout >= 0 else float("inf")
        while True:
            if self._due():
                return [(WIRE, READ)]
            if self.time >= deadline:
                return []
            woken = min([deadline, *(at for at in self.arrivals if at > self.time)])
            assert woken < float("inf"), "asleep for ever"
            if self.stops and self.stops[0][0] < woken:
                begin, end = self.stops.pop(0)
                self.time = max(self.time, begin, end)
                if self.time >= deadline:
                    return []
            else:
                self.time = woken

    def _due(self) -> list[float]:
        return sorted(at for at in self.arrivals if at <= self.time)

    def _read(self, events: int) -> None:
        for at in self._due():
            self.arrivals.pop(at)()

    def stop(self, begin: float, end: float, word: float | None = 0.0) -> None:
        """The box stands still. `word`: seconds after its end, at which the host says so; None: never."""
        begin, end = 1000 + begin, 1000 + end
        self.stops.append((begin, end))
        if word is not None:
            self.arrivals[end + word - (SLACK if not word else 0)] = lambda: self.poller.stood_still(end - begin)

    def at(self, seconds: float) -> list[float]:
        """When a timer of so many seconds, set now, goes off: seconds of the clock."""
        fired: list[float] = []
        self.poller.after(seconds, lambda: fired.append(self.time - 1000))
        return fired

    def until(self, fired: list[float], turns: int = 1000) -> float:
        for _ in range(turns):
            if fired:
                return fired[0]
            self.poller.turn()
        raise AssertionError("it never went off")


def test_a_timer_goes_off_when_it_is_due_and_wakes_once_before() -> None:
    kernel = Kernel()
    assert kernel.until(kernel.at(30)) == pytest.approx(30)
    assert kernel.polls <= 4  # a second before, at its time; of each also a look at what can be read


def test_a_pause_does_not_count_when_the_host_says_so_before_it_ends() -> None:
    kernel = Kernel()
    kernel.stop(10, 100)
    assert kernel.until(kernel.at(30)) == pytest.approx(120, abs=SLACK)


@pytest.mark.parametrize("begin", [0.1, 1, 20, 28.9, 29.1, 29.9])
def test_nor_when_the_host_says_so_soon_after(begin: float) -> None:
    kernel = Kernel()
    kernel.stop(begin, begin + 90, word=0.45)
    assert kernel.until(kernel.at(30)) == pytest.approx(max(120, begin + 90.45), abs=SLACK)


def test_without_a_word_it_goes_off_half_a_second_late_and_no_more() -> None:
    """The control of the above: by its own clock PID 1 would end it."""
    kernel = Kernel()
    kernel.stop(10, 100, word=None)
    assert kernel.until(kernel.at(30)) == pytest.approx(100 + PUT_OFF_SECONDS)


def test_a_pause_that_ends_just_when_a_long_timer_is_due() -> None:
    kernel = Kernel()
    kernel.stop(30, 120.2, word=0.3)
    assert kernel.until(kernel.at(120)) == pytest.approx(210.2, abs=SLACK)


@given(st.floats(0.5, 300), st.floats(0.01, 300), st.floats(0, 300))
def test_what_goes_unnoticed_is_bounded(seconds: float, length: float, begin: float) -> None:
    """One pause of any length at any time, and a word within the time for which timers are put off."""
    kernel = Kernel()
    kernel.stop(begin, begin + length, word=PUT_OFF_SECONDS * 0.9)
    fired = kernel.until(kernel.at(seconds))
    awake = fired - min(length, max(0.0, fired - begin))
    lost = EARLY_SECONDS + OVERSLEPT_SECONDS
    assert seconds - min(lost, length) - SLACK <= awake <= seconds + PUT_OFF_SECONDS + SLACK


@given(st.lists(st.tuples(st.floats(0.01, 50), st.floats(0.01, 200)), max_size=5), st.lists(st.floats(0.01, 200)))
def test_with_a_word_before_each_end_each_timer_has_its_time(
    stops: list[tuple[float, float]], timers: list[float]
) -> None:
    kernel = Kernel()
    time, ends = 0.0, []
    for awake, length in stops:
        kernel.stop(time + awake, time + awake + length)
        time += awake + length
        ends.append((time - length, length))
    fired = [(seconds, kernel.at(seconds)) for seconds in timers]
    for seconds, when in fired:
        end = kernel.until(when)
        slept = sum(length for begin, length in ends if begin < end - SLACK)
        assert seconds - SLACK <= end - slept <= seconds + SLACK * (len(stops) + 1) + PUT_OFF_SECONDS


def test_two_pauses_in_a_row_and_a_word_for_each() -> None:
    kernel = Kernel()
    kernel.stop(10, 100, word=0.2)
    kernel.stop(100.25, 200, word=0.2)
    assert kernel.until(kernel.at(30)) == pytest.approx(30 + 90 + 99.75, abs=2 * SLACK)


def test_what_is_set_after_a_pause_is_not_held_up_by_its_word() -> None:
    kernel = Kernel()
    fired: list[float] = []

    def set_late() -> None:
        kernel.poller.after(0.2, lambda: fired.append(kernel.time - 1000))

    kernel.at(30)
    kernel.stop(10, 100, word=0.3)
    kernel.arrivals[1100.15] = set_late
    assert kernel.until(fired) == pytest.approx(100.15 + 0.2 + 0.15, abs=SLACK)  # what passed before the word, at most


def test_a_pause_in_the_middle_of_a_callback() -> None:
    kernel = Kernel()

    def work() -> None:
        kernel.time += 90
        kernel.arrivals[kernel.time + 0.2] = lambda: kernel.poller.stood_still(90)

    kernel.arrivals[1010.0] = work
    assert kernel.until(kernel.at(30)) == pytest.approx(120, abs=SLACK)


def test_a_pause_in_the_middle_of_a_timer_spares_the_next_one() -> None:
    kernel = Kernel()

    def work() -> None:
        kernel.time += 90
        kernel.arrivals[kernel.time + 0.2] = lambda: kernel.poller.stood_still(90)

    kernel.poller.after(5, work)
    assert kernel.until(kernel.at(30)) == pytest.approx(120, abs=SLACK)


def test_a_box_that_is_always_starved_still_has_its_timers() -> None:
    kernel = Kernel()
    kernel.stops = [(1000 + 0.1 * n, 1000 + 0.1 * n + 2) for n in range(0, 3000, 20)]
    assert kernel.until(kernel.at(30)) < 30 + PUT_OFF_SECONDS + 3 * 2


def test_a_word_of_a_pause_that_never_was_gives_no_timer_more_than_it_began_with() -> None:
    kernel = Kernel()
    fired = kernel.at(30)
    for second in range(1, 21):
        kernel.arrivals[1000.0 + second] = lambda: kernel.poller.stood_still(1e9)
    assert kernel.until(fired) == pytest.approx(50, abs=SLACK)


def test_what_is_cancelled_stays_so_over_a_word() -> None:
    kernel = Kernel()
    timer = kernel.poller.after(5, lambda: pytest.fail("it was cancelled"))
    timer.cancel()
    kernel.stop(1, 10)
    kernel.until(kernel.at(20))


def test_durations_and_how_late_a_timer_is() -> None:
    kernel = Kernel()
    began = kernel.poller.now()
    timer = kernel.poller.after(40, lambda: None)
    kernel.stop(10, 100)
    kernel.until(kernel.at(30))
    assert kernel.poller.now() - began == pytest.approx(30, abs=SLACK)
    assert kernel.poller.late(timer) == pytest.approx(-10, abs=SLACK)
