"""Where an installation's cgroups are looked for: under v2, in hierarchies of v1, and in both of a hybrid host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringfence.prove import outside, remains

BOX = "b" * 16


def tree(base: Path, *parents: str) -> Path:
    for parent in parents:
        (base / parent / "ringfence-one" / BOX / "main").mkdir(parents=True)
        (base / parent / "ringfence-two").mkdir()
    return base


@pytest.mark.parametrize("parents", [("",), ("memory", "pids"), ("", "memory"), ("unified",)])
def test_they_are_found_wherever_they_are(tmp_path: Path, parents: tuple[str, ...]) -> None:
    base = tree(tmp_path, *parents)
    expected = sorted(base / parent / "ringfence-one" for parent in parents)
    assert remains.cgroups("one", at=base) == expected
    assert remains.cgroups("one", BOX, base) == [path / BOX for path in expected]
    assert remains.cgroups("one", "c" * 16, base) == []
    assert remains.cgroups("three", at=base) == []
    assert remains.cgroups("", at=base) == []


def test_a_link_of_v1_is_no_second_hierarchy(tmp_path: Path) -> None:
    base = tree(tmp_path, "cpu,cpuacct")
    (base / "cpu").symlink_to("cpu,cpuacct")
    assert remains.cgroups("one", at=base) == [base / "cpu,cpuacct" / "ringfence-one"]


def test_a_process_must_be_in_a_leaf_of_every_hierarchy(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = f"2:pids:/ringfence-one/{BOX}/cmds\n1:memory:/ringfence-one/{BOX}\n0::/\n"
    monkeypatch.setattr(Path, "read_text", lambda _path: lines)
    monkeypatch.setattr(outside, "ended", lambda pid: pid == 2)
    assert outside.cgroup([1], BOX, 1).done == []
    assert outside.cgroup([1], BOX, 2).done == ["process 1"]
    assert outside.cgroup([1, 2], BOX, 2).done == ["process 1"]  # what has ended runs nothing, wherever it is shown


@pytest.mark.parametrize(
    ("program", "over"),
    [
        ("", True),
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); last()", False),
    ],
)
def test_a_process_has_ended_when_its_last_thread_has(program: str, over: bool) -> None:
    """Both are zombies to look at."""
    prelude = "import ctypes; last = lambda: ctypes.CDLL(None).pthread_exit(None)\n"
    process = subprocess.Popen([sys.executable, "-c", prelude + program])
    try:
        while outside.status(process.pid)["State"][0] != "Z":
            time.sleep(0.01)
        assert outside.ended(process.pid) is over
        assert not outside.ended(os.getpid())
    finally:
        process.kill()
        process.wait()
    assert outside.ended(process.pid)
