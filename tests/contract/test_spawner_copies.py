"""A box's tree packed, unpacked beside it, put in its place and thrown away, by a real spawner, on every kind of disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.spawner import protocol
from ringfence.spawner.protocol import Limits
from tests.contract.test_spawner_modes import account, shared, subuid
from tests.support import copies_rig, disk_rig, spawner_rig, volumes
from tests.support.copies_rig import BOX, ROOMY, Broken, fill, hash_of, pack, settle, tree_of, unpack
from tests.support.disk_rig import MIB, devices_of, mounts_below, nothing_left
from tests.support.spawner_rig import Refusal, Rig

__all__ = ["account", "shared", "subuid"]
pytestmark = pytest.mark.root
OTHER = "e" * 16
WIDE = Limits(disk=256 * MIB, inodes=8192, fsize=16 << 30)


@pytest.fixture(params=["image", "accounting"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = disk_rig.with_disk(request.param)
    yield made
    made.clean()
    assert nothing_left(made.home)


def parts_of(rig: Rig, box: str = BOX) -> set[str]:
    return {name for name in os.listdir(rig.home / "boxes" / box) if not name.startswith(("box.json", "live", "ctl"))}


def test_what_was_packed_is_what_is_unpacked(rig: Rig) -> None:
    """Names, modes, times, links, holes: of everything that a box can make and an archive keeps."""
    uid = rig.provision(BOX, limits=WIDE)["uid"]
    fill(tree_of(rig), uid)
    before = hash_of(tree_of(rig))
    archive, said = pack(rig)
    assert hash_of(tree_of(rig)) == before  # what was made readable is as it was
    assert said["left_out"] == {} and len(archive) < 2 * MIB
    other = rig.provision(OTHER, limits=WIDE)["uid"]
    assert unpack(rig, archive, OTHER, WIDE) == said
    assert copies_rig.described(tree_of(rig, OTHER)).keys() == {b"home", b"workspace"}  # beside it, so far
    settle(rig, OTHER, WIDE)
    found = tree_of(rig, OTHER)
    again, _ = pack(rig, OTHER)
    assert {name: [one for one in seen if one != other] for name, seen in copies_rig.described(found).items()} == {
        name: [one for one in seen if one != uid] for name, seen in copies_rig.described(tree_of(rig)).items()
    }
    assert len(again) == len(archive)
    sparse = os.stat(found / "home" / "sparse")
    assert (sparse.st_size, sparse.st_blocks * 512 < MIB) == ((10 << 30) + 1, True)
    assert os.stat(found / "home" / "plain").st_ino == os.stat(found / "home" / "second name").st_ino
    rig.start_box(OTHER, WIDE)
    assert rig.shell(OTHER, "cd /home/user; cat plain; stat -c %a closed")["out"] == "content\n0\n"
    assert parts_of(rig, OTHER) == parts_of(rig, BOX)  # nothing is left beside it


def test_every_tar_reads_it(rig: Rig, tmp_path: Path) -> None:
    fill(tree_of(rig), rig.provision(BOX, limits=WIDE)["uid"])
    archive, said = pack(rig)
    listed = subprocess.run(["tar", "-t"], input=archive, capture_output=True, check=True)
    assert len(listed.stdout.splitlines()) == said["entries"]
    assert set(listed.stderr.splitlines()) <= {b"tar: Ignoring unknown extended header keyword 'hdrcharset'"}
    read = ["tar", "-x", "-C", str(tmp_path), "home/sparse", "home/plain", "home/second name"]
    subprocess.run(read, input=archive, check=True)
    seen = os.stat(tmp_path / "home" / "sparse")
    assert (seen.st_size, seen.st_blocks * 512 < MIB) == ((10 << 30) + 1, True)
    assert (tmp_path / "home" / "plain").stat().st_mtime_ns == 1_234_567_890_123_456_789


def test_gnu_tar_makes_one_that_is_taken(rig: Rig, tmp_path: Path) -> None:
    uid = rig.provision(BOX, limits=ROOMY)["uid"]
    (tmp_path / "home" / "a").mkdir(parents=True)
    (tmp_path / "home" / "a" / ("long" * 60)).write_text("x")
    os.truncate(os.open(tmp_path / "home" / "hole", os.O_WRONLY | os.O_CREAT), 5 * MIB)
    made = ["tar", "-c", "--sparse", "--format=pax", "-C", str(tmp_path), "./home"]
    assert unpack(rig, subprocess.run(made, capture_output=True, check=True).stdout)["entries"] == 4
    settle(rig)
    found = tree_of(rig) / "home" / "a" / ("long" * 60)
    assert (found.read_text(), found.stat().st_uid) == ("x", uid)
    assert (tree_of(rig) / "home" / "hole").stat().st_size == 5 * MIB


def test_what_no_archive_has_is_left_out_and_counted(rig: Rig) -> None:
    uid = rig.provision(BOX, limits=ROOMY)["uid"]
    home = tree_of(rig) / "home"

    def odd() -> None:
        os.mkfifo(home / "fifo")
        os.mknod(home / "white", 0o020000 | 0o600, 0)  # what overlayfs lets anybody make: c 0 0
        (home / "set").touch()
        os.chmod(home / "set", 0o4755)
        os.chdir(home)
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)

    copies_rig.as_box(uid, odd)
    archive, said = pack(rig)
    assert said["left_out"] == {"fifo": 1, "device": 1, "special_bits": 1, "too_deep": 1}
    assert unpack(rig, archive)["entries"] == said["entries"]
    settle(rig)
    assert os.stat(home / "set").st_mode & 0o7777 == 0o755
    assert not (home / "fifo").exists()


def test_a_box_that_runs_is_neither_packed_nor_changed(rig: Rig) -> None:
    """F15. Control: each works once it has stopped."""
    rig.provision(BOX, limits=ROOMY)
    rig.start_box(BOX, ROOMY)
    rig.shell(BOX, "echo mine > /home/user/kept")
    reads: list[protocol.Request] = [protocol.Pack(BOX), protocol.Repair(BOX, ROOMY)]
    changes: list[protocol.Request] = [protocol.Unpack(BOX, ROOMY), protocol.Settle(BOX, ROOMY, True)]
    for request in (*reads, *changes, protocol.Reset(BOX, ROOMY)):
        with pytest.raises(Refusal, match="refused: the box runs"):
            rig.ask(request)
    assert rig.shell(BOX, "cat /home/user/kept")["out"] == "mine\n"
    rig.ask(protocol.Stop(BOX))
    assert pack(rig)[1]["bytes"] == 5
    rig.ask(protocol.Reset(BOX, ROOMY))
    rig.start_box(BOX, ROOMY)
    assert rig.shell(BOX, "ls -A /home/user /workspace /tmp")["out"] == "/home/user:\n\n/tmp:\n\n/workspace:\n"


def test_a_frozen_box_is_packed_as_it_stands(rig: Rig) -> None:
    rig.provision(BOX, limits=ROOMY)
    rig.start_box(BOX, ROOMY)
    rig.shell(BOX, "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /home/user/count; done' >/dev/null 2>&1 &")
    rig.ask(protocol.Freeze(BOX))
    one, two = pack(rig), pack(rig)
    assert one == two
    rig.ask(protocol.Thaw(BOX))
    assert rig.shell(BOX, "cat /home/user/count")["rc"] == 0


def test_what_was_made_readable_is_as_it_was_when_nobody_reads_on(rig: Rig) -> None:
    """Control: it is readable while it is packed."""
    uid = rig.provision(BOX, limits=ROOMY)["uid"]
    home = tree_of(rig) / "home"

    def closed() -> None:
        os.makedirs(home / "a" / "b")
        (home / "a" / "b" / "large").write_bytes(b"x" * (20 * MIB))
        os.chmod(home / "a" / "b", 0)
        os.chmod(home / "a", 0)

    def modes() -> list[int]:
        return [os.stat(path).st_mode & 0o777 for path in (home / "a", home / "a" / "b")]

    copies_rig.as_box(uid, closed)
    with copies_rig.open_socket(rig, protocol.Pack(BOX)) as wire:
        wire.recv(1)
        until(lambda: modes() == [0o700, 0o700])
    until(lambda: modes() == [0, 0])


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_settle_wants_an_unpacking_that_came_to_its_end(rig: Rig) -> None:
    rig.provision(BOX, limits=ROOMY)
    (tree_of(rig) / "home" / "kept").write_text("old")
    good = copies_rig.made(copies_rig.file("home/new"))
    for bad in (None, copies_rig.made(copies_rig.file("../out")), good[:600]):
        if bad is not None:
            with pytest.raises(Broken):
                unpack(rig, bad)
        with pytest.raises(Refusal, match="nothing whole was unpacked"):
            settle(rig)
        settle(rig, whole=False)
        assert os.listdir(tree_of(rig) / "home") == ["kept"]
    unpack(rig, good)  # control
    settle(rig)
    assert os.listdir(tree_of(rig) / "home") == ["new"]
    with pytest.raises(Refusal, match="nothing whole"):  # once
        settle(rig)


def test_one_copy_at_a_time(rig: Rig) -> None:
    rig.provision(BOX, limits=ROOMY)
    with copies_rig.open_socket(rig, protocol.Unpack(BOX, ROOMY)):
        for request in (protocol.Pack(BOX), protocol.Unpack(BOX, ROOMY), protocol.Reset(BOX, ROOMY)):
            with pytest.raises(Refusal, match="busy: the box's files are being copied"):
                rig.ask(request)
        settle(rig, whole=False)  # which ends it
        assert "beside" not in parts_of(rig)
    assert pack(rig)[1]["entries"] == 2


def test_a_new_tree_has_its_limits_and_the_old_one_gives_its_room_back(rig: Rig) -> None:
    uid = rig.provision(BOX, limits=ROOMY)["uid"]
    copies_rig.as_box(uid, lambda: (tree_of(rig) / "home" / "large").write_bytes(bytes(20 * MIB)))
    larger = Limits(disk=128 * MIB, inodes=8192)
    rig.ask(protocol.Reset(BOX, larger))
    seen = disk_rig.observed(rig)
    if seen["disk_by"] == "image":
        assert seen["inode_limit"] >= 8192 and seen["disk_used"] < 10 * MIB
        assert len(mounts_below(rig.home)) == len(devices_of(rig.home)) == 1
        rig.ask(protocol.SetLimits(BOX, larger))  # so it is recorded
    assert os.listdir(tree_of(rig) / "home") == []


def test_a_full_disk_is_told_and_the_old_tree_stays(rig: Rig) -> None:
    """C53: by the limits before the disk is asked, and by the disk."""
    rig.provision(BOX, limits=ROOMY)
    (tree_of(rig) / "home" / "kept").write_text("old")
    archive = copies_rig.made(
        copies_rig.file("home/a", os.urandom(40 * MIB)), copies_rig.file("home/b", bytes(30 * MIB))
    )
    with pytest.raises(Broken, match=r"disk_full: more content than the disk of the box holds: 67108864"):
        unpack(rig, archive)
    many = copies_rig.made(*(copies_rig.file(f"home/{number}") for number in range(ROOMY.inodes + 1)))
    with pytest.raises(Broken, match="disk_full: "):  # an image of as many inodes has fewer for files
        unpack(rig, many)
    few = Limits(disk=64 * MIB, inodes=1024)
    with pytest.raises(Broken, match="disk_full: "):
        unpack(rig, many, limits=few)
    if disk_rig.observed(rig)["disk_by"] == "image":  # of which the file system takes some itself
        with pytest.raises(Broken, match=r"disk_full: 'home/a': No space left"):
            unpack(rig, copies_rig.made(copies_rig.file("home/a", bytes(63 * MIB))))
    settle(rig, whole=False)
    assert os.listdir(tree_of(rig) / "home") == ["kept"]


@pytest.mark.parametrize("disk", ["image", "accounting"])
def test_a_full_host_is_relieved_by_a_reset(disk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty tree may take from what is kept back. Control: one that is to be filled may not."""
    with tempfile.TemporaryDirectory(prefix="ringfence-full-") as place, contextlib.ExitStack() as after:
        os.chmod(place, 0o711)
        volume = after.enter_context(volumes.volume(Path(place) / "volume", 256))
        (volume / "of").mkdir()
        volume.chmod(0o711)
        monkeypatch.setattr(spawner_rig, "temporary_home", lambda: volume / "of" / "state")
        rig = disk_rig.with_disk(disk)
        after.callback(rig.clean)
        uid, data = rig.provision(BOX, limits=ROOMY)["uid"], os.urandom(40 * MIB)
        copies_rig.as_box(uid, lambda: (tree_of(rig) / "home" / "large").write_bytes(data))
        os.sync()
        volumes.fill(volume, but=10 * MIB)  # 12.8 are kept back
        with pytest.raises(Refusal, match="no_space: no room for a second tree of the box: 10 MiB are free"):
            unpack(rig, copies_rig.made(copies_rig.file("home/f")))
        assert os.listdir(tree_of(rig) / "home") == ["large"]
        rig.ask(protocol.Reset(BOX, ROOMY))
        assert os.listdir(tree_of(rig) / "home") == []
        assert os.statvfs(volume).f_bavail * os.statvfs(volume).f_frsize > 45 * MIB
        unpack(rig, copies_rig.made(copies_rig.file("home/f")))


def test_removal_takes_what_is_beside_it_along(rig: Rig) -> None:
    rig.provision(BOX, limits=ROOMY)
    with copies_rig.open_socket(rig, protocol.Unpack(BOX, ROOMY)) as wire:
        copies_rig.send(wire, copies_rig.made(copies_rig.file("home/a", bytes(MIB)))[:-2048], end=False)
        rig.ask(protocol.Remove(BOX))
    assert not (rig.home / "boxes" / BOX).exists()
    assert nothing_left(rig.home)


def test_an_image_is_checked_and_mended() -> None:
    rig = disk_rig.with_disk("image")
    try:
        rig.provision(BOX, limits=ROOMY)
        (tree_of(rig) / "home" / "kept").write_text("old")
        assert rig.ask(protocol.Repair(BOX, ROOMY)) == {"found": "clean"}
        place, image = tree_of(rig), rig.home / "boxes" / BOX / "disk.img"
        subprocess.run(["umount", place], check=True)
        assert disk_rig.nothing_left(rig.home)
        subprocess.run(["debugfs", "-w", "-R", "clri /home", image], check=True, capture_output=True)
        assert rig.ask(protocol.Repair(BOX, ROOMY)) == {"found": "mended"}
        assert rig.ask(protocol.Repair(BOX, ROOMY)) == {"found": "clean"}
        rig.ask(protocol.Reset(BOX, ROOMY))  # its home is in lost+found now
        rig.start_box(BOX, ROOMY)
    finally:
        rig.clean()
    assert nothing_left(rig.home)


def test_a_tree_that_is_only_counted_has_nothing_to_repair() -> None:
    rig = disk_rig.with_disk("accounting")
    try:
        rig.provision(BOX, limits=ROOMY)
        assert rig.ask(protocol.Repair(BOX, ROOMY)) == {"found": "nothing"}
    finally:
        rig.clean()


@pytest.mark.parametrize("disk", ["image", *(["quota"] if disk_rig.kernel_has_quotas() else [])])
def test_both_trees_have_room_and_then_the_limits_hold_again(monkeypatch: pytest.MonkeyPatch, disk: str) -> None:
    with contextlib.ExitStack() as after:
        if disk == "quota":
            volume = after.enter_context(disk_rig.quota_volume())
            monkeypatch.setattr(spawner_rig, "temporary_home", lambda: volume / "state")
        rig = disk_rig.with_disk(disk)
        after.callback(rig.clean)
        uid = rig.provision(BOX, limits=ROOMY)["uid"]
        data = os.urandom(40 * MIB)
        copies_rig.as_box(uid, lambda: (tree_of(rig) / "home" / "large").write_bytes(data))
        archive, _ = pack(rig)
        unpack(rig, archive)  # 80 MiB now, of 64
        settle(rig)
        seen = disk_rig.observed(rig)
        assert seen["disk_by"] == disk and 40 * MIB <= seen["disk_used"] < 48 * MIB
        assert seen["disk_used"] + seen["disk_free"] <= ROOMY.disk
        if disk == "quota":
            assert seen["inode_limit"] == ROOMY.inodes
            assert rig.ask(protocol.Repair(BOX, ROOMY)) == {"found": "limits"}


@pytest.mark.parametrize("how", ["subuid", "shared"])
def test_as_an_ordinary_user_too(how: str, request: pytest.FixtureRequest) -> None:
    rig: Rig = request.getfixturevalue(how)
    rig.start()
    rig.provision(BOX, limits=ROOMY)
    rig.start_box(BOX, ROOMY)
    rig.shell(BOX, "cd /home/user; echo one > f; ln f g; ln -s /etc/passwd l; chmod 4711 f; mkdir d; chmod 0 d")
    rig.ask(protocol.Stop(BOX))
    archive, said = pack(rig)
    assert said["left_out"] == {"special_bits": 1}
    rig.ask(protocol.Reset(BOX, ROOMY))
    assert pack(rig)[1]["entries"] == 2
    with pytest.raises(Broken, match="leads out"):
        unpack(rig, copies_rig.made(copies_rig.file("../f")))
    assert unpack(rig, archive)["entries"] == said["entries"]
    settle(rig)
    rig.start_box(BOX, ROOMY)
    seen = rig.shell(BOX, "cd /home/user; cat g; stat -c '%a %h' f; readlink l; stat -c %a d; chmod 700 d")
    assert seen["out"] == "one\n711 2\n/etc/passwd\n0\n"
