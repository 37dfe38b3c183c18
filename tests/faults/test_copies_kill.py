"""F11: SIGKILL of the kernel, and with it the spawner's end, at each step of each verb that changes a whole tree.

After that another server starts, and the box has its old tree or its new one, whole; nothing half done is left, of rows, files,
folders or mounts; and the verb can be asked again.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import copies_rig, disk_rig
from tests.support.copies_rig import hash_of, tree_of
from tests.support.disk_rig import devices_of, mounts_below, nothing_left
from tests.support.spawner_rig import Rig

pytestmark = pytest.mark.root
REPOSITORY = Path(__file__).parents[2]
NOTHING = "no file at all"


@dataclass
class Server:
    """Of which each verb is another life."""

    rig: Rig
    serial: int = 0
    died: list[str] = field(default_factory=list)
    tree: str = ""  # hash of what was there at the last look

    def does(self, verb: str, at: int | str = 0) -> dict[str, Any] | None:
        """What it said; None: it died at the step `at`."""
        self.serial += 1
        if self.rig.channel is None:
            self.rig.start(greet=False)
        assert self.rig.channel is not None
        fd = self.rig.channel.fileno()
        words = [str(self.rig.home), str(fd), verb, str(at), str(self.serial)]
        argv = [sys.executable, "-m", "tests.support.copies_child", *words]
        done = subprocess.run(argv, pass_fds=[fd], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
        if verb == "look" and not done.returncode:
            self._see(json.loads(done.stdout.splitlines()[-1])["box"])
        self.rig.stop()  # as the spawner ends with its kernel
        last = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
        if done.returncode == -signal.SIGKILL:
            self.died.append(f"{verb} {at}: {last['died']}")
            return None
        assert done.returncode == 0, done.stderr[-3000:]
        return dict(last)

    def _see(self, box: str) -> None:
        """The spawner is there still; an image is mounted for that."""
        self.rig.provision(box, limits=copies_rig.ROOMY)
        found = set(copies_rig.described(tree_of(self.rig, box)))
        self.tree = NOTHING if found == {b"home", b"workspace"} else hash_of(tree_of(self.rig, box))


@pytest.fixture(params=["image", "accounting"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    rig = disk_rig.with_disk(request.param)
    (rig.home / "snapshots").mkdir(mode=0o700)
    (rig.home / "world").mkdir()
    rig.stop()
    made = Server(rig)
    yield made
    rig.start()
    rig.clean()
    assert nothing_left(rig.home)


def write(server: Server, box: str, uid: int, text: str) -> str:
    server.rig.start()
    server.rig.provision(box, limits=copies_rig.ROOMY)
    home = tree_of(server.rig, box) / "home"

    def work() -> None:
        for number in range(40):
            (home / f"f{number}").write_text(text * 1000)
        (home / text).mkdir(exist_ok=True)

    copies_rig.as_box(uid, work)
    seen = hash_of(tree_of(server.rig, box))
    server.rig.stop()
    return seen


def check(server: Server, seen: dict[str, Any]) -> None:
    """Nothing half done."""
    assert (seen["verb"], seen["unfinished"]) == ("", [])
    files = {name.split(".")[0] for name in os.listdir(server.rig.home / "snapshots")}
    assert files == set(seen["copies"]), (files, seen["copies"])
    left = set(os.listdir(server.rig.home / "boxes" / seen["box"]))
    assert not {name for name in left if name.startswith(("beside", "."))}, left
    archives = [kind for kind in seen["copies"].values() if kind == "archive"]
    assert len(archives) == (seen["rest"] == "archived")
    assert len(mounts_below(server.rig.home)) <= 1 and len(devices_of(server.rig.home)) <= 1


def each_step(server: Server, verb: str, allowed: set[str], first: int, stride: int) -> int:
    """Kills it at every `stride`-th step, each time from where the one before has left the box; until it comes to its end. How often."""
    for at in itertools.count(first, stride):
        ended = server.does(verb, at)
        if ended is not None:
            check(server, ended)
            server.does("look")
            return len(server.died)
        seen = server.does("look")
        assert seen is not None
        check(server, seen)
        if seen["rest"] != "archived":
            assert server.tree in allowed, server.died[-1]
        elif verb == "archive":  # and else it may be unpacked, though its row does not say so yet
            assert server.tree == NOTHING, server.died[-1]
    raise AssertionError


def base(server: Server) -> tuple[dict[str, Any], str, str]:
    """A box with a copy, and files that are others since: (state, hash of the copy, hash of now)."""
    first = server.does("look")
    assert first is not None
    old = write(server, first["box"], first["uid"], "old")
    assert server.does("snapshot") is not None
    return first, old, write(server, first["box"], first["uid"], "new")


SOME, ALL = (2, 9), (1, 1)
STEPS = [pytest.param(SOME, id="some"), pytest.param(ALL, marks=pytest.mark.soak, id="all")]


@pytest.mark.parametrize("steps", STEPS)
def test_a_snapshot(server: Server, steps: tuple[int, int]) -> None:
    _, _, now = base(server)
    assert each_step(server, "snapshot", {now}, *steps) > 1
    assert server.tree == now


@pytest.mark.parametrize("steps", STEPS)
def test_a_restore(server: Server, steps: tuple[int, int]) -> None:
    _, old, now = base(server)
    assert each_step(server, "restore", {old, now}, *steps) > 1
    assert server.tree == old


@pytest.mark.parametrize("steps", STEPS)
def test_a_reset(server: Server, steps: tuple[int, int]) -> None:
    _, _, now = base(server)
    assert each_step(server, "reset", {now, NOTHING}, *steps) > 1
    assert server.tree == NOTHING


@pytest.mark.parametrize("steps", STEPS)
def test_archive_and_back(server: Server, steps: tuple[int, int]) -> None:
    _, _, now = base(server)
    before = each_step(server, "archive", {now}, *steps)
    assert each_step(server, "unarchive", {now}, *steps) > before > 1
    assert server.tree == now


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("verb", ["restore", "reset"])
def test_another_tree_for_a_box_that_is_archived(server: Server, verb: str, steps: tuple[int, int]) -> None:
    """Row and tree agree at each step: what was packed is what it has, or it has the new tree."""
    first, old, now = base(server)
    wanted = old if verb == "restore" else NOTHING
    for at in itertools.count(*steps):
        assert server.does("archive") is not None
        ended = server.does(verb, at)
        seen = server.does("look")
        assert seen is not None
        check(server, seen)
        assert server.does("unarchive") is not None
        seen = server.does("look")
        assert seen is not None and seen["rest"] == ""
        check(server, seen)
        if ended is not None:
            assert server.tree == wanted and len(server.died) > 1
            return
        assert server.tree in (now, wanted), server.died[-1]
        if server.tree == wanted:
            now = write(server, first["box"], first["uid"], "new")


@pytest.mark.parametrize("step", ["before settle", "after settle"])
def test_a_restore_right_beside_the_change(server: Server, step: str) -> None:
    """The step itself: before it the old tree is there, after it the new one."""
    _, old, now = base(server)
    assert server.does("restore", step) is None
    server.does("look")
    assert server.tree == (now if step == "before settle" else old)
