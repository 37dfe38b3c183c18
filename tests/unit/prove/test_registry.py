"""The list of rows, what `--only` takes of it, the programs and the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.prove import copied, programs, registry
from ringfence.prove.report import Report, as_json, as_text
from ringfence.prove.row import Result, Row, Tries, absent, no_control

ROWS = [absent(row_id, "tries", "no", "a wall", "later") for row_id in ("A01", "A02", "B01")] + [
    Row("D-1", "tries", "no", "a wall", lambda _stage, _runner: Tries({}), no_control("x"), group="drills")
]


def test_ids_are_unique_and_every_row_says_what_it_is() -> None:
    rows = registry.rows()
    assert len({row.id for row in rows}) == len(rows)
    assert [row.id for row in rows if not (row.attempt and row.expected and row.wall and row.runners)] == []
    assert {row.in_group for row in rows} >= {"A", "B", "C", "D"}


@pytest.mark.parametrize(
    ("only", "ids"),
    [
        (None, ["A01", "A02", "B01"]),
        ("A", ["A01", "A02"]),
        ("A02,B", ["A02", "B01"]),
        (" drills , A01 ", ["A01", "D-1"]),
    ],
)
def test_only(only: str | None, ids: list[str]) -> None:
    assert [row.id for row in registry.chosen(ROWS, only)] == ids


def test_spike_is_a_choice_of_rows_that_are_there() -> None:
    rows = registry.rows()
    spike = [row.id for row in registry.chosen(rows, "spike")]
    assert sorted(spike) == sorted(registry.SPIKE_ROWS)
    assert {row.in_group for row in registry.chosen(rows, "spike")} == {"A", "D", "G", "H", "K", "L", "leaks"}
    assert [row.id for row in registry.chosen(rows, "spike,A01")] == ["A01", *spike]  # in the order of the table
    with pytest.raises(registry.NoSuchRow, match="spike"):
        registry.chosen(rows, "spik")


@pytest.mark.parametrize("only", ["", ",", "Z", "A01,Z99", "a01"])
def test_only_of_nothing_is_refused(only: str) -> None:
    with pytest.raises(registry.NoSuchRow):
        registry.chosen(ROWS, only)


def run(text: str) -> dict[str, str]:
    command = [sys.executable, "-I", "-S", "-c", programs.COMMAND]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return programs.last_line(done.stdout)


def test_a_program_runs_where_nothing_of_ours_is(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    outcomes = run(programs.payload("files", "reading", (str(tmp_path / "there"), str(tmp_path / "absent"))))
    assert outcomes == {str(tmp_path / "there"): "done b'x'", str(tmp_path / "absent"): "ENOENT"}


def test_every_program_imports_the_standard_library_only() -> None:
    for path in sorted(programs.FOLDER.glob("[a-z]*.py")):
        lines = [line for line in path.read_text().splitlines() if line.startswith(("from ", "import "))]
        ours = [line for line in lines if "ringfence" in line]
        assert [line for line in ours if not line.startswith("from ringfence.prove.attacks.")] == [], path


@pytest.mark.parametrize("output", ["", "\n", "no json", "[1]", "Traceback"])
def test_what_is_no_answer_is_refused(output: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        programs.last_line(output)


def test_a_patch_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="changes nothing"):
        copied.copy(tmp_path, {"spawner/drop.py": lambda text: text})


def test_the_copy_differs_in_what_is_patched_only(tmp_path: Path) -> None:
    copied.copy(tmp_path)
    package = Path(copied.SOURCE)
    differ = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.read_bytes() != (tmp_path / "ringfence" / path.relative_to(package)).read_bytes()
    ]
    assert sorted(differ) == ["guest/native.py", "host/engine/bringup.py", "host/engine/outward.py"]


def result(status: str) -> Result:
    return Result(ROWS[0], status, "a: EPERM", "ran", "why")  # type: ignore[arg-type]


def test_a_report_counts_and_says_what_is_open() -> None:
    report = Report("bubblewrap", "root", 3.21, [result("held"), result("open"), result("not_applicable")], [])
    facts = json.loads(as_json(report))
    assert (facts["held"], facts["open"], facts["not_applicable"], facts["ok"]) == (1, 1, 1, False)
    assert [row["held"] for row in facts["rows"]] == [True, False, None]
    assert set(facts["rows"][0]) >= {
        "id",
        "attempt",
        "expected",
        "observed",
        "status",
        "held",
        "wall",
        "control",
        "why",
    }
    assert "A01 is open. Expected: no. Wall: a wall. why" in as_text(report)


def test_what_was_left_behind_is_no_success() -> None:
    report = Report("bubblewrap", "root", 1.0, [result("held")], ["cgroup /x"])
    assert not report.ok
    assert "left behind: cgroup /x" in as_text(report)


def test_a_letter_is_the_list_of_attacks_whichever_group_a_row_runs_in() -> None:
    rows = registry.rows()
    chosen = {row.id for row in registry.chosen(rows, "K")}
    assert {"K01", "K02", "K03", "K04", "K07", "K08", "K09", "K11"} <= chosen
    assert {each[0] for each in chosen} == {"K"}
    assert not any(row.id.startswith("D-") for row in registry.chosen(rows, "D")), "drills run when they are named"
