"""A host that is not as it should be: a cgroup tree without room, links in a tree that bubblewrap would follow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.prove import remains
from ringfence.prove.attacks.poison import NAMES
from ringfence.spawner import protocol
from tests.support import spawner_rig
from tests.support.installation import Installation, installation, of_uid
from tests.support.spawner_rig import Rig

pytestmark = pytest.mark.root
BOX = "g" * 16


@pytest.fixture(scope="module")
def made() -> Iterator[Installation]:
    """Its limits are what they were after each test, and no box of it runs."""
    with installation() as made:
        made.ok("user", "add", "ann")
        yield made


def parent(installation_id: str, file: str) -> Path:
    """The directory of all boxes, in the hierarchy that has this control file."""
    return next(place for place in remains.cgroups(installation_id) if (place / file).exists())


@pytest.mark.parametrize("limit", ["cgroup.max.descendants", "pids.max"])
def test_no_room_for_another_box(made: Installation, limit: str) -> None:
    """Also with room for a part of it: at each number up to the one with which it starts."""
    installation_id = made.ok("status", "--json").json()["installation"]
    place = parent(installation_id, limit)
    before = (place / limit).read_text()
    now = (place / "cgroup.stat").read_text().split()[1] if "descendants" in limit else ""
    now = now or (place / "pids.current").read_text()
    for more in range(12):
        (place / limit).write_text(str(int(now) + more))
        done = made.run("exec", "ann", "--json", "--", "true")
        if done.code == 0:
            break
        error = done.json()["error"]
        assert (done.code, error["code"] in ("unavailable", "box_lost")) == (5, True), (more, error)
        assert ("cgroup.max.descendants" if "descendants" in limit else "limits_all.pids") in error["remedy"], error
        shown = made.box("ann")
        assert shown["observed"] != "running" and of_uid(shown["uid"]) == {}
        assert not remains.cgroups(installation_id, shown["box"])
        assert made.ok("status", "--json").json()["ok"]
    assert more > 0, "the limit did not bite"
    (place / limit).write_text(before)
    assert made.ok("exec", "ann", "--", "echo", "up").out == b"up\n"
    assert remains.cgroups(installation_id, made.box("ann")["box"])  # control
    made.ok("box", "stop", "ann")


# --- CVE-2026-87766 ---------------------------------------------------------------------------------------------------


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make(overrides={"disk": "accounting"}, accept=("no-disk-quota",))
    made.start()
    yield made
    made.clean()


def targets(canary: Path) -> list[str]:
    """The folder as bubblewrap sees it while it sets up: the host's root is /oldroot then, the box's to be /newroot."""
    return [f"/oldroot{canary}", f"../../../../../../oldroot{canary}", str(canary), f"/newroot/../oldroot{canary}", "/"]


def plant(tree: Path, uid: int, target: str) -> None:
    """Each name that a start makes, in each of the box's own trees, as the box itself would."""
    for part in ("home", "workspace", "tmp"):
        for name in NAMES:
            link = tree / part / name
            if link.parent.is_dir() and not link.parent.is_symlink() and not os.path.lexists(link):
                link.symlink_to(target)
                os.lchown(link, uid, uid)


def test_links_planted_before_a_start_lead_nowhere(rig: Rig, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.mkdir(mode=0o777)
    canary.chmod(0o777)  # the box's id could write here: only the walls keep it out
    uid = rig.provision(BOX)["uid"]
    tree = rig.home / "boxes" / BOX / "tree"
    for target in targets(canary):
        plant(tree, uid, target)
        rig.start_box(BOX)
        assert rig.shell(BOX, "echo up")["out"] == "up\n"
        rig.ask(protocol.Stop(BOX))
        assert os.listdir(canary) == [], target
        for part in ("home", "workspace"):  # /tmp was emptied
            for name in os.listdir(tree / part):
                (tree / part / name).unlink()


def test_the_links_work_where_something_is_made_below_the_users_tree(tmp_path: Path) -> None:
    """The control: this bubblewrap, told what it is never told, or one that has the mend and says so."""
    canary, home = tmp_path / "canary", tmp_path / "home"
    for folder in (canary, home):
        folder.mkdir()
    (home / ".cache").symlink_to(f"/oldroot{canary}")
    words = [
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/lib64",
        "/lib64",
        "--symlink",
        "usr/lib",
        "/lib",
        "--dir",
        "/home",
    ]
    more = ["--bind", str(home), "/home/user", "--dir", "/home/user/.cache/made", "/usr/bin/true"]
    done = subprocess.run(["/usr/bin/bwrap", "--unshare-user", *words, *more], capture_output=True, text=True)
    version = subprocess.run(["/usr/bin/bwrap", "--version"], capture_output=True, text=True).stdout.split()[1]
    if tuple(map(int, version.split("."))) < (0, 12):
        assert os.listdir(canary) == ["made"], done.stderr
    else:
        assert os.listdir(canary) == []
