"""What the host's files say of limits and mounts: a limit that is none, or that is the whole host, is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.prove import outside_limits
from ringfence.prove.row import NotHere

V2 = {"memory.max": "1048576", "pids.max": "100", "cpu.max": "50000 100000"}
V1 = {"memory.limit_in_bytes": "1048576", "pids.max": "100", "cpu.cfs_quota_us": "5000", "cpu.cfs_period_us": "100000"}
OPEN: dict[str, tuple[dict[str, str], str]] = {
    "no memory limit": ({"memory.max": "max"}, "memory"),
    "v1's number for none": ({"memory.max": str((1 << 63) - 4096)}, "memory"),
    "no pids limit": ({"pids.max": "max"}, "pids"),
    "all pids": ({"pids.max": str(1 << 22)}, "pids"),
    "no quota": ({"cpu.max": "max 100000"}, "cpu"),
    "all processors": ({"cpu.max": f"{100000 * (os.cpu_count() or 1)} 100000"}, "cpu"),
}


def directory(base: Path, files: dict[str, str]) -> list[Path]:
    base.mkdir(exist_ok=True)
    for name, text in files.items():
        (base / name).write_text(f"{text}\n")
    return [base]


@pytest.mark.parametrize("files", [V2, V1])
def test_what_is_bounded_below_the_host(tmp_path: Path, files: dict[str, str]) -> None:
    assert outside_limits.below_the_host(directory(tmp_path, files)).done == []


@pytest.mark.parametrize("what", OPEN)
def test_what_is_not(tmp_path: Path, what: str) -> None:
    files, name = OPEN[what]
    assert outside_limits.below_the_host(directory(tmp_path, V2 | files)).done == [name]


def test_v1_has_minus_one_for_no_quota(tmp_path: Path) -> None:
    assert outside_limits.below_the_host(directory(tmp_path, V1 | {"cpu.cfs_quota_us": "-1"})).done == ["cpu"]


def test_commands_have_less_than_their_box(tmp_path: Path) -> None:
    (box,) = directory(tmp_path / "box", V2)
    directory(box / "cmds", {"memory.max": "1000", "pids.max": "100"})
    assert outside_limits.leaf_below_box([box]).done == ["pids of commands"]
    directory(box / "cmds", {"memory.max": "1048576", "pids.max": "90"})
    assert outside_limits.leaf_below_box([box]).done == ["memory of commands"]


def test_mounts_of_a_process_are_judged_by_their_options() -> None:
    assert outside_limits.mounts(os.getpid(), "/").done != []
    assert outside_limits.mounts(os.getpid(), "/proc").outcomes
    with pytest.raises(NotHere):
        outside_limits.mounts(os.getpid(), "/nothing/is/mounted/here")
