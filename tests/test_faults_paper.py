"""docs/faults.md and the tests say the same: every row is there once, has a test, and each test that it names exists.

Tests are looked for by their syntax, nothing is imported. The functions take the paper as text, so that each rule is also
shown to fail on a paper that breaks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_threats_paper import NAMED, missing_tests, section, table

TESTS = Path(__file__).parent
PAPER = (TESTS.parent / "docs" / "faults.md").read_text()
ROWS, INVARIANTS = "## Every row", "## What must hold"
FAULTS = "01 02 03 04 05 06 07 09 10 11 12 13 15 16 17 18 20 21 23 24 26 27 29 30 31 32 34 35 36 38 39 40 41 42 44 45 47 48 49 50"  # that it names


def rows(paper: str) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in table(section(paper, ROWS), 4)}


# --- the rules: each gives what breaks it -----------------------------------------------------------------------------


def missing_rows(paper: str) -> list[str]:
    """Not there, or twice."""
    ids = [row[0] for row in table(section(paper, ROWS), 4)]
    return sorted(f"F{number}" for number in FAULTS.split() if ids.count(f"F{number}") != 1)


def unknown_rows(paper: str) -> list[str]:
    """Of no fault that is known, or named in the text alone."""
    known = {f"F{number}" for number in FAULTS.split()}
    return sorted(({*rows(paper)} - known) | (set(re.findall(r"\bF\d\d\b", paper)) - known))


def rows_without_a_test(paper: str) -> list[str]:
    return sorted(name for name, row in rows(paper).items() if not all(row[:2]) or not NAMED.search(row[2]))


def missing_invariants(paper: str) -> list[str]:
    ids = [row[0] for row in table(section(paper, INVARIANTS), 2)]
    return sorted(f"I{number}" for number in range(1, 11) if ids.count(f"I{number}") != 1)


RULES: tuple[Callable[[str], list[str]], ...] = (
    missing_rows,
    unknown_rows,
    rows_without_a_test,
    missing_tests,
    missing_invariants,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_paper_keeps_its_rules(rule: Callable[[str], list[str]]) -> None:
    assert rule(PAPER) == []


def test_there_is_something_to_keep() -> None:
    assert len(rows(PAPER)) == 40
    assert len(set(NAMED.findall(PAPER))) > 60


F24 = next(line for line in PAPER.splitlines() if line.startswith("| F24 |"))
BROKEN: dict[str, tuple[Callable[[str], list[str]], str, str, str]] = {
    "a row that is left out": (missing_rows, F24 + "\n", "", "F24"),
    "a row that is there twice": (missing_rows, F24, f"{F24}\n{F24}", "F24"),
    "a renamed row": (unknown_rows, "| F24 |", "| F98 |", "F98"),
    "a row without a test": (rows_without_a_test, F24.split(" | ")[-1], "by hand |", "F24"),
    "a renamed test": (missing_tests, "::test_a_reader_that_stays", "::test_a_reader", "faults/test_faults_disk.py"),
    "a renamed file": (missing_tests, "faults/test_wire.py", "faults/test_wires.py", "faults/test_wires.py"),
    "an invariant less": (missing_invariants, "| I9 |", "| I8 |", "I8"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_paper_that_breaks_a_rule_is_noticed(what: str) -> None:
    rule, before, after, named = BROKEN[what]
    assert before in PAPER
    found = rule(PAPER.replace(before, after))
    assert any(each.startswith(named) for each in found), found
