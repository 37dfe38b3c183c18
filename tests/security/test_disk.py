"""A user's tree is bounded in bytes and inodes; each wall with the same fill where that wall is missing (threats E08)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.spawner import protocol
from tests.support import disk_rig, spawner_rig
from tests.support.disk_rig import (
    BOX,
    MIB,
    SMALL,
    devices_of,
    fill_bytes,
    fill_inodes,
    nothing_left,
    observed,
)
from tests.support.spawner_rig import Refusal, Rig

pytestmark = pytest.mark.root
# Project quotas need a kernel with CONFIG_QFMT_V2: where it has none the server refuses them (last test), and what is
# said of them in the tests below is said of images alone.
BOUNDED = ["image", *(["quota"] if disk_rig.kernel_has_quotas() else [])]


@pytest.fixture
def image() -> Iterator[Rig]:
    rig = disk_rig.with_disk("image")
    yield rig
    rig.clean()
    assert nothing_left(rig.home)


@pytest.fixture
def counted() -> Iterator[Rig]:
    """The control: nothing bounds the tree."""
    rig = disk_rig.with_disk("accounting")
    yield rig
    rig.clean()


@pytest.fixture
def quota() -> Iterator[Rig]:
    with disk_rig.quota_volume() as place:
        home = place / "rig" / "state"
        home.parent.mkdir(mode=0o711)
        home.mkdir()
        rig = Rig(home, overrides={"disk": "quota"})
        rig.prepare()
        rig.start()
        yield rig
        rig.clean()


def box_in(rig: Rig) -> Rig:
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    return rig


@pytest.mark.parametrize(
    "fill", [lambda rig: fill_bytes(rig, 96), lambda rig: fill_inodes(rig, 3000)], ids=["bytes", "inodes"]
)
def test_a_fill_passes_the_limit_where_nothing_bounds_it(counted: Rig, fill: Callable[[Rig], dict[str, Any]]) -> None:
    """The positive control of the four tests below."""
    assert fill(box_in(counted))["rc"] == 0
    seen = observed(counted)
    assert (seen["disk_by"], seen["disk_used"], seen["inode_limit"]) == ("accounting", -1, 0)


@pytest.mark.parametrize("how", BOUNDED)
def test_bytes_are_bounded(how: str, request: pytest.FixtureRequest) -> None:
    rig = box_in(request.getfixturevalue(how))
    done = fill_bytes(rig, 96)
    assert done["rc"] == 9 and ("No space left" in done["err"] or "quota exceeded" in done["err"].lower())
    seen = observed(rig)
    assert seen["disk_by"] == how and seen["disk_free"] < 64 << 10
    assert SMALL.disk * 0.8 < seen["disk_used"] <= SMALL.disk
    assert rig.shell(BOX, "rm /workspace/0 && head -c 4194304 /dev/zero > /workspace/again")["rc"] == 0


@pytest.mark.parametrize("how", BOUNDED)
def test_inodes_are_bounded(how: str, request: pytest.FixtureRequest) -> None:
    rig = box_in(request.getfixturevalue(how))
    done = fill_inodes(rig, 3000)
    assert done["rc"] != 0 and ("No space left" in done["err"] or "quota exceeded" in done["err"].lower())
    seen = observed(rig)
    assert seen["inodes"] == seen["inode_limit"] < 2048 + 64


def test_the_mount_is_nosuid_nodev_and_the_boxes_alone(image: Rig) -> None:
    uid = image.provision(BOX, limits=SMALL)["uid"]
    tree = image.home / "boxes" / BOX / "tree"
    options = next(
        line.split()[3].split(",") for line in Path("/proc/self/mounts").read_text().splitlines() if f"{tree} " in line
    )
    assert {"nosuid", "nodev"} <= set(options)
    status = tree.stat()
    assert (status.st_uid, status.st_mode & 0o7777) == (uid, 0o700)
    assert sorted(os.listdir(tree)) == ["home", "tmp", "workspace"]  # no lost+found
    disk = tree.parent / "disk.img"
    assert (disk.stat().st_uid, disk.stat().st_mode & 0o777, disk.stat().st_size) == (0, 0o600, SMALL.disk)


def test_a_full_disk_and_everything_still_works(image: Rig) -> None:
    """C53."""
    box_in(image)
    assert fill_bytes(image, 96)["rc"] == 9
    assert fill_inodes(image, 3000)["rc"] != 0
    assert image.shell(BOX, "echo alive; ls /workspace | wc -l; id -u")["out"].startswith("alive")
    image.ask(protocol.Stop(BOX))
    image.start_box(BOX, SMALL)
    assert image.shell(BOX, "rm -rf /workspace/* && echo kept > /workspace/kept")["rc"] == 0
    assert observed(image)["disk_used"] < MIB


def test_a_tree_of_three_thousand_levels_and_two_hundred_thousand_bytes_of_names_goes_with_its_image(
    image: Rig,
) -> None:
    image.provision(BOX)
    image.start_box(BOX)
    code = "import os\nfor _ in range(3000):\n  os.mkdir('d'); os.chdir('d')\nopen('leaf', 'w')"
    assert image.shell(BOX, f'cd /workspace && /usr/bin/python3 -c "{code}"')["rc"] == 0
    image.ask(protocol.Remove(BOX))
    assert os.listdir(image.home / "boxes") == [] and nothing_left(image.home)


def test_a_disk_grows_and_never_shrinks(image: Rig) -> None:
    box_in(image)
    image.shell(BOX, "echo kept > /home/user/kept")
    with pytest.raises(Refusal, match="cannot shrink") as shrunk:
        image.ask(protocol.SetLimits(BOX, replace(SMALL, disk=SMALL.disk // 2)))
    assert shrunk.value.code == "refused" and shrunk.value.remedy
    with pytest.raises(Refusal, match="made for 2048 inodes"):
        image.ask(protocol.SetLimits(BOX, replace(SMALL, inodes=SMALL.inodes * 2)))
    larger = replace(SMALL, disk=4 * SMALL.disk)
    try:
        image.ask(protocol.SetLimits(BOX, larger))
    except Refusal as refusal:  # without CAP_SYS_RESOURCE, as in many containers
        assert refusal.code == "busy" and "box stop" in refusal.remedy
        assert not _may_grow_in_use()
        image.ask(protocol.Stop(BOX))
        image.ask(protocol.SetLimits(BOX, larger))
        image.start_box(BOX, larger)
    assert fill_bytes(image, 192)["rc"] == 0
    assert image.shell(BOX, "cat /home/user/kept")["out"] == "kept\n"
    assert len(devices_of(image.home)) == 1


def _may_grow_in_use() -> bool:
    caps = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return bool(int(caps.split()[1], 16) >> 24 & 1)


def test_a_configuration_that_names_no_disk_is_refused() -> None:
    refused_with({"disk": "paper"}, "no disk")


def test_project_quotas_that_do_not_hold_are_refused() -> None:
    """The state directory's file system is mounted without them."""
    refused_with({"disk": "quota"}, "project quotas")


def refused_with(overrides: dict[str, Any], said: str) -> None:
    rig = spawner_rig.make(overrides=overrides)
    with pytest.raises(spawner_rig.NotStarted, match=said):
        rig.start()
    assert sorted(os.listdir(rig.home / "spawner")) == ["config.json", "lock"] or said == "no disk"
    rig.discard()


if "quota" in BOUNDED:

    def test_a_box_cannot_leave_its_project(quota: Rig) -> None:
        """Control: the same call works from the host's own user namespace."""
        box_in(quota)
        code = (
            "import fcntl, os, struct; fd = os.open('/workspace', os.O_RDONLY); "
            "raw = bytearray(fcntl.ioctl(fd, 0x801C581F, bytes(28))); raw[12:16] = struct.pack('=I', 0); "
            "fcntl.ioctl(fd, 0x401C5820, bytes(raw))"
        )
        assert "Invalid argument" in quota.shell(BOX, f'/usr/bin/python3 -c "{code}"')["err"]
        tree = quota.home / "boxes" / BOX / "tree" / "workspace"
        done = subprocess.run(["/usr/bin/python3", "-c", code.replace("/workspace", str(tree))], check=False)
        assert done.returncode == 0

    def test_a_quota_follows_the_limits_both_ways(quota: Rig) -> None:
        box_in(quota)
        quota.ask(protocol.SetLimits(BOX, replace(SMALL, disk=2 * SMALL.disk)))
        assert fill_bytes(quota, 96)["rc"] == 0
        quota.ask(protocol.SetLimits(BOX, SMALL))
        assert quota.shell(BOX, "echo more > /workspace/more")["rc"] != 0
        assert observed(quota)["disk_free"] == 0
