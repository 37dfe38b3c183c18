"""Every file that is written on a pure v2 host, and what is read there, on directories that stand in for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.spawner import freezing, tasks
from ringfence.spawner.all_boxes import Hierarchy
from ringfence.spawner.cgroups import Cgroups, Usage
from ringfence.spawner.errors import Failed
from ringfence.spawner.limits import MIB, Whole, share
from ringfence.spawner.protocol import Limits

ALL = frozenset({"memory", "pids", "cpu"})
BOX = "c" * 16
PARENT = ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight", "cgroup.subtree_control")
INNER = (*PARENT[:-2], "cgroup.subtree_control", "cgroup.freeze", "cgroup.kill", "cgroup.events", "cgroup.procs")
LEAF = ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs", "cgroup.subtree_control")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """As the kernel makes it: every control file is there when its directory is."""
    parent = tmp_path / "ringfence-x"
    for folder, names in (
        (parent, PARENT),
        (parent / BOX, INNER),
        *((parent / BOX / n, LEAF) for n in ("main", "cmds")),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_text("")
    return parent


def cgroups(tree: Path) -> Cgroups:
    return Cgroups("v2", (Hierarchy(2, ALL, str(tree)),))


def written(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file() and path.read_text()}


def test_limits_and_controllers(tree: Path) -> None:
    made = cgroups(tree)
    made.prepare(Whole(4 << 30, 700, 180_000))
    made.make(BOX)
    made.set_limits(BOX, share(Limits()))
    below = {"cgroup.subtree_control": "+cpu +memory +pids"}
    assert written(tree) == below | {
        "memory.max": str(4 << 30),
        "memory.swap.max": "0",
        "pids.max": "700",
        "cpu.max": "180000 100000",
        "cpu.weight": "100",
    }
    assert written(tree / BOX) == below | {
        "memory.max": str(1 << 30),
        "memory.swap.max": "0",
        "pids.max": "512",
        "cpu.max": "180000 100000",  # two cores were asked for; all boxes have 1.8
    }
    # A leaf holds processes: no controller below it (cgroups(7), no internal processes).
    assert written(tree / BOX / "cmds") == {"memory.max": str(960 * MIB), "memory.swap.max": "0", "pids.max": "480"}
    assert written(tree / BOX / "main") == {}


def test_a_kernel_without_swap_accounting(tree: Path) -> None:
    (tree / "memory.swap.max").unlink()
    cgroups(tree).prepare(Whole(4 << 30, 700, 180_000))
    assert written(tree)["memory.max"] == str(4 << 30) and not (tree / "memory.swap.max").exists()
    (tree / "pids.max").unlink()
    with pytest.raises(FileNotFoundError):  # a limit that must be there
        cgroups(tree).prepare(Whole(4 << 30, 700, 180_000))


def test_freeze_thaw_and_kill(tree: Path) -> None:
    made, box = cgroups(tree), tree / BOX
    (box / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    tasks.run(made.freeze(BOX, frozen=True))
    assert (box / "cgroup.freeze").read_text() == "1" and made.frozen(BOX)
    (box / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    tasks.run(made.freeze(BOX, frozen=False))
    assert (box / "cgroup.freeze").read_text() == "0" and not made.frozen(BOX)
    steps = made.kill(BOX)
    next(steps)
    assert (box / "cgroup.kill").read_text() == "1"
    (box / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    with pytest.raises(StopIteration):
        next(steps)


def test_what_does_not_stand_still_in_time_goes_on(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "SECONDS", 0.05)
    (tree / BOX / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    with pytest.raises(Failed, match="cannot stop"):
        tasks.run(cgroups(tree).freeze(BOX, frozen=True))
    assert (tree / BOX / "cgroup.freeze").read_text().endswith("0")


def test_what_is_used(tree: Path) -> None:
    box = tree / BOX
    (box / "pids.current").write_text("7\n")
    (box / "memory.current").write_text("4096\n")
    (box / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    (box / "cmds" / "memory.max").write_text("1000\n")
    assert cgroups(tree).usage(BOX) == Usage(pids=7, memory=4096, peak=0, limit=1000, oom_kills=2)  # memory.peak: 5.19


def test_cpu_time_is_read_where_a_host_has_it(tree: Path) -> None:
    box = tree / BOX
    assert cgroups(tree).usage(BOX).cpu_usec == 0
    (box / "cpu.stat").write_text("usage_usec 1234567\nuser_usec 1\nsystem_usec 2\n")
    assert cgroups(tree).usage(BOX).cpu_usec == 1234567
    alone = Cgroups(
        "v1", (Hierarchy(1, frozenset({"cpu"}), str(tree)), Hierarchy(1, frozenset({"pids"}), f"{tree}/none"))
    )
    assert alone.usage(BOX).cpu_usec == 0
    (box / "cpuacct.usage").write_text("5678901234\n")  # nanoseconds
    assert alone.usage(BOX).cpu_usec == 5678901
    beside = Cgroups("v1", (Hierarchy(1, frozenset({"cpu"}), str(tree)), Hierarchy(2, frozenset(), str(tree))))
    assert beside.usage(BOX).cpu_usec == 1234567, "the unified tree, which has all of them"


def test_a_box_without_room_among_all_processes(tree: Path) -> None:
    made = cgroups(tree)
    (tree / "pids.max").write_text("max\n")
    (tree / "pids.current").write_text("690\n")
    assert made.pids_left() > 10_000
    (tree / "pids.max").write_text("700\n")
    assert made.pids_left() == 10
    assert Cgroups("none", ()).pids_left() > 10_000
