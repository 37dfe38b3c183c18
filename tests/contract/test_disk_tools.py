"""Images made and grown by e2fsprogs, as any account may: nothing is mounted here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringfence.spawner import disk_kind, disk_tools, tasks
from ringfence.spawner.children import Children
from ringfence.spawner.errors import Failed
from ringfence.spawner.protocol import BOUNDS, Limits
from ringfence.spawner.superblock import BLOCK

GIB = 1 << 30


@pytest.mark.parametrize(
    ("disk", "reach"), [(32 << 20, 512 * GIB), (8 * GIB, 512 * GIB), (10 * GIB, 640 * GIB), (1 << 43, 8 << 40)]
)
def test_how_far_an_image_is_made_to_grow(disk: int, reach: int) -> None:
    assert disk_tools.reach_of(Limits(disk=disk)) == reach // BLOCK


def made(path: Path, disk: int) -> int:
    image = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.ftruncate(image, disk)
    tasks.run(disk_tools.make(Children(), image, Limits(disk=disk)))
    return image


@pytest.mark.parametrize("disk", [BOUNDS["disk"][0], 8 * GIB])
def test_an_image_takes_little_of_the_volume_and_is_whole(tmp_path: Path, disk: int) -> None:
    os.close(made(tmp_path / "image", disk))
    assert (tmp_path / "image").stat().st_blocks * 512 < 1 << 20  # the default's descriptors alone: 4 MiB for 8 GiB
    assert checked(tmp_path / "image") == 0


def test_an_image_grows_past_the_room_that_it_was_made_with(tmp_path: Path) -> None:
    disk = 256 << 20
    image = made(tmp_path / "image", disk)
    beyond = 2 * disk_tools.reach_of(Limits(disk=disk)) * BLOCK
    tasks.run(disk_tools.grow(Children(), image, beyond))
    os.close(image)
    assert checked(tmp_path / "image") == 0
    said = subprocess.run(["/sbin/dumpe2fs", "-h", tmp_path / "image"], capture_output=True, text=True, check=True)
    assert f"Block count:              {beyond // BLOCK}\n" in said.stdout


def checked(path: Path) -> int:
    """The exit status of e2fsck, which changes nothing here."""
    return subprocess.run(["/sbin/e2fsck", "-f", "-n", path], capture_output=True, check=False).returncode


def test_an_image_without_a_file_system_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "e2fsck").symlink_to("/bin/true")
    image = os.open(tmp_path / "image", os.O_RDWR | os.O_CREAT)
    os.ftruncate(image, 1 << 20)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Failed, match="has no file system"):
        patch.setattr(disk_kind, "_FOLDERS", (str(tmp_path),))
        tasks.run(disk_tools.grow(Children(), image, 2 << 20))
    os.close(image)


def instead_of_mkfs(folder: Path, script: str, patch: pytest.MonkeyPatch) -> None:
    (folder / "mkfs.ext4").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "mkfs.ext4").chmod(0o755)
    patch.setattr(disk_kind, "_FOLDERS", (str(folder),))


def test_a_program_that_does_not_end_is_killed_and_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children, image = Children(), os.open(tmp_path / "image", os.O_RDWR | os.O_CREAT)
    instead_of_mkfs(tmp_path, "exec sleep 60", monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(Failed, match="does not end"):
        patch.setattr(disk_tools, "SECONDS", 0.05)
        tasks.run(disk_tools.make(children, image, Limits()))
    os.close(image)
    assert len(children._status) == 1  # the control: it is known until it is reaped
    deadline = time.monotonic() + 30
    while children._status and time.monotonic() < deadline:
        children.collect()
        time.sleep(0.01)
    assert children._status == {}


RUNS = """
import os, sys
from ringfence.spawner import disk_kind, disk_tools, drop, tasks
from ringfence.spawner.children import Children
from ringfence.spawner.protocol import Limits
drop.oom_score(int(sys.argv[1]))
disk_kind._FOLDERS = (sys.argv[2],)
tasks.run(disk_tools.make(Children(), os.open(sys.argv[2] + "/image", os.O_RDWR | os.O_CREAT), Limits()))
"""


def lowers() -> bool:
    """Whether this account may make itself safer from the kernel than it is."""
    lower = "open('/proc/self/oom_score_adj', 'w').write('-900')"
    return subprocess.run([sys.executable, "-c", lower], capture_output=True, check=False).returncode == 0


def test_a_program_is_not_as_safe_from_the_kernel_as_the_spawner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised just after it began, so it waits for that."""
    told = tmp_path / "told"
    until = "i=0; until [ $(cat /proc/$$/oom_score_adj) -ge 0 ] || [ $i = 100 ]; do sleep 0.05; i=$((i+1)); done"
    instead_of_mkfs(tmp_path, f"{until}; cat /proc/$$/oom_score_adj > {told}", monkeypatch)
    own = int(Path("/proc/self/oom_score_adj").read_text())
    for score, seen in ((own, max(own, 0)), *([(-900, 0)] if lowers() else [])):
        subprocess.run([sys.executable, "-c", RUNS, str(score), str(tmp_path)], check=True)
        assert int(told.read_text()) == seen


@pytest.mark.root
def test_who_may_not_lower_a_score_keeps_it() -> None:
    """It is at least as much as was asked for, which is what its callers need."""
    own = int(Path("/proc/self/oom_score_adj").read_text())
    raised = f"import os; from ringfence.spawner import drop; drop.oom_score({own + 1}); "
    code = raised + f"os.setresuid(65534, 65534, 65534); drop.oom_score({own}); "
    told = code + "print(open('/proc/self/oom_score_adj').read())"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert int(done.stdout) == own + 1
