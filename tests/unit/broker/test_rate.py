"""Token buckets, by a clock in the test's hands."""

from __future__ import annotations

import pytest

from ringfence.host.broker.rate import MOST_WAIT, Bucket, Buckets, Pace


def test_a_burst_then_what_it_fills_by() -> None:
    bucket = Bucket(10, 0.0)
    assert [bucket.take(0.0) for _ in range(20)] == [0.0] * 20
    assert bucket.take(0.0) == pytest.approx(0.1)
    assert bucket.take(0.3) == 0.0


def test_a_rate_in_the_place_of_the_tables() -> None:
    buckets = Buckets(lambda: 0.0, {"run.event": 1})
    assert [buckets.take("r", name, 20) > 0 for name in ("run.event", "run.event", "run.event")] == [False, False, True]
    assert not any(buckets.take("r", "step.begin", 20) for _ in range(40))


def test_what_others_streamed_makes_nobody_wait_for_long() -> None:
    now = 0.0
    pace = Pace(1000, lambda: now)
    assert pace.take(2000) == 0.0
    assert pace.take(500) == pytest.approx(0.5)
    assert pace.take(1_000_000) == MOST_WAIT  # with its debt, which is no larger
    now = MOST_WAIT + 1
    assert pace.take(1000) == 0.0
    assert Pace(0, lambda: now).take(1 << 40) == 0.0
