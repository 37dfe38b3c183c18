"""A box's disk over its life: made once, adopted by the next spawner, mounted again after a boot, gone with the box."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.spawner import protocol
from tests.support import disk_rig, spawner_rig
from tests.support.disk_rig import BOX, MIB, SMALL, devices_of, holding, mounts_below, nothing_left, observed
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
    disk_rig.kill_outright(disk_rig.pid_of(rig))
    boot(rig)
    assert observed(rig)["disk_by"] == "image" and observed(rig)["disk_used"] == -1  # looking mounts nothing
    assert mounts_below(rig.home) == []
    rig.start_box(BOX, SMALL)
    assert rig.shell(BOX, "cat /workspace/kept; ls /tmp")["out"] == "kept\n"
    assert observed(rig)["disk_used"] >= 0


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


def test_what_an_image_may_still_grow_by_is_promised(rig: Rig) -> None:
    greeting = rig.ask(protocol.Greet(protocol.VERSION))
    assert greeting["disk"] == "image" and greeting["disk_free"] > greeting["disk_reserve"] > 0
    before = greeting["disk_promised"]
    rig.provision(BOX, limits=SMALL)
    after = rig.ask(protocol.Greet(protocol.VERSION))["disk_promised"]
    assert SMALL.disk * 0.8 < after - before <= SMALL.disk


def test_no_room_on_the_volume_is_said_and_nothing_is_left() -> None:
    """The reserve is kept: no new box, while those that are there go on. Control: with room it is made."""
    rig = spawner_rig.make(overrides={"disk": "image"})
    boxes = rig.home / "boxes"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=0711", "none", boxes], check=True)
    try:
        rig.start()
        rig.provision(BOX, limits=SMALL)
        rig.start_box(BOX, SMALL)
        filler = boxes / "filler"
        filler.write_bytes(bytes(os.statvfs(boxes).f_bavail * os.statvfs(boxes).f_frsize - 12 * MIB))
        before = sorted(mounts_below(rig.home)), devices_of(rig.home)
        with pytest.raises(Refusal, match="12 MiB are kept back") as caught:
            rig.provision(OTHER, limits=SMALL)
        assert caught.value.code == "no_space" and "df -h" in caught.value.remedy
        assert not {"tree", "disk.img", ".disk.img.new", "disk.json"} & set(os.listdir(boxes / OTHER))
        assert (sorted(mounts_below(rig.home)), devices_of(rig.home)) == before
        assert rig.shell(BOX, "echo on > /workspace/on; cat /workspace/on")["out"] == "on\n"
        filler.unlink()
        rig.provision(OTHER, limits=SMALL)
        assert observed(rig, OTHER)["disk_by"] == "image"
        for box in (BOX, OTHER):
            rig.ask(protocol.Remove(box))
        rig.stop()
        assert os.listdir(boxes) == []
    finally:
        rig.stop()
        subprocess.run(["umount", boxes], check=True)
    assert nothing_left(rig.home)
    rig.discard()


def stop_its_writes(rig: Rig, how: str) -> None:
    """`error`: as ext4 does it, which since Linux 6.12 no flag of the mount shows; `flag`: as it was shown before."""
    place, device = mounts_below(rig.home)[0], devices_of(rig.home)[0]
    if how == "flag":
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    else:
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")
    with pytest.raises(OSError, match="Read-only"):  # it bites
        (Path(place) / "workspace" / "more").write_text("more")


@pytest.mark.parametrize("how", ["error", "flag"])
def test_a_disk_that_turned_read_only_is_said_and_is_mounted_anew(rig: Rig, how: str) -> None:
    """Stopping empties /tmp, for which it must be writable again."""
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo kept > /workspace/kept; sync; echo old > /tmp/old")
    assert observed(rig)["disk_problem"] == ""
    stop_its_writes(rig, how)
    assert "read-only" in observed(rig)["disk_problem"]
    rig.ask(protocol.Stop(BOX))
    assert observed(rig)["disk_problem"] == "" and not (rig.home / "boxes" / BOX / "live.json").exists()
    stop_its_writes(rig, how)
    rig.start_box(BOX, SMALL)
    said = rig.shell(BOX, "cat /workspace/kept; ls /tmp; echo more > /workspace/more; cat /workspace/more")
    assert said["out"] == "kept\nmore\n"
    assert len(mounts_below(rig.home)) == len(devices_of(rig.home)) == 1


def test_one_that_somebody_holds_is_stopped_and_starts_once_it_is_let_go(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo old > /tmp/old; sync")  # what is not on the disk yet, the error takes
    held = os.open(rig.home / "boxes" / BOX / "tree", os.O_RDONLY | os.O_DIRECTORY)
    stop_its_writes(rig, "error")
    rig.ask(protocol.Stop(BOX))
    with pytest.raises(Refusal, match="in use"):
        rig.start_box(BOX, SMALL)
    assert "could not be mounted anew" in observed(rig)["disk_problem"]
    assert len(mounts_below(rig.home)) == len(devices_of(rig.home)) == 1
    os.close(held)
    rig.start_box(BOX, SMALL)
    assert rig.shell(BOX, "ls /tmp; echo more > /workspace/more; cat /workspace/more")["out"] == "more\n"


def test_whoever_keeps_a_read_only_disk_down_is_named(rig: Rig) -> None:
    """And once it is gone, the remedy is one: stop, then start."""
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo kept > /workspace/kept; sync")
    with holding("namespace", rig.home / "boxes" / BOX / "tree") as pid:
        stop_its_writes(rig, "error")
        first = observed(rig)["disk_problem"]
        assert "mounted anew" in first and "nothing else has it" in first
        rig.ask(protocol.Stop(BOX))
        after = observed(rig)
        assert "could not be mounted anew: the box's disk is in use: a process of the host" in after["disk_problem"]
        assert str(pid) not in after["disk_problem"] and f"process {pid} (sleep)" in after["disk_holder"]
        assert after["state"] == "stopped"
        assert rig.ask(protocol.Greet(protocol.VERSION))["disk_broken"] == [BOX]
    rig.ask(protocol.Stop(BOX))
    assert observed(rig)["disk_problem"] == "" == observed(rig)["disk_holder"]
    assert rig.ask(protocol.Greet(protocol.VERSION))["disk_broken"] == []
    rig.start_box(BOX, SMALL)
    assert rig.shell(BOX, "cat /workspace/kept; echo more > /workspace/more")["out"] == "kept\n"


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
    deadline = time.monotonic() + 60
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
    assert "box recover USER --fsck" in caught.value.remedy and devices_of(rig.home) == []


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
