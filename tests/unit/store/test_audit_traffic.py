"""The traffic lane: bounded whatever it is told, and it says what it forgot."""

from __future__ import annotations

from ringfence.host.store.audit_traffic import RING, TOTALS, Traffic
from tests.support.clocks import HandClock


def test_newest_first_and_added_up() -> None:
    clock = HandClock()
    traffic = Traffic(clock)
    traffic.add("b1", "example.org", "allow", 10, 100)
    clock.pass_seconds(1)
    traffic.add("b1", "example.org", "allow", 1, 2)
    traffic.add("b1", "example.org", "deny", 0, 0)
    assert [entry["verdict"] for entry in traffic.newest(9)] == ["deny", "allow", "allow"]
    assert [entry["sent"] for entry in traffic.newest(2)] == [0, 1]
    assert traffic.totals() == [
        {"box": "b1", "host": "example.org", "verdict": "allow", "requests": 2, "sent": 11, "received": 102},
        {"box": "b1", "host": "example.org", "verdict": "deny", "requests": 1, "sent": 0, "received": 0},
    ]
    assert traffic.dropped == 0


def test_a_flood_forgets_and_says_so() -> None:
    traffic = Traffic(HandClock())
    for number in range(10_000):
        traffic.add("b1", f"h{number}.example.org", "deny", 1, 0)
    assert len(traffic.newest(10**6)) == RING
    assert traffic.dropped == 10_000 - RING
    totals = traffic.totals()
    assert (len(totals), totals[-1]["host"]) == (TOTALS, "h9999.example.org")


def test_one_box_forgets_nobody_elses() -> None:
    """Control: its own newest are there, and the lane is full."""
    traffic = Traffic(HandClock())
    for number in range(10):
        traffic.add("victim", f"v{number}.test", "deny", 1, 0)
    for number in range(3 * RING):
        traffic.add("hostile", f"h{number}.test", "deny", 1, 0)
        if number % 1000 == 0:
            traffic.add("victim", "later.test", "allow", 1, 0)
    newest = traffic.newest(10**6)
    kept = [entry["host"] for entry in newest if entry["box"] == "victim"]
    assert len(newest) == RING and newest[0]["host"] == f"h{3 * RING - 1}.test"
    assert kept[-10:] == [f"v{9 - number}.test" for number in range(10)] and len(kept) == 10 + 13
    totals = traffic.totals()
    assert len(totals) == TOTALS and len([each for each in totals if each["box"] == "victim"]) == 11
    assert [each["requests"] for each in totals if each["host"] == "later.test"] == [13]


def test_of_many_boxes_each_has_its_part() -> None:
    traffic = Traffic(HandClock())
    for number in range(RING + 200):
        traffic.add(f"b{number}", "a.test", "deny", 1, 0)
    assert (len(traffic.newest(10**6)), len(traffic.totals()), traffic.dropped) == (RING, TOTALS, 200)
    assert traffic.newest(1)[0]["box"] == f"b{RING + 199}"


def test_names_are_bounded_and_clean() -> None:
    traffic = Traffic(HandClock())
    traffic.add("b1", "x" * 100_000 + "\0", "al\udcfflow", 1, 1)
    [entry] = traffic.newest(1)
    assert (len(entry["host"]), entry["verdict"]) == (255, "al\ufffdlow")


def test_what_was_carried_is_told_once_whatever_else_is_forgotten() -> None:
    traffic = Traffic(HandClock())
    for number in range(3 * RING):
        traffic.add(f"b{number % 2}", f"h{number}.test", "allow", 2, 3)
    half = 3 * RING // 2
    assert traffic.carried() == {"b0": (2 * half, 3 * half), "b1": (2 * half, 3 * half)}
    assert traffic.carried() == {}
    traffic.add("b1", "h.test", "allow", 1, 0)
    assert traffic.carried() == {"b1": (1, 0)}
