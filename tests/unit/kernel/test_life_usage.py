"""kernel.life.usage: amounts between two looks, over days, and days that are asked for."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.life.usage import DAY_MS, MOST_DAYS, NAMES, Amount, Gauge, Look, by_day, counted, span

GIB = 1 << 30
TODAY = date(2026, 3, 15)
NOON = datetime(2026, 3, 15, 12, tzinfo=UTC)


def look(at_ms: int, of: str = "boot:a", cpu_usec: int = 0, frozen: bool = False) -> Look:
    return Look(at_ms, of, frozen, cpu_usec, memory=GIB, disk=2 * GIB)


def test_a_box_that_runs_on_is_counted_from_look_to_look() -> None:
    amount, gauge, over = counted(Gauge(10_000, "boot:a", 5_000_999), look(40_000, cpu_usec=7_501_500), 30_000)
    assert amount == Amount(0, 30_000, 2_500, 1024 * 30_000, 2048 * 30_000)
    assert (gauge, over) == (Gauge(40_000, "boot:a", 7_500_999), 30_000)


def test_no_cpu_is_lost_by_rounding_to_ms() -> None:
    gauge, total = Gauge(0, "boot:a", 0), 0
    for n in range(1, 1001):
        amount, gauge, _ = counted(gauge, look(n, cpu_usec=n * 1_999), 30_000)
        total += amount.cpu_ms
    assert total == 1_999


def test_one_that_was_started_anew_is_counted_from_nothing_and_no_longer_than_it_may_have_run() -> None:
    amount, gauge, over = counted(Gauge(10_000, "boot:a", 9_000_000), look(3_610_000, "boot:b", 400_000), 4_000)
    assert (amount.running_ms, amount.cpu_ms, over) == (4_000, 400, 4_000)
    assert amount.disk_mib_ms == 2048 * 3_600_000, "its tree was there all the time"
    assert gauge == Gauge(3_610_000, "boot:b", 400_000)


def test_a_server_that_was_away_counts_what_ran_meanwhile_once() -> None:
    amount, gauge, _ = counted(Gauge(10_000, "boot:a", 1_000_000), look(610_000, cpu_usec=4_000_000), 30_000)
    assert (amount.running_ms, amount.cpu_ms) == (600_000, 3_000)
    again, _, _ = counted(gauge, look(610_000, cpu_usec=4_000_000), 30_000)
    assert not again


@pytest.mark.parametrize("before", [Gauge(90_000_000, "old:a", 9_000_000), None], ids=["another boot", "never"])
def test_of_another_boot_nothing_is_known_but_the_last_interval(before: Gauge | None) -> None:
    amount, _, _ = counted(before, look(50_000, "boot:a", 2_000_000), 20_000)
    assert (amount.running_ms, amount.cpu_ms, amount.disk_mib_ms) == (20_000, 2_000, 2048 * 20_000)


def test_one_that_stands_still_has_memory_and_does_not_run() -> None:
    amount, _, _ = counted(Gauge(0, "boot:a", 0), look(30_000, frozen=True), 30_000)
    assert (amount.running_ms, amount.memory_mib_ms) == (0, 1024 * 30_000)


def test_one_that_is_stopped_has_its_disk_alone() -> None:
    amount, gauge, over = counted(Gauge(0, "boot:a", 9), Look(30_000, "boot:", disk=GIB), 30_000)
    assert amount == Amount(disk_mib_ms=1024 * 30_000)
    assert (gauge, over) == (Gauge(30_000, "boot:", 0), 30_000)


def test_nothing_is_ever_below_zero() -> None:
    back = Look(5_000, "boot:a", cpu_usec=1, memory=-1, disk=-1)
    amount, gauge, _ = counted(Gauge(10_000, "boot:a", 5_000_000), back, 30_000)
    assert not amount
    assert gauge.cpu_usec == 5_000_000, "a counter that goes back begins no second count"


def test_a_day_boundary_splits() -> None:
    moment = datetime(2026, 3, 15, 0, 0, 10, tzinfo=UTC)
    parts = by_day(Amount(active_ms=30_000, cpu_ms=10), 30_000, moment)
    assert parts == {
        "2026-03-14": Amount(active_ms=20_000, cpu_ms=7),
        "2026-03-15": Amount(active_ms=10_000, cpu_ms=3),
    }


@pytest.mark.parametrize("passed", [0, 1, 86_399_999, DAY_MS, 3 * DAY_MS + 17, 40 * DAY_MS])
def test_a_split_adds_up(passed: int) -> None:
    whole = Amount(7, 86_400_001, 13, 1 << 50, 999_999_999_999, 3, 1)
    parts = by_day(whole, passed, NOON).values()
    assert sum(parts, Amount()) == whole
    assert all(getattr(part, name) >= 0 for part in parts for name in NAMES)


@pytest.mark.parametrize("wall", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), NOON])
def test_whatever_the_wall_clock_says_it_is_the_same_amount(wall: datetime) -> None:
    parts = by_day(Amount(cpu_ms=100), 5 * DAY_MS, wall)
    assert sum(part.cpu_ms for part in parts.values()) == 100


def test_days_that_are_asked_for() -> None:
    assert span(None, None, TODAY) == ("2026-02-14", "2026-03-15")
    assert span("2026-03-01", None, TODAY) == ("2026-03-01", "2026-03-15")
    assert span(None, "2026-01-31", TODAY) == ("2026-01-02", "2026-01-31")
    assert span("2027-01-01", None, TODAY) == ("2027-01-01", "2027-01-01")
    assert span("0001-01-01", "0001-01-01", TODAY) == ("0001-01-01", "0001-01-01")


@pytest.mark.parametrize(
    ("first", "last", "says"),
    [
        ("2026-02-30", None, "no day"),
        ("20260201", None, "no day"),
        ("2026-W05-1", None, "no day"),
        ("٢٠٢٦-01-01", None, "no day"),
        (None, "tomorrow", "no day"),
        (None, "", "no day"),
        ("2026-03-02", "2026-03-01", "is after"),
        ("0001-01-01", "9999-12-31", "3652059 days are asked for"),
    ],
)
def test_days_that_are_none(first: str | None, last: str | None, says: str) -> None:
    with pytest.raises(Invalid, match=says) as refused:
        span(first, last, TODAY)
    assert "--from 2026" in refused.value.remedy


def test_ten_years_are_no_day_too_many() -> None:
    begin = TODAY - timedelta(days=MOST_DAYS - 1)
    assert span(begin.isoformat(), TODAY.isoformat(), TODAY)
    with pytest.raises(Invalid, match=f"limit is {MOST_DAYS}"):
        span((begin - timedelta(days=1)).isoformat(), TODAY.isoformat(), TODAY)
