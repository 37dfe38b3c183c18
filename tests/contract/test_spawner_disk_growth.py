"""A disk that grows: never while something has its file system, never beyond what it or its volume can be; and what is
left of one that cannot be used."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from ringfence.spawner import (
    disk_growth,
    disk_holders,
    disk_kind,
    disk_parts,
    disk_tools,
    loop_image,
    paths,
    protocol,
    tasks,
)
from ringfence.spawner.children import Children
from ringfence.spawner.errors import Busy, Failed, NoSpace, Refused
from tests.support import disk_rig
from tests.support.disk_rig import BOX, MIB, SMALL, devices_of, mounts_below, nothing_left, observed
from tests.support.spawner_rig import Refusal, Rig

pytestmark = pytest.mark.root
LARGER = replace(SMALL, disk=2 * SMALL.disk)
GIB = 1 << 30


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = disk_rig.with_disk("image")
    made.provision(BOX, limits=SMALL)
    yield made
    made.clean()
    assert nothing_left(made.home)


@contextmanager
def box_of(rig: Rig) -> Iterator[int]:
    box = os.open(rig.home / "boxes" / BOX, os.O_RDONLY | os.O_DIRECTORY)
    yield box
    os.close(box)


def image_of(rig: Rig) -> Path:
    return rig.home / "boxes" / BOX / "disk.img"


def test_nothing_grows_while_a_files_helper_has_its_file_system(rig: Rig) -> None:
    """Control: without the helper it grows, and is whole."""
    _, fds = rig.ask_fds(protocol.Files(BOX))
    with box_of(rig) as box:
        with pytest.raises(Busy) as caught:
            tasks.run(disk_growth.stopped(box, LARGER, Children()))
        assert "files commands of this user" in caught.value.remedy
        assert len(mounts_below(rig.home)) == 1 and image_of(rig).stat().st_size == SMALL.disk
        os.close(fds[0])
        for _ in range(5):  # its helper ends, and its device lets go, in their own time
            with suppress(Busy):
                tasks.run(disk_growth.stopped(box, LARGER, Children()))
                break
    assert image_of(rig).stat().st_size == LARGER.disk and nothing_left(rig.home)
    assert subprocess.run(["/sbin/e2fsck", "-fn", image_of(rig)], capture_output=True, check=False).returncode == 0


def test_nothing_grows_while_a_mount_that_nobody_sees_has_its_file_system(rig: Rig) -> None:
    """Detached lazily, or in another mount namespace: the device tells. Refused, it is mounted again."""
    held = os.open(rig.home / "boxes" / BOX / "tree", os.O_RDONLY | os.O_DIRECTORY)
    subprocess.run(["umount", "--lazy", mounts_below(rig.home)[0]], check=True)
    with box_of(rig) as box, pytest.raises(Busy):
        tasks.run(disk_growth.stopped(box, LARGER, Children()))
    if not disk_tools.grows_in_use():
        with pytest.raises(Refusal, match="in use"):
            rig.ask(protocol.SetLimits(BOX, LARGER))
        assert len(mounts_below(rig.home)) == len(devices_of(rig.home)) == 1
    os.close(held)
    rig.ask(protocol.SetLimits(BOX, LARGER))
    assert observed(rig)["disk_free"] > SMALL.disk


@pytest.mark.parametrize(("how", "said"), [("namespace", "has it in a mount namespace"), ("folder", "works in it")])
def test_whoever_has_its_file_system_is_named(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, said: str
) -> None:
    """Control: when it has ended, nobody is in the way. A name that a process gave itself is only shown as ASCII."""
    monkeypatch.setattr(disk_growth, "FREE_SECONDS", 0.0)
    with box_of(rig) as box, disk_parts.image(box) as image:
        program = tmp_path / os.fsdecode(b"a\x1b[2Jb\xff")
        program.symlink_to("/bin/sleep")
        place = rig.home / "boxes" / BOX / "tree"
        with disk_rig.holding(how, place, program) as pid, pytest.raises(Busy) as caught:
            tasks.run(disk_growth.alone(box, image))
        assert f"process {pid} (a?[2Jb?) {said}" in caught.value.of_host and f"kill {pid}" in caught.value.of_host
        assert "files commands of this user" in caught.value.remedy
        shown = caught.value.message + caught.value.remedy
        assert "a process of the host holds it" in shown and "tell the operator" in shown
        assert str(pid) not in shown and "a?[2Jb?" not in shown, "to the box's owner it is no matter which"
        monkeypatch.undo()
        tasks.run(disk_growth.alone(box, image))
    assert nothing_left(rig.home)


def test_nothing_behind_a_link_of_another_process_is_asked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever works on a file system whose server is dead would keep the spawner, and every box, waiting."""

    def waits_for_ever(*_: object, **__: object) -> NoReturn:
        raise AssertionError("stat")

    with box_of(rig) as box, disk_parts.image(box) as image:
        device = loop_image.find(image)
        assert device is not None
        number = os.fstat(device).st_rdev
        os.close(device)
    with disk_rig.holding("folder", rig.home / "boxes" / BOX / "tree/workspace") as pid, monkeypatch.context() as patch:
        patch.setattr(os, "stat", waits_for_ever)
        assert [holder.pid for holder in tasks.run(disk_holders.find(number))] == [pid]


def test_a_place_is_known_whatever_its_name(tmp_path: Path) -> None:
    place = tmp_path / "a b\\c\td"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    try:
        assert disk_holders._places("self", place.stat().st_dev) == [os.fsencode(place)]
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_size_that_image_or_volume_cannot_have_is_refused_and_nothing_is_touched(rig: Rig) -> None:
    before = image_of(rig).stat()
    with box_of(rig) as box:
        with pytest.raises(Refused, match=f"can grow to {512 * GIB} bytes, {1024 * GIB} were asked for"):
            disk_growth.check(box, replace(SMALL, disk=1024 * GIB), 1 << 50)
        with pytest.raises(NoSpace, match=f"has {100 * MIB} bytes in all"):
            disk_growth.check(box, LARGER, 100 * MIB)
        assert disk_growth.check(box, LARGER, LARGER.disk) and not disk_growth.check(box, SMALL, 1)  # the controls
    with pytest.raises(Refusal) as caught:
        rig.ask(protocol.SetLimits(BOX, replace(SMALL, disk=protocol.BOUNDS["disk"][1])))
    assert caught.value.remedy.startswith("give at most ")
    after = image_of(rig).stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_box_whose_growth_fails_has_what_it_had(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (rig.home / "boxes" / BOX / "tree/workspace/full").write_bytes(os.urandom(57 * MIB))
    (tmp_path / "e2fsck").symlink_to("/sbin/e2fsck")
    (tmp_path / "resize2fs").symlink_to("/bin/false")
    with box_of(rig) as box, monkeypatch.context() as patch:
        patch.setattr(disk_kind, "_FOLDERS", (str(tmp_path),))
        with pytest.raises(Failed, match="resize2fs failed: exit 1; the disk has its former size"):
            tasks.run(disk_growth.stopped(box, LARGER, Children()))
        assert image_of(rig).stat().st_size == SMALL.disk
    rig.start_box(BOX, SMALL)
    assert rig.shell(BOX, "wc -c < /workspace/full")["out"] == f"{57 * MIB}\n"
    rig.ask(protocol.Stop(BOX))
    with box_of(rig) as box:  # the control: a full one grows, as far as it reaches
        tasks.run(disk_growth.stopped(box, replace(SMALL, disk=512 * GIB), Children()))
    rig.start_box(BOX, SMALL)
    assert observed(rig)["disk_free"] > 400 * GIB
    assert rig.shell(BOX, "wc -c < /workspace/full")["out"] == f"{57 * MIB}\n"


def test_nothing_is_cut_off_a_file_system_that_a_failure_left_half_moved(rig: Rig) -> None:
    """Why a size beyond the reach is refused: resize2fs moves the content of a full image first, and fails then."""
    (rig.home / "boxes" / BOX / "tree/workspace/full").write_bytes(os.urandom(57 * MIB))
    with box_of(rig) as box, pytest.raises(Failed, match="may be damaged"):
        tasks.run(disk_growth.stopped(box, replace(SMALL, disk=1024 * GIB), Children()))
    assert image_of(rig).stat().st_size == 1024 * GIB


def test_a_growth_that_was_cut_short_goes_on_when_it_is_asked_again(rig: Rig) -> None:
    with box_of(rig) as box:
        disk_growth.begin(box)
        os.truncate(image_of(rig), LARGER.disk)
        assert disk_growth.check(box, LARGER, 1 << 50)
        rig.ask(protocol.SetLimits(BOX, LARGER))
        assert observed(rig)["disk_free"] > SMALL.disk and not disk_growth.check(box, LARGER, 1 << 50)


@pytest.mark.parametrize("mounted", [True, False])
def test_nothing_is_cut_when_a_growth_was_over_and_nobody_had_noted_it(rig: Rig, mounted: bool) -> None:
    """A spawner that dies between the two leaves the note of a growth under way, and the file system is as large."""
    with box_of(rig) as box:
        tasks.run(disk_growth.stopped(box, replace(SMALL, disk=4 * SMALL.disk), Children()))
        paths.write_file(box, "disk.json", b'{"inodes": 2048, "growing": %d}' % SMALL.disk, 0o600)
        if mounted:
            rig.start_box(BOX, SMALL)
            rig.ask(protocol.Stop(BOX))
        assert bool(mounts_below(rig.home)) is mounted
        for size in (SMALL.disk, LARGER.disk):
            with pytest.raises(Refused, match="cannot shrink"):
                disk_growth.check(box, replace(SMALL, disk=size), 1 << 50)
        if not mounted:  # the second wall: the tool itself
            with disk_parts.image(box) as image, pytest.raises(Failed, match="of more than"):
                tasks.run(disk_tools.grow(Children(), image, LARGER.disk))
        assert image_of(rig).stat().st_size == 4 * SMALL.disk
    assert rig.ask(protocol.SetLimits(BOX, replace(SMALL, disk=4 * SMALL.disk))) == {}


def test_the_remedy_for_inodes_is_true(rig: Rig) -> None:
    with pytest.raises(Refusal) as caught:
        rig.ask(protocol.SetLimits(BOX, replace(SMALL, inodes=2 * SMALL.inodes)))
    assert caught.value.code == "refused" and caught.value.remedy.startswith("raise --disk")
    before = observed(rig)["inode_limit"]
    rig.ask(protocol.SetLimits(BOX, replace(SMALL, disk=4 * GIB)))
    assert observed(rig)["inode_limit"] > 2 * before


@pytest.mark.parametrize("size", [SMALL.disk, SMALL.disk // 2], ids=["no file system", "cut"])
def test_a_box_whose_image_cannot_be_mounted_says_so_and_can_be_stopped_and_removed(rig: Rig, size: int) -> None:
    assert observed(rig)["disk_problem"] == ""
    rig.stop()
    subprocess.run(["umount", mounts_below(rig.home)[0]], check=True)
    assert nothing_left(rig.home)
    if size == SMALL.disk:
        image_of(rig).write_bytes(bytes(SMALL.disk))
    os.truncate(image_of(rig), size)
    rig.start()
    seen = observed(rig)
    assert (seen["disk_by"], seen["disk_used"]) == ("image", -1) and seen["disk_problem"]
    with pytest.raises(Refusal, match="cannot be mounted"):
        rig.start_box(BOX, SMALL)
    rig.ask(protocol.Stop(BOX))
    rig.ask(protocol.Remove(BOX))
    assert os.listdir(rig.home / "boxes") == [] and nothing_left(rig.home)


def test_a_tmp_that_could_not_be_emptied_is_before_the_next_start(rig: Rig) -> None:
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo old > /tmp/old")
    live = rig.home / "boxes" / BOX / "live.json"
    pid = disk_rig.pid_of(rig)
    rig.stop()
    disk_rig.kill_outright(pid)
    subprocess.run(["umount", mounts_below(rig.home)[0]], check=True)
    assert nothing_left(rig.home)
    with image_of(rig).open("r+b") as image:
        kept = image.read(8192)
        image.seek(0)
        image.write(bytes(8192))
        rig.start()
        rig.ask(protocol.Stop(BOX))
        assert live.exists()
        image.seek(0)
        image.write(kept)
    rig.start_box(BOX, SMALL)
    assert rig.shell(BOX, "ls /tmp")["out"] == ""
