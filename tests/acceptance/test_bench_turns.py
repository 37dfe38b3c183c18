"""`bench turns`, as small as it goes: every figure is there, and says what it says of. No promise is held against it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from ringfence.bench.crowd import KINDS, Crowd
from ringfence.bench.turns import Plan, run

TINY = Plan(turns=3, crowd=Crowd(turns=4, boxes=2, rounds=1), settle=10, grow=40)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """By the first word of their names."""
    found, notes = run(lambda line: None, TINY)
    assert bool(notes) == (os.geteuid() != 0)
    shaped = json.loads(json.dumps([row.as_json() for row in found]))
    return {row["name"].split()[0]: row for row in shaped}


def test_every_row_says_what_was_promised_and_whether_it_holds(rows: dict[str, dict[str, Any]]) -> None:
    for row in rows.values():
        assert row["measured"] and row["promise"] and isinstance(row["holds"], bool)
    assert {"turn", "event", "4", "turns"} <= set(rows)


def test_a_turns_overhead_is_what_its_commands_did_not_take(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["turn"]
    for series in ("overhead", "whole", "accepted"):
        assert row[series]["n"] == 3
    assert 0 < row["overhead"]["p99_ms"] <= row["whole"]["p99_ms"]
    assert 0 < row["accepted"]["p50_ms"] < row["whole"]["p50_ms"]
    assert row["limit_ms"] == pytest.approx(25 + 16 * row["commit"]["p50_ms"], abs=0.02)
    assert row["holds"] == (row["overhead"]["p50_ms"] <= row["limit_ms"])
    assert row["commits_per_turn"] >= 4, "accepted, claimed, its step begun and ended, finished"


def test_every_event_of_the_turns_has_a_time(rows: dict[str, dict[str, Any]]) -> None:
    events = rows["event"]["events"]
    assert events["n"] == 3 * (len(KINDS) - 4), "one step instead of three"
    assert 0 < events["p50_ms"] <= events["p99_ms"]


def test_no_turn_of_the_crowd_is_lost(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["4"]
    assert row["wrong"] == []
    assert row["turns"]["n"] == 4
    assert row["events"]["n"] == 4 * len(KINDS)


def test_throughput_is_a_ratio_of_two_that_are_there(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["turns"]
    assert row["value"] == pytest.approx(row["warm_per_second"] / row["fresh_per_second"], rel=0.05)
    assert row["bare_per_second"] > row["fresh_per_second"], "without a server, a journal and an agent it is faster"


@pytest.mark.root
def test_memory_is_a_slope_over_the_turns_that_count(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["memory"]
    assert row["turns"] >= TINY.settle + TINY.grow
    assert row["first_mib"] > 1 and row["last_mib"] > 1
    assert row["error_kib"] > 0
