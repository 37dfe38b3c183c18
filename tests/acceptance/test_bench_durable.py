"""`bench durable`, as small as it goes: every figure is there, and says what it says of. No promise is held against it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringfence.bench.durable import Plan, run
from ringfence.bench.durable_append import Appends
from ringfence.bench.durable_restart import Restart

TINY = Plan(
    turns=6,
    threads=3,
    kernels=2,
    rounds=1,
    appends=Appends(batches=(1, 4), rounds=3),
    restart=Restart(finished=7, expired=3),
)
APPENDS = 3  # one event; four by four callers, and in one write


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found, notes = run(lambda line: None, TINY)
    assert len(notes) == APPENDS + 1
    shaped: list[dict[str, Any]] = json.loads(json.dumps([row.as_json() for row in found]))
    return shaped


def test_every_row_says_what_was_promised_and_whether_it_holds(rows: list[dict[str, Any]]) -> None:
    kinds = ["append"] * APPENDS + ["restart", "restart", "turns", "turns"]
    assert [row["name"].split()[0] for row in rows] == kinds
    for row in rows:
        assert row["measured"] and row["promise"] and isinstance(row["holds"], bool)


def test_an_append_is_held_against_plain_sqlite(rows: list[dict[str, Any]]) -> None:
    for row in rows[:APPENDS]:
        assert row["value"] == pytest.approx(row["events_per_second"] / row["floor_per_second"], rel=0.05)
        assert row["holds"] == (row["value"] >= 0.5)
        assert row["peak_mib"] > 10


def test_a_restart_decides_about_every_expired_run_and_no_other(rows: list[dict[str, Any]]) -> None:
    for row, kind in zip(rows[APPENDS : APPENDS + 2], ("SQLite", "PostgreSQL"), strict=True):
        assert kind in row["name"]
        assert row["decided"] == row["expired"] == TINY.restart.expired
        assert 0 < row["ready_seconds"] <= row["value"]
        assert row["peak_mib"] > 10


def test_no_turn_of_several_kernels_is_done_twice(rows: list[dict[str, Any]]) -> None:
    speed, wrong = rows[APPENDS + 2 :]
    assert len(speed["one_per_second"]) == len(speed["several_per_second"]) == TINY.rounds
    assert wrong["value"] == 0 and wrong["holds"]
