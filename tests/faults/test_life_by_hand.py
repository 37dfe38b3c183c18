"""What boxes stand on, taken away by hand while a server goes on: cgroups, mounts, loop devices, directories, records.

Real boxes, through the client. Each verb does what it says, or says what is missing and how it is put right; nothing that was
written is lost, and what is to stand still does, or has ended.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient
from tests.support.disk_rig import devices_of
from tests.support.installation import Installation, eventually, installation, of_uid

pytestmark = pytest.mark.root

CGROUPS = Path("/sys/fs/cgroup")
NEVER = "[rest]\npause_after = 0\nstop_after = 0\n"
_names = itertools.count(1)


@dataclass
class Scene:
    """Somebody with a file, a copy of it (`first`), and a box that runs."""

    ours: Installation
    client: SyncClient
    user: str
    box: str
    uid: int

    @property
    def folder(self) -> Path:
        return self.ours.home / "boxes" / self.box

    @property
    def cgroups(self) -> list[Path]:
        return [found for found in CGROUPS.rglob(self.box) if (found / "main").is_dir()]

    def kept(self) -> None:
        assert self.client.exec(self.user, ["cat", "/workspace/kept"])["stdout"] == "kept\n"

    def state(self) -> str:
        state: str = self.client.box(self.user)["observed"]
        return state

    def generation(self) -> int:
        number: int = self.client.box(self.user)["generation"]
        return number

    def move_out(self) -> None:
        """Every process of it, to the top of each hierarchy."""
        for base in self.cgroups:
            top = base
            while (top.parent / "cgroup.procs").exists():
                top = top.parent
            for leaf in ("main", "cmds"):
                for pid in (base / leaf / "cgroup.procs").read_text().split():
                    (top / "cgroup.procs").write_text(pid)

    def remove_cgroups(self) -> None:
        self.move_out()
        for base in self.cgroups:
            for each in (base / "main", base / "cmds", base):
                each.rmdir()


@pytest.fixture(scope="module")
def ours() -> Iterator[Installation]:
    with installation(settings=NEVER + '[limits]\ndisk = "64MiB"\n') as made:
        yield made


@pytest.fixture
def scene(ours: Installation) -> Iterator[Scene]:
    user = f"user{next(_names)}"
    with SyncClient(socket=ours.socket) as client:
        client.add_user(user)
        client.exec(user, ["sh", "-c", "echo kept > /workspace/kept"])
        client.snapshot(user, name="first")
        box = client.box(user)
        yield Scene(ours, client, user, box["box"], box["uid"])
        client.remove_user(user, purge=True)


@pytest.fixture
def freezing(scene: Scene) -> Scene:
    if not scene.ours.freezes(scene.user):
        pytest.skip("this host has no cgroups that freeze")
    return scene


# --- cgroups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [Scene.move_out, Scene.remove_cgroups])
def test_a_box_out_of_its_cgroups_says_so_and_is_back_in_them_after_a_stop(
    freezing: Scene, taken: Callable[[Scene], None]
) -> None:
    """It would run on without a limit, and called paused. Control: before, it can be paused and limited."""
    client, user = freezing.client, freezing.user
    client.pause_box(user)
    client.resume_box(user)
    client.set_limits(user, {"pids": 200})
    taken(freezing)
    verbs: list[Callable[[], Any]] = [lambda: client.pause_box(user)]
    if taken is Scene.remove_cgroups:
        verbs.append(lambda: client.set_limits(user, {"pids": 300}))
    for verb in verbs:
        with pytest.raises(ApiError, match="out of its cgroups") as told:
            verb()
        assert told.value.code == "unavailable" and "box stop" in told.value.remedy
        freezing.kept()  # it goes on
    client.stop_box(user)
    assert not of_uid(freezing.uid)
    freezing.kept()
    assert freezing.cgroups
    assert client.pause_box(user)["observed"] == "paused"


def test_a_paused_box_that_was_taken_out_of_its_cgroups_is_started_anew_in_new_ones(freezing: Scene) -> None:
    client, user, before = freezing.client, freezing.user, freezing.generation()
    client.pause_box(user)
    freezing.remove_cgroups()
    with pytest.raises(ApiError, match="out of its cgroups"):
        client.pause_box(user)  # not a word of that it is paused already
    freezing.kept()
    assert freezing.generation() == before + 1 and freezing.cgroups
    assert client.pause_box(user)["observed"] == "paused"


@pytest.mark.parametrize("paused", [True, False])
def test_quarantine_ends_what_cannot_stand_still(freezing: Scene, paused: bool) -> None:
    if paused:
        freezing.client.pause_box(freezing.user)
    freezing.remove_cgroups()
    assert of_uid(freezing.uid)
    assert freezing.client.quarantine_box(freezing.user, "odd")["observed"] == "stopped"
    assert not of_uid(freezing.uid)
    freezing.client.release_box(freezing.user)
    freezing.kept()


# --- directory --------------------------------------------------------------------------------------------------------

VERBS: dict[str, Callable[[SyncClient, str], Any]] = {
    "exec": lambda c, u: c.exec(u, ["true"]),
    "start": lambda c, u: c.start_box(u),
    "stop": lambda c, u: c.stop_box(u),
    "limits": lambda c, u: c.set_limits(u, {"pids": 200}),
    "files": lambda c, u: c.get_file(u, "/workspace/kept"),
    "snapshot": lambda c, u: c.snapshot(u),
    "restore": lambda c, u: c.restore_box(u, "first", force=True),
    "reset": lambda c, u: c.reset_box(u, force=True),
    "archive": lambda c, u: c.archive_box(u, force=True),
    "recover": lambda c, u: c.recover_box(u, "fsck"),
}


def _away(scene: Scene) -> Path:
    subprocess.run(["umount", "--lazy", scene.folder / "tree"], check=False, capture_output=True)
    return scene.folder.rename(scene.ours.home / f"away-{scene.box}")


def test_every_verb_on_a_box_whose_directory_is_missing_says_so_and_makes_nothing_in_its_place(scene: Scene) -> None:
    """As with a volume that is not mounted: with it back everything is as it was."""
    scene.client.stop_box(scene.user)
    away = _away(scene)
    for name, verb in VERBS.items():
        with pytest.raises(ApiError, match="directory of the box is missing") as told:
            verb(scene.client, scene.user)
        assert told.value.code == "unavailable" and "mount the volume" in told.value.remedy, name
        assert not scene.folder.exists(), name
    assert scene.state() in ("lost", "absent")
    away.rename(scene.folder)
    scene.kept()


def test_what_runs_of_a_box_whose_directory_is_missing_is_left_and_goes_on_with_it(scene: Scene) -> None:
    """Nobody can end it either, and whoever wants that is told."""
    before, generation = set(of_uid(scene.uid)), scene.generation()
    away = _away(scene)
    found = [each for each in scene.client.sweep()["found"] if each["kind"] == "processes"]
    assert [each["action"] for each in found] == ["reported"] and "missing" in found[0]["why"]
    assert before and set(of_uid(scene.uid)) == before
    with pytest.raises(ApiError, match="directory of the box is missing"):
        scene.client.quarantine_box(scene.user, "odd")
    with pytest.raises(ApiError, match="directory of the box is missing"):
        scene.client.stop_box(scene.user)
    with pytest.raises(ApiError, match="odd"):  # all the same nothing is begun in it
        scene.client.exec(scene.user, ["true"])
    away.rename(scene.folder)
    assert set(of_uid(scene.uid)) == before and scene.generation() == generation
    scene.client.quarantine_box(scene.user, "odd")
    scene.client.release_box(scene.user)
    scene.kept()


@pytest.mark.parametrize("verb", ["reset", "restore"])
def test_a_box_whose_files_are_gone_for_good_says_so_and_is_given_others(scene: Scene, verb: str) -> None:
    """Under the same limits as before. Nobody makes an empty tree of it unasked."""
    client, user = scene.client, scene.user
    client.stop_box(user)
    before = client.box(user)
    subprocess.run(["umount", "--lazy", scene.folder / "tree"], check=False, capture_output=True)
    shutil.rmtree(scene.folder / "tree")
    (scene.folder / "disk.img").unlink(missing_ok=True)
    for name in ("exec", "start", "files", "snapshot", "reset", "restore", "archive"):
        with pytest.raises(ApiError, match="files of the box are missing") as told:
            VERBS[name](client, user)
        assert told.value.code == "unavailable" and "--no-keep" in told.value.remedy, name
    if verb == "reset":
        client.reset_box(user, keep=False)
        assert client.exec(user, ["ls", "-A", "/workspace"])["stdout"] == ""
    else:
        client.restore_box(user, "first", keep=False)
        scene.kept()
    after = client.box(user)
    assert [after[name] for name in ("disk_by", "disk_limit_bytes")] == [
        before[name] for name in ("disk_by", "disk_limit_bytes")
    ]


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", ["gone", "no record", "of another boot"])
def test_a_box_that_runs_and_of_which_nothing_says_so_is_ended_by_quarantine(scene: Scene, record: str) -> None:
    live = scene.folder / "live.json"
    if record == "gone":
        live.unlink()
    else:
        live.write_text("{" if record == "no record" else _of_another_boot(live))
    scene.kept()
    assert of_uid(scene.uid)
    scene.client.quarantine_box(scene.user, "odd")
    assert not of_uid(scene.uid)
    scene.client.release_box(scene.user)
    scene.kept()


def _of_another_boot(live: Path) -> str:
    known = json.loads(live.read_text())
    known["identity"]["boot_id"] = "0" * 8 + known["identity"]["boot_id"][8:]
    return json.dumps(known)


def test_after_a_reboot_a_process_that_has_a_box_s_former_number_is_left_alone(tmp_path: Path) -> None:
    """Of the host's next boot everything is gone but what is on its disk: the record names a process that is somebody else's now."""
    with installation(settings=NEVER) as made:
        made.ok("user", "add", "ann")
        made.ok("exec", "ann", "--", "sh", "-c", "echo kept > /workspace/kept")
        box = made.box("ann")
        made.kill()
        for pid in of_uid(box["uid"]):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        eventually(lambda: not of_uid(box["uid"]))
        live = made.home / "boxes" / box["box"] / "live.json"
        with subprocess.Popen(["/bin/sleep", "600"]) as stranger:
            known = json.loads(_of_another_boot(live))
            known["identity"]["pid"] = known["outer_pid"] = stranger.pid
            live.write_text(json.dumps(known))
            made.start()
            assert made.box("ann")["observed"] == "lost"
            for words in (("box", "stop", "ann"), ("exec", "ann", "--", "true"), ("box", "stop", "ann"), ("sweep",)):
                made.ok(*words)
            assert stranger.poll() is None
            stranger.kill()
        assert made.ok("exec", "ann", "--", "cat", "/workspace/kept").out == b"kept\n"


@pytest.mark.parametrize("stop", [True, False])
def test_a_box_without_its_control_directory_has_another_at_its_next_start(scene: Scene, stop: bool) -> None:
    if stop:
        scene.client.stop_box(scene.user)
    shutil.rmtree(scene.folder / "ctl")
    scene.client.stop_box(scene.user)
    scene.kept()


# --- mounts and devices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("taken", ["mount", "device"])
@pytest.mark.parametrize("verb", ["snapshot", "files", "recover", "archive", "start"])
def test_a_mount_or_a_device_that_was_taken_by_hand_is_there_again(
    scene: Scene, running: bool, taken: str, verb: str
) -> None:
    """Of one image there is one device, whoever still has its former mount: two would destroy the file system."""
    if scene.client.box(scene.user)["disk_by"] != "image":
        pytest.skip("boxes have no images on this host")
    if not running:
        scene.client.stop_box(scene.user)
    if taken == "mount":
        subprocess.run(["umount", "--lazy", scene.folder / "tree"], check=True)
    else:
        said = subprocess.run(
            ["losetup", "-n", "-O", "NAME", "-j", scene.folder / "disk.img"], check=True, capture_output=True, text=True
        )
        subprocess.run(["losetup", "-d", said.stdout.split()[0]], check=True)
    VERBS[verb](scene.client, scene.user)
    mine = [each for each in devices_of(scene.ours.home) if scene.box in _backing(each)]
    assert len(mine) <= 1, mine
    scene.kept()
    scene.client.stop_box(scene.user)
    assert scene.client.recover_box(scene.user, "fsck")["found"] == "clean"


def _backing(device: str) -> str:
    return Path(f"/sys/block/{Path(device).name}/loop/backing_file").read_text()
