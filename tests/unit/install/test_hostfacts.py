"""Rows of the doctor on hosts that are made up, and bubblewraps that must not be used."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.host.install import cgroups, doctor, hostfacts
from ringfence.host.install.hostfacts import Row

EUID = os.geteuid()
V2 = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
HYBRID = (
    "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 25 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    "33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ringfence-facts-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def program(base: Path, version: str, mode: int = 0o755) -> str:
    path = base / "bwrap"
    path.write_text(f"#!/bin/sh\necho bubblewrap {version}\n")
    path.chmod(mode)
    return str(path)


def test_a_good_bubblewrap(base: Path) -> None:
    row = hostfacts.bubblewrap(program(base, "0.12.0"), EUID)
    assert (row.ok, row.remedy) == (True, "")
    assert row.found.endswith("0.12.0")


@pytest.mark.parametrize(
    ("mode", "word", "remedy"),
    [
        (0o4755, "setuid", "chmod u-s"),
        (0o2755, "setuid", "chmod u-s,g-s"),
        (0o757, "writable", "chmod go-w"),
        (0o775, "writable", "chmod go-w"),
        (0o644, "no program", "apt-get install --reinstall"),
    ],
)
def test_a_bubblewrap_that_must_not_be_used(base: Path, mode: int, word: str, remedy: str) -> None:
    row = hostfacts.bubblewrap(program(base, "0.12.0", mode), EUID)
    assert (row.ok, row.level) == (False, "required")
    assert word in row.found
    assert remedy in row.remedy


def test_a_folder_above_it_counts(base: Path) -> None:
    path = program(base, "0.12.0")
    base.chmod(0o777)
    row = hostfacts.bubblewrap(path, EUID)
    assert not row.ok
    assert str(base) in row.remedy


@pytest.mark.root
def test_a_bubblewrap_of_somebody_else(base: Path) -> None:
    path = program(base, "0.12.0")
    os.chown(path, 65534, 65534)
    assert "65534" in hostfacts.bubblewrap(path, EUID).found


def test_none_at_all(base: Path) -> None:
    row = hostfacts.bubblewrap(str(base / "bwrap"), EUID)
    assert (row.ok, row.remedy) == (False, "apt-get install -y bubblewrap")


@pytest.mark.parametrize("version", ["0.7.9", "0.4", "", "x"])
def test_one_that_is_too_old_or_will_not_say(base: Path, version: str) -> None:
    assert not hostfacts.bubblewrap(program(base, version), EUID).ok


@pytest.mark.parametrize(("version", "ok"), [("0.8.0", False), ("0.11.9", False), ("0.12.0", True), ("1.0", True)])
def test_the_cve_is_a_warning_that_says_why_it_is_harmless(base: Path, version: str, ok: bool) -> None:
    row = hostfacts.bwrap_cve(program(base, version))
    assert row.ok is ok
    assert row.level != "required"
    assert ok or ("CVE-2026-87766" in row.found and "bound last" in row.found)


@pytest.mark.parametrize(
    ("version", "ok"), [("5.13.0", False), ("5.14.0-x", True), ("6.1.0-18", True), ("6.18.44", True)]
)
def test_kernels(monkeypatch: pytest.MonkeyPatch, version: str, ok: bool) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "h", version, "", "x86_64")))
    assert hostfacts.kernel().ok is ok


def test_another_python_is_refused(base: Path) -> None:
    other = base / "python3"
    other.write_text("#!/bin/sh\necho 3.99\n")
    other.chmod(0o755)
    row = hostfacts.python(str(other), EUID)
    assert not row.ok
    assert "3.99" in row.found
    assert "make clean setup" in row.remedy
    absent = hostfacts.python(str(base / "absent"), EUID)
    assert not absent.ok and "the key python" in absent.found and 'python = "/usr/bin/python3"' in absent.remedy


def test_mounts_of_v2_and_hybrid() -> None:
    assert cgroups.mounts(V2) == (Path("/sys/fs/cgroup"), {})
    unified, v1 = cgroups.mounts(HYBRID)
    assert unified == Path("/sys/fs/cgroup/unified")
    assert set(v1) == {"memory", "cpu", "pids"}
    assert cgroups.mounts("garbage\n - \n") == (None, {})


@pytest.mark.parametrize(
    ("root", "controllers", "ok"),
    [
        (True, "cpu io memory pids", True),
        (True, "hugetlb", False),
        (False, "cpu memory pids", True),
        (False, "memory pids", False),
    ],
)
def test_v2_needs_every_controller(base: Path, root: bool, controllers: str, ok: bool) -> None:
    group = base / "user.slice"
    group.mkdir()
    for place in (base, group):
        (place / "cgroup.controllers").write_text(controllers)
        (place / "cgroup.procs").write_text("")
    (base / "mountinfo").write_text(f"30 25 0:26 / {base} rw - cgroup2 cgroup2 rw\n")
    (base / "cgroup").write_text("12:pids:/x\n0::/user.slice\n")
    row = cgroups.row(root, base)
    assert row.ok is ok
    assert ok or "no-cgroup" in row.remedy
    assert row.level != "required"


def test_what_is_missing_and_how_it_reads() -> None:
    rows = [
        Row("a", True, "required", "fine", "not said"),
        Row("b", False, "recommended", "poor", "do this"),
        Row("c", False, "required", "bad", "do that"),
    ]
    assert doctor.missing(rows) == [rows[2]]
    text = doctor.as_text(rows)
    assert "FAIL  c" in text
    assert "-> do that" in text
    assert "not said" not in text


def test_every_row_of_this_host_that_fails_has_a_remedy(base: Path) -> None:
    from ringfence.host.kernel.settings import Settings

    rows = doctor.examine(Settings(), base / "state")
    assert {"kernel", "python", "bubblewrap", "user-namespaces", "apparmor", "cgroups", "landlock", "pidfs"} <= {
        row.id for row in rows
    }
    assert len({row.id for row in rows}) == len(rows)
    assert all(row.remedy for row in rows if not row.ok)
