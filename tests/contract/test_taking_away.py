"""Folders are deleted whole, however deep, and nothing that is only mounted in them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.host.install.layout import Layout
from ringfence.host.install.taking_away import take_away
from ringfence.host.install.whole_restore import MARK, _named

DEEP = 3000  # more than a path of PATH_MAX bytes has room for, and than Python recurses


def test_all_of_it_and_no_link_is_followed(tmp_path: Path) -> None:
    kept, top = tmp_path / "kept", tmp_path / "top"
    kept.mkdir()
    (kept / "file").write_text("kept")
    (top / "a" / "b").mkdir(parents=True)
    for path in (top / "file", top / "a" / "file", top / "a" / "b" / "file"):
        path.write_text("gone")
    (top / "a" / "link").symlink_to(kept)
    (top / "link").symlink_to(kept)
    os.mkfifo(top / "a" / "fifo")
    take_away(top)
    assert not top.exists()
    assert (kept / "file").read_text() == "kept"


def test_a_deep_one(tmp_path: Path) -> None:
    """Control: what recurses does not come to its end."""
    top = tmp_path / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("deeper", dir_fd=fd)
        below = os.open("deeper", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with pytest.raises((RecursionError, OSError)):
        shutil.rmtree(top)
    take_away(top)
    assert not top.exists()


def test_what_is_to_go_last_is_there_until_then(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "z" / "closed").mkdir(parents=True)
    (top / MARK).touch()
    (top / "a").touch()
    (top / "z").chmod(0o500)
    if os.geteuid() != 0:  # whom that keeps from it
        with pytest.raises(PermissionError):
            take_away(top, last=MARK)
        assert sorted(os.listdir(top)) == [MARK, "z"]
    (top / "z").chmod(0o700)
    take_away(top, last=MARK)
    assert not top.exists()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A foreign folder, and one that is to go, in which that is mounted: of the same file system, so with the same device."""
    foreign, top = tmp_path / "foreign", tmp_path / "top"
    point = top / "in" / "it"
    point.mkdir(parents=True)
    foreign.mkdir()
    (foreign / "file").write_text("kept")
    subprocess.run(["mount", "--bind", str(foreign), str(point)], check=True)
    try:
        yield foreign, top
    finally:
        subprocess.run(["umount", str(point)], capture_output=True, check=False)


@pytest.mark.root
def test_what_is_mounted_in_it_is_untouched(mounted: tuple[Path, Path]) -> None:
    foreign, top = mounted
    for _ in range(2):  # also when asked again
        with pytest.raises(OSError, match="mounted") as raised:
            take_away(top)
        assert str(raised.value.filename).startswith(str(top))
        assert (foreign / "file").read_text() == "kept"
    where = next(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{top}/" in line)
    subprocess.run(["umount", where], check=True)
    take_away(top)
    assert not top.exists()
    assert (foreign / "file").read_text() == "kept"


@pytest.mark.root
def test_control_what_does_not_look_deletes_through_a_mount(mounted: tuple[Path, Path]) -> None:
    foreign, top = mounted
    with pytest.raises(OSError, match="busy"):
        shutil.rmtree(top)
    assert not (foreign / "file").exists()


def test_a_restore_that_cannot_be_given_its_name_leaves_what_was_there(tmp_path: Path) -> None:
    """The folder that was built is gone, by somebody's hand."""
    home = tmp_path / "state"
    (home / "spawner").mkdir(parents=True)
    (home / "installation.json").write_text("before")
    with pytest.raises(FileNotFoundError):
        _named(Layout(home), Layout(tmp_path / "state.restoring"))
    assert (home / "installation.json").read_text() == "before"
    assert os.listdir(tmp_path) == ["state"]
