"""When a worker is idle, and whether it still is: by a clock of ours."""

from __future__ import annotations

from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.dns_answers import TTL
from ringfence.host.egress.idleness import Idleness


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float) -> None:
        self.now += seconds


def test_it_is_due_once_in_so_long_that_nothing_was_under_way() -> None:
    clock = Clock()
    idleness = Idleness(clock)
    clock.after(29.0)
    assert not idleness.due(30.0) and not idleness.still()
    clock.after(1.0)
    assert idleness.due(30.0) and idleness.still()
    clock.after(29.0)
    assert not idleness.due(30.0) and idleness.still()  # it was said
    clock.after(1.0)
    assert idleness.due(30.0)


def test_what_is_under_way_keeps_it_however_long_it_takes() -> None:
    clock = Clock()
    idleness = Idleness(clock)
    idleness.begin()
    idleness.begin()
    clock.after(1000.0)
    assert not idleness.due(30.0)
    idleness.over()
    clock.after(1000.0)
    assert not idleness.due(30.0)
    idleness.over()
    clock.after(29.0)
    assert not idleness.due(30.0)
    clock.after(1.0)
    assert idleness.due(30.0)


def test_what_has_begun_since_it_was_said_ends_the_stillness_even_when_it_is_over() -> None:
    clock = Clock()
    idleness = Idleness(clock)
    clock.after(30.0)
    assert idleness.due(30.0) and idleness.still()
    with idleness.busy():
        assert not idleness.still()
    assert not idleness.still()  # in the same instant
    clock.after(30.0)
    assert not idleness.still() and idleness.due(30.0) and idleness.still()


def test_an_address_is_good_for_as_long_as_its_worker_stays() -> None:
    assert Bounds().idle_ends >= TTL
