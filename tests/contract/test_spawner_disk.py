"""A box's disk over its life: made once, adopted by the next spawner, mounted again after a boot, gone with the box."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.spawner import protocol
from tests.support import disk_rig
from tests.support.disk_rig import BOX, MIB, SMALL, devices_of, mounts_below, nothing_left, observed
from tests.support.spawner_rig import Refusal, Rig

pytestmark = pytest.mark.root
OTHER = "e" * 16


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = disk_rig.with_disk("image")
    yield made
    made.clean()
    assert nothing_left(made.home)


def boot(rig: Rig) -> None:
    """What a boot does to the mounts."""
    rig.stop()
    for place in mounts_below(rig.home):
        subprocess.run(["umount", place], check=True)
    assert nothing_left(rig.home)
    rig.start()


def test_the_next_spawner_finds_the_mount(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo kept > /workspace/kept")
    rig.kill()
    rig.start()
    assert rig.provision(BOX, limits=SMALL)["created"] is False
    assert rig.start_box(BOX, SMALL)["already"] is True
    assert rig.shell(BOX, "cat /workspace/kept")["out"] == "kept\n"
    assert len(mounts_below(rig.home)) == len(devices_of(rig.home)) == 1


def test_after_a_boot_it_is_mounted_again_and_tmp_is_emptied(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo kept > /workspace/kept; echo old > /tmp/old")
    rig.kill()
    pid = observed_pid(rig)
    os.kill(pid, 9)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    boot(rig)
    assert observed(rig)["disk_by"] == "image" and observed(rig)["disk_used"] == -1  # looking mounts nothing
    assert mounts_below(rig.home) == []
    rig.start_box(BOX, SMALL)
    assert rig.shell(BOX, "cat /workspace/kept; ls /tmp")["out"] == "kept\n"
    assert observed(rig)["disk_used"] >= 0


def observed_pid(rig: Rig) -> int:
    return int(json.loads((rig.home / "boxes" / BOX / "live.json").read_text())["identity"]["pid"])


def test_files_are_served_from_it_without_a_start(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    boot(rig)
    _, fds = rig.ask_fds(protocol.Files(BOX))
    os.close(fds[0])
    assert len(mounts_below(rig.home)) == 1


def test_a_tree_that_was_there_before_is_only_counted_and_says_so(rig: Rig) -> None:
    rig.stop()
    rig.overrides, rig.accept = {"disk": "accounting"}, ("no-disk-quota",)
    rig.write_config()
    rig.start()
    rig.provision(BOX, limits=SMALL)
    rig.stop()
    rig.overrides = {"disk": "image"}
    rig.write_config()
    rig.start()
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    assert observed(rig)["disk_by"] == "accounting" and mounts_below(rig.home) == []
    rig.provision(OTHER, limits=SMALL)  # control: a new one is bounded
    assert observed(rig, OTHER)["disk_by"] == "image"


def test_a_mount_whose_box_is_gone_is_let_go_at_the_next_start(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    rig.stop()
    for name in ("box.json", "disk.img"):
        (rig.home / "boxes" / BOX / name).unlink()
    assert len(devices_of(rig.home)) == 1
    rig.start()
    assert nothing_left(rig.home)


def test_no_room_on_the_volume_is_said_and_nothing_is_left(rig: Rig) -> None:
    """The reserve is kept: no new box, while those that are there go on."""
    greeting = rig.ask(protocol.Greet(protocol.VERSION))
    assert greeting["disk"] == "image" and greeting["disk_free"] > greeting["disk_reserve"] > 0
    before = greeting["disk_promised"]
    rig.provision(BOX, limits=SMALL)
    after = rig.ask(protocol.Greet(protocol.VERSION))["disk_promised"]
    assert SMALL.disk * 0.8 < after - before <= SMALL.disk


def test_a_box_of_the_default_size_costs_the_volume_little(rig: Rig) -> None:
    rig.provision(BOX)
    image = (rig.home / "boxes" / BOX / "disk.img").stat()
    assert image.st_size == protocol.Limits().disk and image.st_blocks * 512 < 16 * MIB
    rig.start_box(BOX)
    seen = observed(rig)
    assert seen["inode_limit"] >= 500_000 and seen["disk_free"] > 0.95 * protocol.Limits().disk
    rig.shell(BOX, "head -c 67108864 /dev/urandom > /workspace/large; sync -f /workspace")
    used = (rig.home / "boxes" / BOX / "disk.img").stat().st_blocks * 512
    rig.shell(BOX, "rm /workspace/large; sync -f /workspace")
    deadline = time.monotonic() + 20
    while (rig.home / "boxes" / BOX / "disk.img").stat().st_blocks * 512 > used - 48 * MIB:
        assert time.monotonic() < deadline, "what a box deletes does not come back to the volume"
        time.sleep(0.2)


def test_an_image_that_is_no_file_system_is_said(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    boot(rig)
    image = rig.home / "boxes" / BOX / "disk.img"
    image.write_bytes(bytes(SMALL.disk))
    with pytest.raises(Refusal, match="cannot be mounted") as caught:
        rig.start_box(BOX, SMALL)
    assert "e2fsck" in caught.value.remedy and devices_of(rig.home) == []


def test_a_mount_that_only_a_living_box_still_has_gets_the_same_device(rig: Rig) -> None:
    """As under systemd, which starts each server in a mount namespace of its own. Two devices would destroy the image."""
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo kept > /workspace/kept")
    before = devices_of(rig.home)
    rig.kill()
    for place in mounts_below(rig.home):
        subprocess.run(["umount", "--lazy", place], check=True)
    assert devices_of(rig.home) == before  # the box's own namespace holds it
    rig.start()
    _, fds = rig.ask_fds(protocol.Files(BOX))
    os.close(fds[0])
    assert devices_of(rig.home) == before and len(mounts_below(rig.home)) == 1
    rig.shell(BOX, "echo more > /workspace/more")
    assert (rig.home / "boxes" / BOX / "tree/workspace/more").read_text() == "more\n"
