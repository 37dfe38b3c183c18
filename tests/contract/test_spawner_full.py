"""A cgroup tree without room: a start fails with the remedy in words, leaves nothing, and works once there is room."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.spawner import protocol
from ringfence.spawner.all_boxes import Hierarchy
from ringfence.spawner.cgroups import Cgroups
from ringfence.spawner.errors import Unavailable
from tests.support import spawner_rig
from tests.support.installation import of_uid
from tests.support.spawner_rig import Refusal, Rig

BOX = "f" * 16


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make()
    made.start()
    made.provision(BOX)
    yield made
    made.clean()


def directory(file: str) -> Path:
    """Of all boxes, in the hierarchy that has this control file."""
    return next(Path(parent) for parent in spawner_rig.cgroup_parents() if (Path(parent) / file).exists())


def refused(rig: Rig) -> Refusal:
    with pytest.raises(Refusal) as caught:
        rig.start_box(BOX)
    uid = rig.ask(protocol.Observe(BOX))["uid"]
    assert of_uid(uid) == {}
    assert not any((Path(parent) / BOX).exists() for parent in spawner_rig.cgroup_parents())
    return caught.value


def works(rig: Rig) -> bool:
    rig.start_box(BOX)
    return bool(rig.shell(BOX, "echo up")["out"] == "up\n")


@pytest.mark.root
def test_a_tree_that_may_have_no_more_directories(rig: Rig) -> None:
    """cgroup.max.descendants at each number below the three that a box needs."""
    limit = directory("cgroup.max.descendants") / "cgroup.max.descendants"
    there = int((limit.parent / "cgroup.stat").read_text().split()[1])  # nr_descendants: the spawner's own
    for more in range(3):
        limit.write_text(str(there + more))
        refusal = refused(rig)
        assert refusal.code == "unavailable" and "cgroup tree is full" in refusal.message
        assert "cgroup.max.descendants" in refusal.remedy
    limit.write_text(str(there + 3))
    assert works(rig)  # control: with room for one box


@pytest.mark.root
def test_no_process_left_for_all_boxes_together(rig: Rig) -> None:
    """The parent's pids.max, which moving a process in does not ask for but each fork does."""
    limit = directory("pids.max") / "pids.max"
    before = limit.read_text()
    limit.write_text((limit.parent / "pids.current").read_text())
    refusal = refused(rig)
    assert refusal.code == "unavailable" and "no process is left" in refusal.message
    assert "limits_all.pids" in refusal.remedy
    limit.write_text(before)
    assert works(rig)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOSPC])
def test_neither_is_taken_for_a_full_disk(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC: 65 535 memory cgroups, too many for a test."""

    def full(path: str, mode: int) -> None:
        raise OSError(number, "no room")

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(Unavailable) as caught:
        Cgroups("v2", (Hierarchy(2, frozenset(), str(tmp_path)),)).make(BOX)
    assert "df" not in caught.value.remedy and "cgroup.max.descendants" in caught.value.remedy
