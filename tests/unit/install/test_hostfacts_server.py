"""Rows about the server: what freezes, who is killed last, which interpreter a box can see, what prove says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.host.install import doctor, hostfacts_server, prove_record
from ringfence.host.install.layout import Layout
from ringfence.host.install.prove_record import LEAST_HELD, ProvedRow
from ringfence.host.kernel.settings import Settings

UNIFIED = "33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
FREEZER = "30 25 0:26 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"


@pytest.mark.parametrize(
    ("mounts", "root", "ok", "words"),
    [
        (UNIFIED + FREEZER, True, True, "unified"),
        (FREEZER, True, True, "v1 freezer"),
        ("", True, False, "pause means stop"),
        (UNIFIED, False, False, "pause means stop"),  # nothing delegated
    ],
)
def test_what_freezes(tmp_path: Path, mounts: str, root: bool, ok: bool, words: str) -> None:
    (tmp_path / "mountinfo").write_text(mounts)
    (tmp_path / "cgroup").write_text("0::/\n")
    row = hostfacts_server.freeze(root, tmp_path)
    assert row.ok is ok and words in row.found
    assert ok or row.remedy


def test_who_is_killed_last() -> None:
    row = hostfacts_server.oom_score(os.geteuid() == 0)
    assert row.ok or "CAP_SYS_RESOURCE" in row.remedy
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "-900"  # it tried in a child
    assert hostfacts_server.oom_score(False).ok


def test_an_ordinary_users_server_is_open_to_that_user_and_the_doctor_says_so() -> None:
    """That it is so: security/test_same_account.py."""
    assert hostfacts_server.server_memory(True).ok
    row = hostfacts_server.server_memory(False)
    assert not row.ok and row.level == "recommended" and "credentials" in row.found and "root" in row.remedy
    assert f"weak  server-memory     {row.found}" in doctor.as_text([row]) and row.to_json()["ok"] is False


@pytest.mark.parametrize(
    ("pattern", "ok"), [("core", True), ("|/usr/lib/systemd/systemd-coredump %P", False), ("|", False), ("", True)]
)
def test_who_is_started_by_a_crash(tmp_path: Path, pattern: str, ok: bool) -> None:
    file = tmp_path / "core_pattern"
    file.write_text(pattern + "\n")
    row = hostfacts_server.core_pattern(file)
    assert (row.ok, bool(row.remedy)) == (ok, not ok)
    assert hostfacts_server.core_pattern(tmp_path / "none").ok


def test_a_box_sees_usr_only(tmp_path: Path) -> None:
    assert hostfacts_server.python_in_box("/usr/bin/python3").ok
    link = tmp_path / "python3"
    link.symlink_to("/usr/bin/python3")  # a virtual environment: the box has no such folder
    row = hostfacts_server.python_in_box(str(link))
    assert not row.ok and row.level == "required" and "/usr/bin/python3" in row.remedy
    assert not hostfacts_server.python_in_box("/opt/python/bin/python3").ok


def test_the_last_prove(tmp_path: Path) -> None:
    settings, layout = Settings(), Layout(tmp_path)
    row = hostfacts_server.prove(settings, tmp_path)
    assert (row.ok, row.remedy) == (False, "ringfence prove")
    rows = [ProvedRow(f"A{n:02}", "held") for n in range(LEAST_HELD)]
    path = prove_record.write(layout, prove_record.current(settings), rows, "now")
    row = hostfacts_server.prove(settings, tmp_path)
    assert row.ok and f"{LEAST_HELD} rows held" in row.found
    path.chmod(0o666)
    row = hostfacts_server.prove(settings, tmp_path)
    assert not row.ok and row.remedy == f"rm -r {path}; ringfence prove"
