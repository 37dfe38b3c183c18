"""What is left behind, made for real: found by a real spawner, taken away one kind at a time, and nothing else with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringfence.spawner import protocol
from ringfence.spawner.protocol import DebrisKind
from tests.support import disk_rig, spawner_rig
from tests.support.disk_rig import BOX, SMALL, devices_of, mounts_below, nothing_left
from tests.support.spawner_rig import Refusal, Rig

pytestmark = pytest.mark.root
OTHER = "e" * 16


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = disk_rig.with_disk("image")
    yield made
    made.clean()
    assert nothing_left(made.home)


def found(rig: Rig) -> dict[tuple[str, str], dict[str, Any]]:
    """By box and kind, all pages."""
    told: dict[tuple[str, str], dict[str, Any]] = {}
    after, more = "", True
    while more:
        page = rig.ask(protocol.Debris(after))
        told |= {(each["box"], each["debris"]): each for each in page["found"]}
        after, more = page["after"], page["more"]
    return told


def clear(rig: Rig, kind: DebrisKind, box: str = BOX) -> bool:
    return bool(rig.ask(protocol.Clear(box, kind))["gone"])


def refused(rig: Rig, kind: DebrisKind, box: str = BOX) -> str:
    with pytest.raises(Refusal) as refusal:
        clear(rig, kind, box)
    assert refusal.value.code == "refused"
    return str(refusal.value)


@contextmanager
def process(uid: int, cgroup: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A `sleep` under that id, in that cgroup once this begins."""
    with subprocess.Popen(["/bin/sleep", "600"], user=uid, group=uid, extra_groups=[]) as one:
        try:
            if cgroup is not None:
                (cgroup / "cgroup.procs").write_text(str(one.pid))
            yield one
        finally:
            one.kill()


def cgroups_of(box: str = BOX) -> list[Path]:
    return [Path(parent) / box for parent in spawner_rig.cgroup_parents() if (Path(parent) / box).is_dir()]


def uid_of(rig: Rig, box: str = BOX) -> int:
    return int(json.loads((rig.home / "boxes" / box / "box.json").read_text())["uid"])


def test_boxes_that_run_rest_and_are_read_have_left_nothing(rig: Rig) -> None:
    for box in (BOX, OTHER):
        rig.provision(box, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.start_box(OTHER, SMALL)
    rig.ask(protocol.Stop(OTHER))
    _, fds = rig.ask_fds(protocol.Files(OTHER))
    page = rig.ask(protocol.Debris())
    os.close(fds[0])
    assert page["found"] == [] and page["boxes"] == [BOX, OTHER] and not page["more"]
    assert page["ids"] == {"given": 16, "held": 16, "free": 0, "spent": 0, "left": 784}
    for kind in ("cgroup", "processes", "worker", "socket", "temporary", "mount", "loop", "directory"):
        assert clear(rig, kind) is False
    assert rig.shell(BOX, "echo lives")["out"] == "lives\n"
    assert len(mounts_below(rig.home)) == 2


# --- processes --------------------------------------------------------------------------------------------------------


def test_processes_of_a_stopped_box_of_no_box_and_of_an_old_worker_end_and_no_others(rig: Rig) -> None:
    for box in (BOX, OTHER):
        rig.provision(box, limits=SMALL)
    rig.provision("f" * 16, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.start_box("f" * 16, SMALL)
    rig.ask(protocol.Stop(OTHER))
    gone = uid_of(rig, "f" * 16)
    rig.ask(protocol.Remove("f" * 16))
    outside = rig.ids[1] + 1000
    with (
        process(uid_of(rig, OTHER)) as left,
        process(uid_of(rig) + 1) as worker,
        process(gone) as of_none,
        process(rig.kernel[0] + 1) as template,
        process(rig.ids[1]) as never_given,
        process(outside) as foreign,
        process(0) as of_root,
    ):
        kinds = {key: each["ours"] for key, each in found(rig).items()}
        assert kinds == {
            (OTHER, "processes"): True,
            (BOX, "worker"): True,
            ("", "processes"): True,
            ("", "worker"): True,
            ("", "stranger"): False,
        }
        assert [one.poll() for one in (left, worker, of_none, template)] == [None] * 4  # looking ends nobody
        assert clear(rig, "processes", OTHER) and left.wait(10) == -9
        assert clear(rig, "worker") and worker.wait(10) == -9
        assert clear(rig, "processes", "") and of_none.wait(10) == -9
        assert clear(rig, "worker", "") and template.wait(10) == -9
        assert "never given out" in refused(rig, "stranger", "")
        assert [one.poll() for one in (never_given, foreign, of_root)] == [None] * 3
    assert rig.shell(BOX, "echo lives")["out"] == "lives\n"


@pytest.mark.parametrize("record", ["damaged", "missing"])
def test_a_box_whose_record_was_spoilt_by_hand_lives_and_so_does_everybody_of_no_box(rig: Rig, record: str) -> None:
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    path = rig.home / "boxes" / BOX / "box.json"
    text = path.read_text()
    path.unlink()
    if record == "damaged":
        path.write_text("{")
    assert not any(each["ours"] for each in found(rig).values())
    assert "may be that box's" in refused(rig, "processes", "")
    assert ((BOX, "directory") in found(rig)) == (record == "damaged")
    for kind in ("cgroup", "processes", "mount", "loop"):
        assert clear(rig, kind) is False
    path.write_text(text)
    assert rig.shell(BOX, "echo lives")["out"] == "lives\n" and found(rig) == {}


# --- cgroups ----------------------------------------------------------------------------------------------------------


def left_cgroups(rig: Rig) -> None:
    """As a box has them."""
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.ask(protocol.Stop(BOX))
    for parent in spawner_rig.cgroup_parents():
        for name in (BOX, f"{BOX}/main", f"{BOX}/cmds", f"{BOX}/main/by-hand"):
            os.mkdir(f"{parent}/{name}")


@pytest.mark.parametrize("state", ["empty", "populated", "frozen"])
def test_a_cgroup_without_a_box_goes_and_what_is_in_it(rig: Rig, state: str) -> None:
    left_cgroups(rig)
    unified = (
        cgroups_of()[-1] if len(cgroups_of()) == 1 else next(p for p in cgroups_of() if (p / "cgroup.kill").exists())
    )
    if state == "empty":
        assert found(rig)[BOX, "cgroup"]["what"] == "cgroup, empty"
        assert clear(rig, "cgroup")
    else:
        with process(uid_of(rig), unified / "main") as inside, process(0) as of_root:
            (unified / "cgroup.freeze").write_text("1" if state == "frozen" else "0")
            told = found(rig)[BOX, "cgroup"]
            assert "1 process: " in told["what"] and told["ours"]
            assert clear(rig, "cgroup") and inside.wait(10) == -9 and of_root.poll() is None
    assert cgroups_of() == [] and found(rig) == {}
    rig.start_box(BOX, SMALL)
    assert rig.shell(BOX, "echo again")["out"] == "again\n"


def test_what_is_in_one_hierarchy_alone_is_found_and_ended(rig: Rig) -> None:
    left_cgroups(rig)
    for directory in cgroups_of():
        with process(uid_of(rig), directory / "main" / "by-hand") as inside:
            assert clear(rig, "cgroup") and inside.wait(10) == -9
        assert cgroups_of() == []
        for parent in spawner_rig.cgroup_parents():
            for name in (BOX, f"{BOX}/main", f"{BOX}/main/by-hand"):
                os.mkdir(f"{parent}/{name}")
    assert clear(rig, "cgroup")


def test_a_process_of_the_host_in_a_cgroup_of_ours_is_told_and_left(rig: Rig) -> None:
    left_cgroups(rig)
    with process(0, cgroups_of()[0] / "main") as stranger:
        assert found(rig)[BOX, "cgroup"]["ours"] is False
        assert "somebody else" in refused(rig, "cgroup")
        assert stranger.poll() is None and cgroups_of() != []
    assert clear(rig, "cgroup")


def test_of_a_box_that_has_no_record_any_more(rig: Rig) -> None:
    rig.provision(OTHER, limits=SMALL)
    for parent in spawner_rig.cgroup_parents():
        os.mkdir(f"{parent}/{BOX}")
        os.mkdir(f"{parent}/by-hand")  # no box's name: whose it is nobody knows
    assert set(found(rig)) == {(BOX, "cgroup")} and clear(rig, "cgroup") and cgroups_of() == []
    for parent in spawner_rig.cgroup_parents():
        os.rmdir(f"{parent}/by-hand")


# --- mounts, devices, files -------------------------------------------------------------------------------------------


def test_a_loop_device_without_a_mount_is_let_go(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    subprocess.run(["umount", rig.home / "boxes" / BOX / "tree"], check=True)
    assert nothing_left(rig.home) and found(rig) == {}  # a box at rest may have neither
    subprocess.run(["losetup", "-f", rig.home / "boxes" / BOX / "disk.img"], check=True)
    other = rig.home.parent / "of-somebody-else"
    other.write_bytes(bytes(1 << 20))
    subprocess.run(["losetup", "-f", other], check=True)
    told = found(rig)
    assert set(told) == {(BOX, "loop")} and told[BOX, "loop"]["bytes"] > 0
    assert clear(rig, "loop") and devices_of(rig.home) == []
    [kept] = devices_of(rig.home.parent)
    subprocess.run(["losetup", "-d", f"/dev/{kept}"], check=True)
    rig.start_box(BOX, SMALL)
    assert rig.shell(BOX, "echo works")["out"] == "works\n"


def test_a_device_that_somebody_has_open_is_let_go_once_he_has_not(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    subprocess.run(["umount", rig.home / "boxes" / BOX / "tree"], check=True)
    assert nothing_left(rig.home)
    subprocess.run(["losetup", "-f", rig.home / "boxes" / BOX / "disk.img"], check=True)
    [name] = devices_of(rig.home)
    with open(f"/dev/{name}", "rb"):
        with pytest.raises(Refusal) as refusal:
            clear(rig, "loop")
        assert refusal.value.code == "busy" and name in str(refusal.value)
    assert nothing_left(rig.home) and clear(rig, "loop") is False


def test_a_mount_of_a_box_that_was_deleted_by_hand(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    rig.provision(OTHER, limits=SMALL)
    folder = rig.home / "boxes" / BOX
    for name in ("box.json", "disk.img", "disk.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "ctl")
    assert set(found(rig)) == {(BOX, "mount"), (BOX, "directory")}
    assert "something is stored" in refused(rig, "directory")  # not before the mount
    assert clear(rig, "mount") and clear(rig, "directory")
    assert not folder.exists() and found(rig) == {}
    assert mounts_below(rig.home) == [str(rig.home / "boxes" / OTHER / "tree")]


def test_the_only_copy_of_a_tree_is_never_let_go(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo precious > /workspace/kept")
    rig.ask(protocol.Stop(BOX))
    folder = rig.home / "boxes" / BOX
    (folder / "disk.img").unlink()
    assert found(rig)[BOX, "mount"]["ours"] is False
    assert "copy the files out" in refused(rig, "mount")
    assert (folder / "tree" / "workspace" / "kept").read_text() == "precious\n"


def test_a_mount_made_by_hand_is_told_and_left(rig: Rig) -> None:
    rig.provision(BOX, limits=SMALL)
    place = rig.home / "boxes" / BOX / "tree" / "workspace" / "a\n\x1b\udcff"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        assert found(rig)[BOX, "mount"]["ours"] is False
        assert found(rig)[BOX, "mount"]["what"].endswith("tree/workspace/a???")
        assert "by hand" in refused(rig, "mount")
        assert place.is_mount()
    finally:
        subprocess.run(["umount", place], check=True)


def test_half_a_box_half_a_file_and_a_socket_go(rig: Rig) -> None:
    rig.provision(OTHER, limits=SMALL)
    (rig.home / "boxes" / BOX).mkdir(0o711)  # killed between mkdir and the record
    (rig.home / "boxes" / BOX / ".box.json.new").write_text("{")
    (rig.home / "boxes" / OTHER / ".disk.img.new").write_bytes(bytes(1 << 20))
    (rig.home / "boxes" / OTHER / "ctl" / ".ca.pem.new").write_text("-")
    (rig.home / "boxes" / OTHER / "ctl" / "host.sock").write_text("")
    (rig.home / "spawner" / ".next_id.new").write_text("1")
    told = found(rig)
    assert set(told) == {(BOX, "directory"), (OTHER, "temporary"), (OTHER, "socket"), ("", "temporary")}
    assert told[OTHER, "temporary"]["bytes"] == 1 << 20
    for box, kind in told:
        assert clear(rig, kind, box)  # type: ignore[arg-type]
    assert found(rig) == {} and sorted(os.listdir(rig.home / "boxes")) == [OTHER]
    assert (rig.home / "boxes" / OTHER / "box.json").exists()


def test_a_directory_with_something_in_it_is_left(rig: Rig) -> None:
    folder = rig.home / "boxes" / BOX
    (folder / "tree" / "home").mkdir(parents=True)
    folder.chmod(0o711)
    assert found(rig)[BOX, "directory"]["ours"] is False
    assert "something is stored" in refused(rig, "directory")
    assert (folder / "tree" / "home").is_dir()
    shutil.rmtree(folder)


def test_a_link_among_the_boxes_leads_nowhere(rig: Rig) -> None:
    kept = rig.home.parent / "kept"
    kept.mkdir()
    (rig.home / "boxes" / BOX).symlink_to(kept)
    assert found(rig)[BOX, "directory"]["ours"] is False
    refused(rig, "directory")
    assert kept.is_dir()
    (rig.home / "boxes" / BOX).unlink()


def test_old_copies_of_releases_go_but_those_in_use_and_the_newest(rig: Rig) -> None:
    folder = rig.home / "runtime"
    for age, name in enumerate(("release-1", "release-2", "release-3", "release-4", "release-5")):
        (folder / name / "site").mkdir(parents=True)
        os.utime(folder / name, (age + 1, age + 1))
    half, fresh = folder / ".release-6.abc", folder / ".release-7.def"
    half.mkdir()
    fresh.mkdir()
    os.utime(half, (1, 1))
    with subprocess.Popen(["/bin/sh", "-c", "sleep 600; :", str(folder / "release-2")]) as runs:
        told = found(rig)["", "release"]
        assert told["what"] == "3 copies of releases: .release-6.abc, release-1, release-3", told
        assert clear(rig, "release", "")
        subprocess.run(["pkill", "-P", str(runs.pid)], check=False)
        runs.kill()
    assert sorted(os.listdir(folder)) == [".release-7.def", "release-2", "release-4", "release-5", "test"]


# --- others -----------------------------------------------------------------------------------------------------------


def test_another_installation_of_this_host_is_out_of_reach(rig: Rig) -> None:
    """Its box runs under other ids, in other cgroups, from another state."""
    first, overrides = rig.ids[1] + 1 + 8, {"installation": "o" * 16}
    theirs = spawner_rig.make(ids=(first, first + 99), kernel=(first - 8, first - 8), overrides=overrides)
    theirs.start()
    try:
        theirs.provision(BOX, limits=SMALL)
        theirs.start_box(BOX, SMALL)
        theirs.kill()  # nobody serves it now
        rig.provision(OTHER, limits=SMALL)
        assert found(rig) == {}
        theirs.start()
        assert theirs.start_box(BOX, SMALL)["already"] is True
    finally:
        if theirs.channel is None:
            theirs.start()
        theirs.ask(protocol.Remove(BOX))
        theirs.stop()
        for parent in Path("/sys/fs/cgroup").glob("*/ringfence-" + "o" * 16):
            parent.rmdir()
        shutil.rmtree(theirs.home.parent)


def test_another_boots_record_is_no_process_and_its_cgroup_nothing(rig: Rig) -> None:
    """F47: after a boot live.json names a process of another one, and mounts and cgroups are gone."""
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo kept > /workspace/kept")
    record = rig.home / "boxes" / BOX / "live.json"
    rig.kill()
    disk_rig.kill_outright(disk_rig.pid_of(rig))
    live = json.loads(record.read_text())
    with process(0) as stranger:
        live["identity"] |= {"pid": stranger.pid, "boot_id": "0" * 36}
        live["outer_pid"] = stranger.pid
        record.write_text(json.dumps(live))
        for place in mounts_below(rig.home):
            subprocess.run(["umount", place], check=True)
        for directory in cgroups_of():
            for each in (directory / "main", directory / "cmds", directory):
                each.rmdir()
        assert nothing_left(rig.home)
        rig.start()
        assert set(found(rig)) <= {(BOX, "socket")}  # that there is no mount is nothing that was left
        rig.start_box(BOX, SMALL)
        assert rig.shell(BOX, "cat /workspace/kept")["out"] == "kept\n"
        assert stranger.poll() is None


def test_while_it_looks_and_clears_boxes_start_stop_and_go(rig: Rig) -> None:
    """Whatever is asked at the same time: nothing of a box that is being made, started or removed is taken for left."""
    boxes = [letter * 16 for letter in "abcfghijklmnopqrstuv"]
    kinds: tuple[DebrisKind, ...] = ("cgroup", "processes", "worker", "mount", "loop", "directory", "temporary")
    waiting: dict[int, str] = {}
    for round_ in range(5):  # 100 starts
        for box in boxes:
            waiting[rig.send(protocol.Provision(box, "home", SMALL))] = "provision"
            waiting[rig.send(protocol.Start(box, SMALL))] = "start"
        waiting[rig.send(protocol.Debris())] = "debris"
        for box in boxes:
            waiting |= {rig.send(protocol.Clear(box, kind)): "clear" for kind in kinds[:3]}
        waiting[rig.send(protocol.Clear("", "processes"))] = "clear"
        while waiting:
            reply, _ = rig.receive()
            what = waiting.pop(reply["id"])
            assert "ok" in reply, (what, reply)
            if what == "clear":
                assert reply["ok"] == {"gone": False}, reply
            elif what == "debris":
                assert reply["ok"]["found"] == [], reply
        assert all(rig.shell(box, "echo lives")["out"] == "lives\n" for box in boxes)
        for box in boxes:
            waiting[rig.send(protocol.Stop(box) if round_ % 2 else protocol.Remove(box))] = "down"
        waiting[rig.send(protocol.Debris())] = "any"
        while waiting:
            reply, _ = rig.receive()
            assert "ok" in reply, (waiting.pop(reply["id"]), reply)
            waiting.pop(reply["id"], None)
    deadline = time.monotonic() + 30
    while found(rig):
        assert time.monotonic() < deadline, found(rig)
        time.sleep(0.05)


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", ["mount", "loop", "cgroup"])
def test_what_a_running_box_was_robbed_of_by_hand_is_made_again(rig: Rig, taken: str) -> None:
    rig.provision(BOX, limits=SMALL)
    rig.start_box(BOX, SMALL)
    rig.shell(BOX, "echo kept > /workspace/kept")
    if taken == "mount":
        subprocess.run(["umount", "-l", rig.home / "boxes" / BOX / "tree"], check=True)
    elif taken == "loop":
        subprocess.run(["losetup", "-d", f"/dev/{devices_of(rig.home)[0]}"], check=True)
    else:
        for directory in cgroups_of():
            for each in (directory / "main", directory / "cmds", directory):
                for pid in (each / "cgroup.procs").read_text().split():
                    (directory.parent.parent / "cgroup.procs").write_text(pid)
            for each in (directory / "main", directory / "cmds", directory):
                each.rmdir()
    assert disk_rig.observed(rig)["state"] == "running"
    assert found(rig) == {}
    if taken != "cgroup":  # without one nobody may begin a command; what runs goes on
        assert rig.shell(BOX, "cat /workspace/kept")["out"] == "kept\n"
    rig.ask(protocol.Stop(BOX))
    assert found(rig) == {}
    rig.start_box(BOX, SMALL)
    assert rig.shell(BOX, "cat /workspace/kept")["out"] == "kept\n" and len(cgroups_of()) > 0


@pytest.mark.parametrize("asked", ["again", "swept"])
def test_a_removal_that_is_killed_at_any_moment_ends(rig: Rig, asked: str) -> None:
    """M12, F11: the moments are of all kinds: before its first step, in between, and when all is done."""
    for moment in (0.0, 0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03, 0.05):
        rig.provision(BOX, limits=SMALL)
        rig.start_box(BOX, SMALL)
        rig.send(protocol.Remove(BOX))
        time.sleep(moment)
        rig.kill()
        rig.start()
        left = found(rig)
        assert {kind for _, kind in left} <= {
            "cgroup",
            "processes",
            "socket",
            "temporary",
            "mount",
            "loop",
            "directory",
        }
        if asked == "swept":
            for box, kind in left:
                clear(rig, kind, box)  # type: ignore[arg-type]
            assert found(rig) == {}
        rig.ask(protocol.Remove(BOX))
        assert found(rig) == {} and os.listdir(rig.home / "boxes") == [] and nothing_left(rig.home)
    assert cgroups_of() == []


def test_a_box_whose_image_went_before_its_record_is_removed(rig: Rig) -> None:
    """What the kill of a removal leaves when it comes between the two: a tree that is the spawner's again."""
    rig.provision(BOX, limits=SMALL)
    folder = rig.home / "boxes" / BOX
    subprocess.run(["umount", folder / "tree"], check=True)
    assert nothing_left(rig.home)
    (folder / "disk.img").unlink()
    assert found(rig) == {}  # it has a record: whoever removes it goes on
    rig.ask(protocol.Stop(BOX))
    rig.ask(protocol.Remove(BOX))
    assert not folder.exists()
