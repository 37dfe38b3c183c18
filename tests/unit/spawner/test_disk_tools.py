"""Images made and grown by e2fsprogs, as any account may: nothing is mounted here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ringfence.spawner import disk_tools, tasks
from ringfence.spawner.children import Children
from ringfence.spawner.protocol import BOUNDS, Limits

GIB = 1 << 30


@pytest.mark.parametrize(
    ("disk", "reach"), [(32 << 20, 512 * GIB), (8 * GIB, 512 * GIB), (10 * GIB, 640 * GIB), (1 << 43, 8 << 40)]
)
def test_how_far_an_image_is_made_to_grow(disk: int, reach: int) -> None:
    assert disk_tools.reach_of(Limits(disk=disk)) == reach // disk_tools.BLOCK


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
    beyond = 2 * disk_tools.reach_of(Limits(disk=disk)) * disk_tools.BLOCK
    tasks.run(disk_tools.grow(Children(), image, beyond))
    os.close(image)
    assert checked(tmp_path / "image") == 0
    said = subprocess.run(["/sbin/dumpe2fs", "-h", tmp_path / "image"], capture_output=True, text=True, check=True)
    assert f"Block count:              {beyond // disk_tools.BLOCK}\n" in said.stdout


def checked(path: Path) -> int:
    """The exit status of e2fsck, which changes nothing here."""
    return subprocess.run(["/sbin/e2fsck", "-f", "-n", path], capture_output=True, check=False).returncode
