"""Bookkeeping of rows: what is held, open and not applicable, and what a control makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import pytest

from ringfence.prove import run
from ringfence.prove.row import (
    Control,
    NotHere,
    ProgramFailed,
    Row,
    Tries,
    absent,
    no_control,
    ran,
)
from ringfence.prove.stage import Stage


@dataclass
class Nowhere:
    """All of a stage that a verdict needs: nothing."""


NOWHERE = cast(Stage, Nowhere())
STOPPED, WORKED = Tries({"a": "EPERM", "b": "ENOSYS"}), Tries({"a": "EPERM", "b": "done 3"})
SHOWN = ran(lambda _stage: WORKED)


def row(*seen: Tries | Exception, control: Control = SHOWN, alone: bool = False, row_id: str = "Z01") -> Row:
    """A row with one runner for each of `seen`."""
    letters = "ske"[: len(seen)]

    def attack(_stage: Stage, runner: str) -> Tries:
        what = seen[letters.index(runner)]
        if isinstance(what, Exception):
            raise what
        return what

    return Row(row_id, "tries", "EPERM", "a wall", attack, control, letters, alone)


def test_stopped_with_a_control_that_works_is_held() -> None:
    result = run.run_row(NOWHERE, row(STOPPED))
    assert (result.status, result.control, result.observed) == ("held", "ran", "a: EPERM; b: ENOSYS")
    assert result.why == "the control does not show a"


@pytest.mark.parametrize(
    "seen",
    [
        [WORKED],
        [STOPPED, WORKED],
        [NotHere("later"), WORKED],
        [Tries({})],
        [STOPPED, ProgramFailed("it said nothing")],
        [RuntimeError("the box is gone")],
    ],
)
def test_one_place_that_is_open_or_cannot_be_told_opens_the_row(seen: list[Tries | Exception]) -> None:
    assert run.run_row(NOWHERE, row(*seen)).status == "open"


def test_a_place_that_is_not_here_is_left_out_and_said() -> None:
    result = run.run_row(NOWHERE, row(STOPPED, NotHere("later")))
    assert result.status == "held"
    assert result.runners == {"shell": "held", "skill jail": "not_applicable: later"}


def test_nowhere_to_try_is_not_applicable() -> None:
    result = run.run_row(NOWHERE, absent("Z02", "tries", "no", "a wall", "comes later"))
    assert (result.status, result.why, result.control) == ("not_applicable", "comes later", "none")
    assert result.as_json()["held"] is None


def test_a_control_that_shows_nothing_opens_a_held_row() -> None:
    result = run.run_row(NOWHERE, row(STOPPED, control=ran(lambda _stage: STOPPED)))
    assert result.status == "open"
    assert result.why.startswith("control failed")


def test_a_control_that_this_host_makes_impossible_makes_the_row_not_applicable() -> None:
    impossible = ran(lambda _stage: STOPPED, "this kernel has none")
    assert run.run_row(NOWHERE, row(STOPPED, control=impossible)).status == "not_applicable"
    assert run.run_row(NOWHERE, row(WORKED, control=impossible)).status == "open"


def test_a_control_that_fails_otherwise_is_no_excuse_even_there() -> None:
    def broken(_stage: Stage) -> Tries:
        raise ProgramFailed("it ended with 1")

    assert run.run_row(NOWHERE, row(STOPPED, control=ran(broken, "this kernel has none"))).status == "open"


def test_a_control_that_cannot_be_had_is_said() -> None:
    def rootless(_stage: Stage) -> Tries:
        raise NotHere("the control needs root")

    result = run.run_row(NOWHERE, row(STOPPED, control=ran(rootless)))
    assert (result.status, result.control, result.why) == ("held", "none", "the control needs root")


def test_no_control_without_a_reason_opens() -> None:
    assert run.run_row(NOWHERE, row(STOPPED, control=no_control(""))).status == "open"
    assert run.run_row(NOWHERE, row(STOPPED, control=no_control("documented"))).status == "held"


def test_all_rows_are_told_and_come_in_order_with_lonely_ones_last() -> None:
    told: list[str] = []
    rows = [row(STOPPED, row_id="Z01", alone=True), row(STOPPED, row_id="Z02"), row(WORKED, row_id="Z03")]
    results = run.run_all(NOWHERE, rows, lambda result: told.append(result.row.id))
    assert [result.row.id for result in results] == ["Z01", "Z02", "Z03"]
    assert told[-1] == "Z01"
    assert sorted(told) == ["Z01", "Z02", "Z03"]


def test_no_two_wait_for_one_play_while_others_could_run() -> None:
    plain, alone = row(STOPPED, row_id="A01"), row(STOPPED, row_id="A02", alone=True)
    played = [replace(row(STOPPED, row_id=f"{play}0{n}"), play=play) for play in "GM" for n in (1, 2, 3)]
    order = [each.id for each in run.in_turn([plain, alone, *played])]
    assert order == ["G01", "M01", "A01", "G02", "G03", "M02", "M03"]
