"""Papers name files that exist, carry the two commands, and nothing of the machine that they were written on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
PAPERS = sorted([*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
TEST = re.compile(r"\btests/[\w/]+\.py\b")


def ids(path: Path) -> str:
    return str(path.relative_to(TOP))


@pytest.mark.parametrize("paper", PAPERS, ids=ids)
def test_links_lead_somewhere(paper: Path) -> None:
    broken = [link for link in LINK.findall(paper.read_text()) if not (paper.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("paper", PAPERS, ids=ids)
def test_named_tests_are_there(paper: Path) -> None:
    """A promise whose test is gone is no promise."""
    assert [name for name in TEST.findall(paper.read_text()) if not (TOP / name).is_file()] == []


def test_every_promise_names_its_test() -> None:
    table = (TOP / "SECURITY.md").read_text().split("## Promises")[1].split("## Other modes")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15
    assert [row for row in rows if not TEST.search(row)] == []


def test_the_readme_has_the_two_commands() -> None:
    text = (TOP / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_decisions_are_numbered_without_gaps_and_whole() -> None:
    names = sorted(p.name for p in (TOP / "docs" / "decisions").glob("*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    for name in names:
        text = (TOP / "docs" / "decisions" / name).read_text()
        for part in ("**Context.**", "**Decision.**", "**Alternatives.**", "**Consequences.**"):
            assert part in text, f"{name} lacks {part}"


def test_commands_of_the_readme_are_targets() -> None:
    targets = set(re.findall(r"^([a-z]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    assert {"setup", "demo", "test", "check", "bench", "soak", "lock", "clean"} <= targets
    named = set(re.findall(r"\bmake ([a-z]+)", "".join(p.read_text() for p in PAPERS)))
    assert named - targets - {"it", "sure", "the"} == set()
