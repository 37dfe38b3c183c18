"""What is remembered of the runs of a box: bounded, and a budget is never given anew to a run that goes on."""

from __future__ import annotations

import pytest

from ringfence.host.broker.given import GivenRuns
from ringfence.wire.messages import METHODS


def given(*runs: str) -> GivenRuns:
    made = GivenRuns()
    for run in runs:
        made.give(run, f"token of {run}")
    return made


def test_a_run_is_proven_by_its_own_token_only() -> None:
    runs = given("a", "b")
    assert runs.proves("a", "token of a")
    for run, token in (("a", "token of b"), ("a", ""), ("c", "token of a"), ("c", "")):
        assert not runs.proves(run, token)


def test_a_new_attempt_has_a_new_token_and_the_old_budget() -> None:
    runs = given("a")
    budget = METHODS["run.fail"].budget
    assert [runs.spend("a", "run.fail") for _ in range(budget + 1)] == [True] * budget + [False]
    runs.loop_ended("a")
    runs.give("a", "another")
    assert runs.proves("a", "another") and not runs.proves("a", "token of a")
    assert not runs.spend("a", "run.fail")
    assert runs.spend("a", "step.begin")
    assert not runs.spend("of nobody", "step.begin")


def test_what_the_guest_claims_never_replaces_what_it_was_given() -> None:
    runs = given("a")
    runs.claim("a", "mine")
    runs.claim("b", "of an earlier kernel")
    assert runs.proves("a", "token of a") and not runs.proves("a", "mine")
    assert runs.proves("b", "of an earlier kernel")


@pytest.mark.parametrize("loop_first", [True, False])
def test_a_run_is_forgotten_once_it_is_over_and_its_loop_has_ended(loop_first: bool) -> None:
    runs = given("a")
    first, second = (runs.loop_ended, runs.over) if loop_first else (runs.over, runs.loop_ended)
    first("a")
    assert runs.proves("a", "token of a")
    second("a")
    assert "a" not in runs and len(runs) == 0
    runs.over("a")
    runs.loop_ended("a")


def test_a_run_that_is_given_again_is_not_over() -> None:
    runs = given("a")
    runs.over("a")
    runs.give("a", "again")
    runs.loop_ended("a")
    assert runs.proves("a", "again")


def test_no_more_than_a_thousand_and_those_without_a_loop_go_first() -> None:
    runs = given(*(f"r{number}" for number in range(1024)))
    runs.loop_ended("r500")
    runs.give("new", "t")
    assert len(runs) == 1024
    assert "r500" not in runs and "r0" in runs
    runs.give("newer", "t")
    assert len(runs) == 1024 and "r0" not in runs


def test_broken_loops_are_named_while_they_live() -> None:
    runs = given("a", "b", "c")
    for run in ("a", "b", "of nobody"):
        runs.broke(run)
    assert [runs.is_broken(run) for run in ("a", "b", "c", "of nobody")] == [True, True, False, False]
    assert runs.broken({"a", "c"}) == ["a"]  # the loop of b has ended without our hearing of it
    assert not runs.is_broken("b")
    runs.loop_ended("a")
    assert runs.broken({"a", "c"}) == []
