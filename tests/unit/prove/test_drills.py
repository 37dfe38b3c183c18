"""What becomes of the drills' verdicts when their server cannot be taken away: they stay, and the prove says what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from ringfence.prove import drills
from ringfence.prove.drills import Played
from ringfence.prove.row import Row
from ringfence.prove.rows_drills import rows
from ringfence.prove.run import run_row
from ringfence.prove.stage import Stage


@dataclass
class Nowhere:
    """All of a stage, and of a drill stage, that this needs."""

    left: list[str] = field(default_factory=list)

    def mended(self) -> None: ...


def played(monkeypatch: pytest.MonkeyPatch, end: Callable[[list[str]], None]) -> tuple[list[str], list[str]]:
    """(statuses of D-1 and D-2, what is left): one drill holds and the other does not; `end` is how their server ends."""

    @contextmanager
    def stage(left: list[str]) -> Iterator[Nowhere]:
        yield Nowhere()
        end(left)

    told = {"D-1": Played({"box": "403"}, {"box": "done"}), "D-2": Played({"box": "done"}, {"box": "done"})}
    monkeypatch.setattr(drills, "drill_stage", stage)
    monkeypatch.setattr(drills, "DRILLS", {name: lambda _stage, name=name: told[name] for name in told})
    found: list[Row] = [row for row in rows() if row.id in told]
    nowhere = Nowhere()
    return [run_row(cast(Stage, nowhere), row).status for row in found], nowhere.left


def test_what_is_left_behind_is_the_proves_and_no_drills(monkeypatch: pytest.MonkeyPatch) -> None:
    assert played(monkeypatch, lambda left: left.append("folder x")) == (["held", "open"], ["folder x"])
    assert played(monkeypatch, lambda left: None) == (["held", "open"], [])


def test_an_end_that_fails_changes_no_verdict_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_left: list[str]) -> None:
        raise OSError("no end")

    assert played(monkeypatch, fails) == (["held", "open"], ["the drills' server: OSError: no end"])
