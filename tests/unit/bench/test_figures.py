"""Figures that a promise is held against."""

from __future__ import annotations

import pytest

from ringfence.bench.figures import Line, Row, Series, as_text, at_least


def test_a_line_through_points_on_a_line_is_that_line() -> None:
    line = Line.through([(x, 7.0 + 3.0 * x) for x in (1000.0, 1010.0, 1020.0, 1100.0)])
    assert line.slope == pytest.approx(3.0)
    assert line.error == pytest.approx(0.0, abs=1e-6)


def test_a_step_in_the_middle_is_a_slope_with_an_error() -> None:
    """One page more, once, is no growth with each turn: the error says how little the slope means."""
    flat = Line.through([(float(x), 4096.0 if x > 500 else 0.0) for x in range(0, 1001, 100)])
    straight = Line.through([(float(x), 4.0 * x) for x in range(0, 1001, 100)])
    assert flat.error > 100 * straight.error
    assert 0 < flat.slope < 10


def test_noise_around_a_growth_does_not_hide_it() -> None:
    noisy = Line.through([(float(x), 2048.0 * x + (100_000.0 if x % 20 else -100_000.0)) for x in range(0, 2000, 10)])
    assert noisy.slope == pytest.approx(2048.0, rel=0.05)


def test_p99_of_two_hundred_is_the_third_worst_but_one() -> None:
    assert Series(tuple(float(n) for n in range(1, 201))).p99 == 198.0


@pytest.mark.parametrize(("value", "holds"), [(0.99, False), (1.0, True), (7.0, True)])
def test_at_least(value: float, holds: bool) -> None:
    row = at_least("throughput", value, "x", 1, per_second=3.0)
    assert row.holds is holds
    assert row.as_json() == {
        "name": "throughput",
        "measured": f"{value:.2f}x",
        "promise": ">= 1x",
        "holds": holds,
        "value": value,
        "per_second": 3.0,
    }


def test_what_was_not_measured_is_neither_kept_nor_missed() -> None:
    text = as_text("machine", [Row("a thing", "not measured", ">= 4x", None, {})], [])
    assert "?    a thing" in text and "ok" not in text and "MISS" not in text
