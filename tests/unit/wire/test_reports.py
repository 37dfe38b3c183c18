"""Reports: kept until acknowledged."""

from __future__ import annotations

import pytest

from ringfence.wire.framing import LocalProtocolError, decode
from ringfence.wire.reports import MAX_KEPT, Unacknowledged


def test_reports_are_numbered_from_one_and_kept_in_order() -> None:
    reports = Unacknowledged()
    frames = [reports.add("cmd.ended", {"key": str(n)}) for n in range(3)]
    assert [number for number, _ in frames] == [1, 2, 3]
    assert reports.frames() == [frame for _, frame in frames]
    assert decode(frames[1][1][:-1]) == {"m": "cmd.ended", "p": {"key": "1"}, "seq": 2}


def test_what_is_acknowledged_is_forgotten_and_no_number_comes_twice() -> None:
    reports = Unacknowledged()
    for _ in range(3):
        reports.add("x", {})
    assert reports.acknowledge([2, 2, 99]) == [2]
    assert reports.frame(2) is None
    assert reports.frame(3) is not None
    assert reports.add("x", {})[0] == 4
    assert reports.acknowledge([1, 3, 4]) == [1, 3, 4]
    assert reports.size == 0


def test_it_says_when_it_holds_too_much() -> None:
    reports = Unacknowledged()
    while reports.size <= MAX_KEPT:
        assert not reports.full
        reports.add("x", {"data": "x" * 500_000})
    assert reports.full
    reports.acknowledge([1, 2])
    assert not reports.full


def test_a_report_that_cannot_be_said_takes_no_number() -> None:
    reports = Unacknowledged()
    with pytest.raises(LocalProtocolError):
        reports.add("x", {"a": object()})
    assert reports.add("x", {})[0] == 1
