"""`usage`, `user export` and `user rm --dry-run` against the real web servers: what is shown, exit codes, and who may."""

from __future__ import annotations

import csv
import hashlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.cli.usage_command import COLUMNS, csv_of
from tests.support.web_rig import Web, web

ROW = {
    "day": "2026-01-01",
    "user": "alice",
    "tenant": "default",
    "active_seconds": 1.5,
    "running_seconds": 60.0,
    "cpu_seconds": 2.5,
    "memory_gib_hours": 1.0,
    "disk_gib_hours": 2.0,
    "egress_up_bytes": 10,
    "egress_down_bytes": 2048,
    "model_tokens": 95,
    "starts": 2,
    "pauses": 1,
}


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        yield made


# --- usage -----------------------------------------------------------------------------------------------------------


def test_of_one(served: Web) -> None:
    done = served.cli("usage", "alice", "--from", "2026-01-01", "--to", "2026-01-31", "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer["rows"] == [ROW]
    assert answer["sum"] == {**ROW, "day": None, "user": None}
    assert (answer["first"], answer["last"]) == ("2026-01-01", "2026-01-31")


def test_of_a_tenant_with_a_sum(served: Web) -> None:
    answer = json.loads(served.cli("usage", "--tenant", "default", "--from", "2026-01-01", "--json").stdout)
    assert [row["user"] for row in answer["rows"]] == ["alice", "zoë"]
    assert (answer["sum"]["cpu_seconds"], answer["sum"]["starts"]) == (5.0, 4)
    table = served.cli("usage", "--from", "2026-01-01").stdout.decode().splitlines()
    assert [line.split()[0] for line in table] == ["DAY", "2026-01-01", "2026-01-01", "sum"]
    assert table[1].split()[:6] == ["2026-01-01", "alice", "1.5", "60.0", "2.5", "1.000"]


def test_as_csv(served: Web) -> None:
    done = served.cli("usage", "--from", "2026-01-01", "--csv")
    title, first, second = list(csv.reader(done.stdout.decode().splitlines()))
    assert tuple(title) == COLUMNS == tuple(ROW)
    assert dict(zip(title, first, strict=True)) == {name: str(value) for name, value in ROW.items()}
    assert second[1] == "zoë"


@pytest.mark.parametrize(
    "name",
    ["=cmd|'/c calc'!A1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\uff1d1", "\u00a0@x", '",=1', "a\n=1"],
)
def test_no_cell_is_a_formula_whatever_somebody_is_called(name: str) -> None:
    """Control: the name is in the file, whole."""
    [_, row] = list(csv.reader(csv_of([{**ROW, "user": name}]).splitlines(keepends=True)))
    cell = row[1]
    assert len(row) == len(COLUMNS)
    assert not cell.lstrip(" \u00a0").startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d"))
    assert cell.endswith(name.replace("\r", "\r"))


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--from", "yesterday"], 2, "--from 'yesterday' is no day"),
        (["--from", "2026-02-30"], 2, "is no day"),
        (["--to", "20260201"], 2, "is no day"),
        (["--from", ""], 2, "is no day"),
        (["--from", "2026-02-02", "--to", "2026-02-01"], 2, "is after --to"),
        (["--from", "0001-01-01", "--to", "9999-12-31"], 2, "days are asked for; the limit is 3660"),
        (["--csv", "--json"], 2, "two forms of one answer"),
        (["nobody"], 4, "no such user"),
    ],
)
def test_bad_input(served: Web, words: list[str], code: int, says: str) -> None:
    done = served.cli("usage", *words)
    assert done.returncode == code, done
    assert says in (done.stderr + done.stdout).decode()


def test_who_may_not(served: Web) -> None:
    env = {"RINGFENCE_URL": served.url, "RINGFENCE_TOKEN": served.token("alice")}
    assert served.cli("usage", "alice", env=env).returncode == 0
    assert served.cli("usage", env=env).returncode == 3


# --- export ----------------------------------------------------------------------------------------------------------


def test_an_export_is_whole_or_is_not_there(served: Web, tmp_path: Path) -> None:
    target = tmp_path / "alice.tar.gz"
    served.engine.exports.broken = True
    try:
        done = served.cli("user", "export", "alice", "--output", str(target))
        assert done.returncode == 5, done
        assert list(tmp_path.iterdir()) == []
    finally:
        served.engine.exports.broken = False
    done = served.cli("user", "export", "alice", "--output", str(target), "--json")
    assert done.returncode == 0
    answer, data = json.loads(done.stdout), served.engine.exports.data
    assert target.read_bytes() == data
    assert (answer["sha256"], answer["size_bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_an_export_overwrites_nothing_and_needs_a_place(served: Web, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.write_text("mine")
    done = served.cli("user", "export", "alice", "--output", str(target))
    assert (done.returncode, target.read_text()) == (2, "mine")
    assert b"overwrites nothing" in done.stderr
    done = served.cli("user", "export", "alice", "--output", str(tmp_path / "no" / "folder"))
    assert done.returncode == 2 and b"cannot write" in done.stderr
    assert served.cli("user", "export", "nobody", "--output", str(tmp_path / "x")).returncode == 4
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


# --- the rehearsal of a removal --------------------------------------------------------------------------------------


def test_a_rehearsal_removes_nobody(served: Web) -> None:
    done = served.cli("user", "rm", "alice", "--dry-run", "--json")
    answer = json.loads(done.stdout)
    assert (answer["dry_run"], answer["purge"], answer["runs"]) == (True, False, ["run_1"])
    assert answer["box"]["disk_bytes"] == 1536
    said = served.cli("user", "rm", "alice", "--dry-run", "--purge").stdout.decode()
    assert "1.5KiB: its files are deleted for good" in said
    assert said.index("would go") < said.index('["alone"]') < said.index("would stay") < said.index('["#team"]')
    assert served.cli("user", "show", "alice").returncode == 0
    assert served.cli("user", "rm", "nobody", "--dry-run").returncode == 4
