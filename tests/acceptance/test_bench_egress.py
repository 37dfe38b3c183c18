"""`bench egress`, as small as it goes: every figure is there, and says what it says of. No promise is held against it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringfence.bench.egress import Plan, run
from ringfence.bench.egress_sides import FIRSTS, HOST, Sides, sides

pytestmark = pytest.mark.root
TINY = Plan(
    rounds=1, times=40, bytes=8 << 20, events=20, tokens=4, requests=200, seconds=0.5, firsts=FIRSTS[:3], rests=1
)
ROWS = ("added to a request", "added to a new", "processor time", "speed of one", "a server's event",
        "added to a model's", "requests a second", "memory that a worker gains", "memory of an idle", "added to the first")  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found, notes = run(lambda line: None, TINY)
    assert len(notes) == 3 and "a commit of a database" in notes[2]
    assert float(notes[0].split(" MB")[0].rsplit(" ", 1)[1]) > 1  # control: what works has memory
    shaped: list[dict[str, Any]] = json.loads(json.dumps([row.as_json() for row in found]))
    return shaped


def test_every_row_says_what_was_promised_and_whether_it_holds(rows: list[dict[str, Any]]) -> None:
    assert [row["name"].startswith(name) for row, name in zip(rows, ROWS, strict=True)] == [True] * len(ROWS)
    for row in rows:
        assert (
            row["measured"] and row["promise"] and (isinstance(row["holds"], bool) or "not measured" in row["measured"])
        )


def test_the_way_by_the_worker_is_the_longer_one(rows: list[dict[str, Any]]) -> None:
    """Were one side measured twice, nothing would be added."""
    by_name = {name: row for row, name in zip(rows, ROWS, strict=True)}
    for name in ("added to a request", "added to a new", "added to a model's", "added to the first"):
        assert by_name[name]["ours"]["p50_ms"] > by_name[name]["floor"]["p50_ms"] > 0
    assert by_name["processor time"]["value"] > 0.05
    assert 0 < by_name["speed of one"]["value"] < 1
    assert by_name["memory of an idle"]["value"] == 0


def test_what_is_not_at_hand_is_said(rows: list[dict[str, Any]]) -> None:
    (row,) = [row for row in rows if row["name"].startswith("requests a second")]
    assert row["measured"].startswith("not measured") and row["value"] is None and row["per_second"] > 10


def test_the_box_spends_a_placeholder_and_never_has_the_credential() -> None:
    with sides() as both:
        both.box("keep_alive", times=3)
        log = both.made.ok("egress", "log", "alice", "--json").text
        assert "release" in log and HOST in log
        assert _environment(both).startswith("EXAMPLE")


def _environment(both: Sides) -> str:
    return both.made.shell("alice", 'printf %s "$BENCH_TOKEN"').text
