"""Real cgroups of this host, without a box in them: limits of all boxes, and a tree that stands still, goes on, and dies.

Every kind that the host offers is tried: the unified tree beside v1 controllers, v1 alone with its freezer, v2.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.spawner import all_boxes, cgroup_host, control_files, tasks
from ringfence.spawner.all_boxes import Hierarchy
from ringfence.spawner.cgroups import Cgroups
from ringfence.spawner.errors import Busy, NoSpace, Unavailable
from ringfence.spawner.limits import Knob, Whole, share
from ringfence.spawner.protocol import Limits
from tests.unit.spawner.test_config import GOOD

pytestmark = pytest.mark.root
BOX = "c" * 16
NAME = f"ringfence-test{os.getpid()}"
WHOLE = Whole(1 << 30, 600, 150_000)
TINY = share(Limits(memory=96 << 20))
MOUNTS = cgroup_host.parse_mounts(Path("/proc/self/mountinfo").read_text())
UNIFIED = next((m for m in MOUNTS if m.version == 2), None)
V1 = [m for m in MOUNTS if m.version == 1]
FREEZER = any("freezer" in m.controllers for m in V1)
KINDS = [*(["unified"] if UNIFIED else []), *(["freezer"] if FREEZER else [])]
V1_KINDS = KINDS if any("memory" in m.controllers for m in V1) else []  # what v2 takes, or says in its own way
of_v1 = pytest.mark.parametrize("cgroups", V1_KINDS, indirect=True)
STORM = """
import mmap, os, sys
shared = mmap.mmap(int(sys.argv[1]), 4096)
os.close(1)
def count():
    shared[0:8] = (int.from_bytes(shared[0:8], "little") + 1).to_bytes(8, "little")
for _ in range(4):
    if os.fork() == 0:
        os.setsid()  # out of the group and the session of whoever is stopped by a signal (M01)
        while True:
            pid = os.fork()
            if pid == 0:
                count()
                os._exit(0)
            os.waitpid(pid, 0)
os.wait()
"""


def of_kind(kind: str) -> Cgroups:
    """`unified`: as on this host; `freezer`: as if it had no unified tree."""
    parts = [
        Hierarchy(1, m.controllers - ({"freezer"} if kind == "unified" else set()), f"{m.path}/{NAME}") for m in V1
    ]
    parts = [part for part in parts if part.controllers]
    if kind == "unified":
        assert UNIFIED is not None
        given = cgroup_host.WANTED & set(control_files.read(f"{UNIFIED.path}/cgroup.controllers").split())
        if given:  # none where v1 has them
            control_files.write(UNIFIED.path, Knob("cgroup.subtree_control", " ".join(f"+{name}" for name in given)))
        parts.append(Hierarchy(2, given, f"{UNIFIED.path}/{NAME}"))
    return Cgroups("v1" if V1 else "v2", tuple(parts))


@pytest.fixture(params=KINDS)
def cgroups(request: pytest.FixtureRequest) -> Iterator[Cgroups]:
    made = of_kind(request.param)
    made.prepare(WHOLE)
    made.make(BOX)
    yield made
    tasks.run(made.kill(BOX))
    tasks.run(made.remove(BOX))
    made.leave()


@pytest.fixture
def storm(cgroups: Cgroups, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], int]]]:
    """(the leader of a fork storm in the box's leaf, how many forks there were)."""
    file = os.open(tmp_path / "count", os.O_RDWR | os.O_CREAT)
    os.truncate(file, 4096)
    shared = mmap.mmap(file, 4096)
    leaf = cgroups.open_leaf(BOX, "cmds")

    def enter() -> None:
        for fd in leaf:
            os.write(fd, b"0")

    leader = subprocess.Popen([sys.executable, "-c", STORM, str(file)], pass_fds=[file], preexec_fn=enter)

    def count() -> int:
        return int.from_bytes(shared[0:8], "little")

    deadline = time.monotonic() + 30
    while count() < 10:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield leader, count
    tasks.run(cgroups.kill(BOX))
    leader.wait(10)
    shared.close()
    for fd in (file, *leaf):
        os.close(fd)


Storm = tuple["subprocess.Popen[bytes]", Callable[[], int]]


def goes_on(count: Callable[[], int], seconds: float = 5.0) -> bool:
    before, until = count(), time.monotonic() + seconds
    while count() == before and time.monotonic() < until:
        time.sleep(0.01)
    return count() > before


def test_a_fork_storm_stands_still_and_goes_on(cgroups: Cgroups, storm: Storm) -> None:
    """M01: each of its processes is in a session of its own, and forks while the freeze is under way."""
    leader, count = storm
    os.kill(leader.pid, signal.SIGSTOP)
    assert goes_on(count)  # control: a signal to the leader stops nobody else
    os.kill(leader.pid, signal.SIGCONT)
    for _ in range(10):
        tasks.run(cgroups.freeze(BOX, frozen=True))
        assert cgroups.frozen(BOX)
        still = count()
        time.sleep(0.05)
        assert count() == still
        tasks.run(cgroups.freeze(BOX, frozen=False))
        assert not cgroups.frozen(BOX) and goes_on(count)


def test_a_frozen_tree_is_killed(cgroups: Cgroups, storm: Storm) -> None:
    """M04."""
    leader, _ = storm
    tasks.run(cgroups.freeze(BOX, frozen=True))
    assert len(cgroups.processes(BOX)) >= 5
    tasks.run(cgroups.kill(BOX))
    assert cgroups.processes(BOX) == []
    assert leader.wait(5) == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["freezer"] if FREEZER else [])
def test_the_v1_freezer_keeps_what_was_killed(kind: str) -> None:
    """The control of the test above: without the thaw, SIGKILL waits for ever."""
    made = of_kind(kind)
    made.prepare(WHOLE)
    made.make(BOX)
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        for fd in made.open_leaf(BOX, "cmds"):
            os.write(fd, str(sleeper.pid).encode())
            os.close(fd)
        tasks.run(made.freeze(BOX, frozen=True))
        sleeper.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            sleeper.wait(0.3)
        tasks.run(made.kill(BOX))
        assert sleeper.wait(5) == -signal.SIGKILL
    finally:
        tasks.run(made.kill(BOX))
        tasks.run(made.remove(BOX))
        made.leave()


def test_a_box_without_a_process_freezes_and_thaws(cgroups: Cgroups) -> None:
    for frozen in (True, True, False, False):
        tasks.run(cgroups.freeze(BOX, frozen=frozen))
        assert cgroups.frozen(BOX) is frozen


def test_what_joins_a_frozen_box_stands_still(cgroups: Cgroups, tmp_path: Path) -> None:
    """v1 takes it too, since Linux 3.8."""
    tasks.run(cgroups.freeze(BOX, frozen=True))
    leaf = cgroups.open_leaf(BOX, "main")
    marker = tmp_path / "ran"
    child = subprocess.Popen(["sh", "-c", f"read line; touch {marker}"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    for fd in leaf:
        os.write(fd, str(child.pid).encode())
        os.close(fd)
    assert child.pid in cgroups.processes(BOX)
    child.stdin.close()
    time.sleep(0.2)
    assert not marker.exists()
    tasks.run(cgroups.freeze(BOX, frozen=False))
    child.wait(5)
    assert marker.exists()


def test_without_a_freezer_it_is_refused() -> None:
    with pytest.raises(Unavailable, match="frozen"):
        tasks.run(Cgroups("none", ()).freeze(BOX, frozen=True))


def limit_of(cgroups: Cgroups, controller: str, names: tuple[str, str], below: str = "") -> str:
    """`names`: of v1 and of v2."""
    found = next(h for h in cgroups._all if controller in h.controllers)
    return (Path(found.parent) / below / names[found.version - 1]).read_text().strip()


def test_all_boxes_together_have_a_limit(cgroups: Cgroups) -> None:
    memory, pids = ("memory.limit_in_bytes", "memory.max"), ("pids.max", "pids.max")
    assert limit_of(cgroups, "memory", memory) == str(WHOLE.memory)
    assert limit_of(cgroups, "pids", pids) == str(WHOLE.pids)
    assert limit_of(cgroups, "cpu", ("cpu.cfs_quota_us", "cpu.max")).split()[0] == str(WHOLE.quota)
    assert limit_of(cgroups, "cpu", ("cpu.shares", "cpu.weight")) in ("1024", "100")


def test_a_box_gets_no_more_cpu_than_all_boxes(cgroups: Cgroups) -> None:
    """v1 refuses a child's quota above its parent's."""
    quota = ("cpu.cfs_quota_us", "cpu.max")
    cgroups.set_limits(BOX, share(Limits(cpu_milli=64_000)))
    assert limit_of(cgroups, "cpu", quota, BOX).split()[0] == str(WHOLE.quota)
    cgroups.set_limits(BOX, share(Limits(cpu_milli=500)))
    assert limit_of(cgroups, "cpu", quota, BOX).split()[0] == "50000"


def test_boxes_that_outlived_a_server_fit_below_its_successors_limits(cgroups: Cgroups) -> None:
    cgroups.set_limits(BOX, share(Limits(cpu_milli=1500)))
    cgroups.prepare(Whole(WHOLE.memory, WHOLE.pids, 80_000))
    quota = ("cpu.cfs_quota_us", "cpu.max")
    assert limit_of(cgroups, "cpu", quota).split()[0] == "80000"
    assert int(limit_of(cgroups, "cpu", quota, BOX).split()[0]) in (80_000, 150_000)  # v2 needs no change
    cgroups.prepare(WHOLE)


HOLDS = """
import ctypes, mmap, sys, time
held = mmap.mmap(-1, 160 << 20)
assert ctypes.CDLL(None).mlockall(1) == 0  # nothing that the kernel could take back
held[::4096] = bytes(len(held) // 4096)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def full(cgroups: Cgroups) -> Iterator[Cgroups]:
    """With 160 MiB in use by the box."""
    leaf = cgroups.open_leaf(BOX, "cmds")

    def enter() -> None:
        for fd in leaf:
            os.write(fd, b"0")

    child = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, preexec_fn=enter)
    assert child.stdout is not None and child.stdout.readline() == b"\n"
    yield cgroups
    tasks.run(cgroups.kill(BOX))
    child.wait(10)
    child.stdout.close()
    for fd in leaf:
        os.close(fd)


MEMORY = ("memory.limit_in_bytes", "memory.max")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is tried again however soon."""
    monkeypatch.setattr(all_boxes, "AGAIN_SECONDS", 0.0)


@of_v1
@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("ends", ["remove", "make"])
def test_a_limit_that_boxes_are_above_is_told_and_holds_once_they_ended(full: Cgroups, ends: str) -> None:
    """v1 refuses it (EBUSY); v2 takes it and kills. `ends`: what tries it again, without anybody asking."""
    wanted = 64 << 20
    full.prepare(Whole(wanted, WHOLE.pids, WHOLE.quota))
    assert limit_of(full, "memory", MEMORY) == str(WHOLE.memory)
    assert full.unmet()["memory"] == {"wanted": wanted, "now": WHOLE.memory}
    assert full.limits() == {"memory": wanted, "pids": WHOLE.pids, "cpu_milli": WHOLE.quota // 100}
    full.make(BOX)
    assert limit_of(full, "memory", MEMORY) == str(WHOLE.memory)  # the control: nothing has ended
    tasks.run(full.kill(BOX))
    assert limit_of(full, "memory", MEMORY) == str(WHOLE.memory)  # and nobody has tried it
    until = time.monotonic() + 30
    while limit_of(full, "memory", MEMORY) != str(wanted):  # memory is given back behind the kill
        assert time.monotonic() < until
        tasks.run(full.remove(BOX)) if ends == "remove" else full.make(BOX)
        time.sleep(0.01)
    assert full.unmet() == {}


@of_v1
def test_limits_below_use_are_refused_and_nothing_is_changed(full: Cgroups) -> None:
    full.set_limits(BOX, share(Limits()))
    before = [limit_of(full, "memory", MEMORY, where) for where in (BOX, f"{BOX}/cmds")]
    with pytest.raises(Busy, match=r"uses 1[0-9]{8} bytes") as raised, full.changed_limits(BOX, TINY):
        pass
    assert "box stop" in raised.value.remedy
    with pytest.raises(NoSpace), full.changed_limits(BOX, share(Limits(pids=64))):
        assert limit_of(full, "pids", ("pids.max", "pids.max"), BOX) == "64"
        raise NoSpace("what was done meanwhile failed")
    assert [limit_of(full, "memory", MEMORY, where) for where in (BOX, f"{BOX}/cmds")] == before
    assert limit_of(full, "pids", ("pids.max", "pids.max"), BOX) == str(Limits().pids)
    with full.changed_limits(BOX, share(Limits(memory=512 << 20))):  # the control
        pass
    assert limit_of(full, "memory", MEMORY, BOX) == str(512 << 20)


@of_v1
def test_a_quota_that_the_kernel_takes_at_no_time_is_told(cgroups: Cgroups) -> None:
    """Less than 1 ms; no setting gives that."""
    cgroups.prepare(replace(WHOLE, quota=100))
    assert cgroups.unmet() == {"cpu_milli": {"wanted": 1, "now": WHOLE.quota // 100}}
    cgroups.prepare(replace(WHOLE, quota=1000))  # 10 thousandths, the least
    assert cgroups.unmet() == {}


ONLY_V2 = """
import json, sys
from ringfence.spawner import cgroup_host, config
found = cgroup_host.find(config.parse(sys.argv[1]))
print(found.kind, sorted(h.parent for h in found._all))
found.leave()
"""


def test_a_tree_of_version_2_alone_is_used_only_with_its_controllers() -> None:
    """L5. In a mount namespace that has nothing but cgroup2; its controllers may be those that v1 has not taken."""
    given = {**GOOD, "installation": "testtesttesttest", "accept": []}
    script = (
        f'mount -t tmpfs none /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && {sys.executable} -c "$1" "$2"'
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", ONLY_V2, json.dumps(given)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    controllers = set() if UNIFIED is None else set((Path(UNIFIED.path) / "cgroup.controllers").read_text().split())
    if {"memory", "pids"} <= controllers:
        assert done.stdout.strip() == "v2 ['/sys/fs/cgroup/ringfence-testtesttesttest']"
    else:
        assert done.stdout.strip() == "none []"
