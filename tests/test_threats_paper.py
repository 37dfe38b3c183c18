"""docs/threats.md and the code say the same: its tests and rows exist, no row is missing, no asset has one wall in silence.

Tests are looked for by their syntax, nothing is imported but the list of rows. The functions take the paper as text, so that
each rule is also shown to fail on a paper that breaks it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from ringfence.prove import registry

TESTS = Path(__file__).parent
PAPER = (TESTS.parent / "docs" / "threats.md").read_text()
ASSETS, ONE_WALL, ROWS = "## Assets and their walls", "## What has one wall only", "## Every row"
ID = re.compile(r"\b(?:[A-MS]\d\d|D-\d)\b")
NAMED = re.compile(r"\b([\w/]*test_\w+\.py)::(\w+)")
OPEN_ENDS = ("comes with", "not applicable:", "not promised:")

# The attack suite that the project set out with. What `prove` has beyond it is found in the registry.
SUITE = {
    "A": "01 02 03 04 05 06 08 09 11 12",
    "B": "01 02 03 04 06 07 08 09 10 11 13",
    "C": "01 02 03 04 05 06 07 08 09 11 12 13 14 15 17",
    "D": "01 02 03 04 05 06 07 08 10",
    "E": "01 02 03 04 05 07 08 09 10 11 14 15",
    "F": "01 02 03 04 06 07 08 10 11 12 14 15",
    "G": "01 02 03 04 06 08 09 10 11 12 13 14 15 17 18 19",
    "H": "01 02 03 04 05 06 07 08 09 10 11 12 14 15",
    "I": "01 02 03 04 05 07 08",
    "J": "01 02 03 04 05 06 08 09 10",
    "K": "01 02 03 04 05 06 07 08 09",
    "L": "01 02 03 04 05 06 07 08",
    "M": "01 02 03 04 05 06 07 08 09 11 12 13",
    "S": "01 02 03 04 05 06",
    "D-": "1 2 3 4 5 6 7",
}


@dataclass(frozen=True, slots=True)
class Threat:
    id: str
    attempt: str
    holds: str
    wall: str
    second: str
    enforced: str


def section(paper: str, title: str) -> str:
    return paper.split(f"\n{title}\n")[1].split("\n## ")[0]


def table(text: str, columns: int) -> list[list[str]]:
    """The cells of every row but headings, which a line of dashes follows."""
    lines = text.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    dashes = [n for n, row in enumerate(rows) if set("".join(row)) <= {"-"}]
    assert all(len(row) == columns for row in rows), [row for row in rows if len(row) != columns]
    return [row for n, row in enumerate(rows) if n not in dashes and n + 1 not in dashes]


def threats(paper: str) -> list[Threat]:
    return [Threat(*row) for row in table(section(paper, ROWS), 6)]


@cache
def functions_in(name: str) -> frozenset[str]:
    path = TESTS / name
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions)


# --- the rules: each gives what breaks it -----------------------------------------------------------------------------


def missing_tests(paper: str) -> list[str]:
    named = {(file.removeprefix("tests/"), test) for file, test in NAMED.findall(paper)}
    return sorted(f"{file}::{test}" for file, test in named if test not in functions_in(file))


def missing_rows(paper: str) -> list[str]:
    """Of the suite and of `prove`: not in the table, or twice."""
    ids = [threat.id for threat in threats(paper)]
    wanted = {letter + number for letter, numbers in SUITE.items() for number in numbers.split()}
    wanted |= {row.id for row in registry.rows()}
    return sorted(each for each in wanted if ids.count(each) != 1)


def unknown_rows(paper: str) -> list[str]:
    """Ids that the text names and no row has; rows that nothing but the paper knows."""
    ids = {threat.id for threat in threats(paper)}
    known = {letter + number for letter, numbers in SUITE.items() for number in numbers.split()}
    return sorted((set(ID.findall(paper)) - ids) | (ids - known - {row.id for row in registry.rows()}))


def false_proofs(paper: str) -> list[str]:
    """`prove` is said of exactly those rows that it has an attack for."""
    attacked = {row.id for row in registry.rows() if not row.attack.__qualname__.startswith("absent.")}
    return sorted(each.id for each in threats(paper) if ("`prove`" in each.enforced) != (each.id in attacked))


def is_tried(threat: Threat) -> bool:
    return "`prove`" in threat.enforced or NAMED.search(threat.enforced) is not None


def loose_ends(paper: str) -> list[str]:
    """Rows without a test, a row that tries the same, or a word on why not; tried ones without a wall."""
    found = threats(paper)
    tried = {threat.id for threat in found if is_tried(threat)}
    same = {t.id for t in found if t.enforced.startswith("as ") and set(ID.findall(t.enforced)) <= tried}
    ends = {t.id for t in found if t.enforced.startswith(OPEN_ENDS)}
    wall_less = {t.id for t in found if is_tried(t) and t.wall in ("", "-")}
    return sorted(({t.id for t in found} - tried - same - ends) | wall_less)


def assets_without_a_second_wall(paper: str) -> list[str]:
    """Neither two walls nor a place in the list of those with one; or shown by nothing that is tried."""
    listed = set(re.findall(r"\*\*([^*]+)\*\*", section(paper, ONE_WALL)))
    tried = {threat.id for threat in threats(paper) if is_tried(threat)}
    broken = []
    for name, wall, second, shown in table(section(paper, ASSETS), 4):
        two = wall not in ("", "-") and second not in ("", "-") and wall != second
        ids = set(ID.findall(shown))
        if not (two or name in listed) or not ids or not ids <= tried:
            broken.append(name)
    return broken


RULES: tuple[Callable[[str], list[str]], ...] = (
    missing_tests,
    missing_rows,
    unknown_rows,
    false_proofs,
    loose_ends,
    assets_without_a_second_wall,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_paper_keeps_its_rules(rule: Callable[[str], list[str]]) -> None:
    assert rule(PAPER) == []


def test_there_is_something_to_keep() -> None:
    assert len(threats(PAPER)) > 180
    assert len(table(section(PAPER, ASSETS), 4)) > 20
    assert len(set(NAMED.findall(PAPER))) > 90
    assert "**thread text**" in section(PAPER, ONE_WALL)


A01 = next(line for line in PAPER.splitlines() if line.startswith("| A01 |"))
VAULT = next(line for line in PAPER.splitlines() if line.startswith("| vault's key"))
BROKEN: dict[str, tuple[Callable[[str], list[str]], str, str, str]] = {
    "a renamed test": (missing_tests, "::test_the_view_from_inside", "::test_the_view", "contract/test_spawner.py"),
    "a renamed file": (missing_tests, "security/test_guest.py", "security/test_guests.py", "security/test_guests.py"),
    "a row that is left out": (missing_rows, A01 + "\n", "", "A01"),
    "a row that is there twice": (missing_rows, A01, f"{A01}\n{A01}", "A01"),
    "a renamed row": (unknown_rows, "| A01 |", "| A99 |", "A99"),
    "a row that the text alone names": (unknown_rows, "(S01-S06)", "(S01-S07)", "S07"),
    "a proof that is none": (false_proofs, "comes with skills", "`prove`", "J10"),
    "a row of prove without its proof": (false_proofs, A01, A01.replace("`prove`, ", ""), "A01"),
    "a row that nothing enforces": (loose_ends, "not applicable: the server runs no git", "", "F12"),
    "an asset with one wall": (
        assets_without_a_second_wall,
        VAULT,
        VAULT.replace("owner and mode: the server's account alone", "-"),
        "vault's key",
    ),
    "an asset that nothing shows": (assets_without_a_second_wall, "| A02 D10 |", "| J10 |", "vault's key"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_paper_that_breaks_a_rule_is_noticed(what: str) -> None:
    rule, before, after, named = BROKEN[what]
    assert before in PAPER
    found = rule(PAPER.replace(before, after))
    assert found != []
    assert any(each.startswith(named) for each in found)


def test_a_renamed_row_of_prove_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(row for row in registry.rows() if row.id != "C20")
    monkeypatch.setattr(registry, "rows", lambda: rows)
    assert unknown_rows(PAPER) == ["C20"]
    assert false_proofs(PAPER) == ["C20"]
