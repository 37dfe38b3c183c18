"""The spawner dies by SIGKILL between any two steps of making a box's disk, of mounting it and of taking it away: the next
one makes it whole, with one device and one mount."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from ringfence.spawner import config, paths, tasks
from ringfence.spawner.children import Children
from ringfence.spawner.disks import Disks
from ringfence.spawner.registry import Registry
from ringfence.spawner.sources import Host
from tests.support.disk_rig import BOX, SMALL, devices_of, mounts_below, nothing_left
from tests.support.spawner_rig import make

pytestmark = pytest.mark.root
# Calls that change something outside of the process; the profiler sees them by name.
STEPS = {
    *("mkdir", "open", "write", "rename", "unlink", "rmdir", "chmod", "fchmod", "fchown", "fsync", "ftruncate"),
    *("ioctl", "flock", "posix_spawn", "dup", "close"),
}
OURS = {"mount", "umount"}  # of syscalls.py


class State:
    def __init__(self, home: Path, settings: config.Config) -> None:
        self.home, self.settings = home, settings
        self.boxes = home / "boxes"
        self._state = paths.open_state(str(home))

    def parts(self) -> tuple[Registry, Disks]:
        host = cast(Host, SimpleNamespace(state=self._state, disk="image"))
        return Registry(self.settings, self._state), Disks(host, Children())

    def close(self) -> None:
        for fd in (self._state.home, self._state.boxes, self._state.spawner):
            os.close(fd)

    def provision(self) -> None:
        registry, disks = self.parts()
        disks.tidy(registry)
        entry, _ = registry.record(BOX, "probe")
        tasks.run(disks.prepare(entry, SMALL))
        registry.furnish(entry)

    def remove(self) -> None:
        registry, disks = self.parts()
        if BOX not in registry.names():
            return
        if not (self.boxes / BOX / "box.json").exists():
            registry.clear(BOX)
            return
        entry = registry.get(BOX)
        disks.apart(entry)
        registry.forget(entry, clean=True)


@pytest.fixture
def state() -> Iterator[State]:
    rig = make()
    made = State(rig.home, config.load(str(rig.config)))
    try:
        yield made
    finally:
        made.close()
    assert nothing_left(rig.home)
    rig.discard()


def dies_at(step: int, work: Callable[[], None]) -> bool:
    """Runs `work` in a child that kills itself before its step number `step`; False: it ended before it got there."""
    pid = os.fork()
    if pid == 0:
        seen = 0

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal seen
            ours = event == "call" and frame.f_code.co_name in OURS and "syscalls" in frame.f_code.co_filename
            if ours or (event == "c_call" and argument.__name__ in STEPS):
                seen += 1
                if seen == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.setprofile(count)
            work()
            code = 0
        except BaseException:
            sys.setprofile(None)
            traceback.print_exc()
        finally:
            sys.setprofile(None)
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def is_whole(state: State) -> None:
    tree = state.boxes / BOX / "tree"
    assert sorted(os.listdir(tree)) == ["home", "tmp", "workspace"]
    assert tree.stat().st_uid == tree.joinpath("home").stat().st_uid != 0 and tree.stat().st_mode & 0o777 == 0o700
    assert mounts_below(state.home) == [str(tree)] and len(devices_of(state.home)) == 1
    assert sorted(os.listdir(state.boxes / BOX)) == ["box.json", "ctl", "disk.img", "disk.json", "tree"]
    assert os.statvfs(tree).f_blocks * 4096 < SMALL.disk


def test_making_a_disk_survives_a_kill_at_every_step(state: State) -> None:
    step = 1
    while dies_at(step, state.provision):
        state.provision()
        is_whole(state)
        state.remove()
        assert os.listdir(state.boxes) == []
        step += 1
    assert step > 60, "the profiler saw next to nothing"
    is_whole(state)
    state.remove()


def test_taking_a_disk_away_survives_a_kill_at_every_step(state: State) -> None:
    step = 1
    state.provision()
    while dies_at(step, state.remove):
        state.remove()
        assert os.listdir(state.boxes) == [] and devices_of(state.home) == []
        state.provision()
        step += 1
    assert step > 15
    assert os.listdir(state.boxes) == []
