"""Cgroup directories of boxes that do not run: what is in them ends, and they go, whatever somebody has made below them.

Must never end a process in one that is not under an id of this installation: somebody of the host has put it there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from ringfence.spawner import control_files as control
from ringfence.spawner import debris_processes, sweep
from ringfence.spawner.cgroups import Cgroups
from ringfence.spawner.errors import Failed, Refused
from ringfence.spawner.replies import Finding
from ringfence.spawner.tasks import Steps, pause

SECONDS = 10.0


def left(cgroups: Cgroups, box: str, may_kill: Callable[[int], bool]) -> Finding | None:
    """Of a box that does not run."""
    if not (directories := cgroups.directories(box)):
        return None
    pids = _members(directories)
    inside = debris_processes.some(pids) if pids else "empty"
    what = f"cgroup, {inside}{', frozen' if cgroups.frozen(box) else ''}"
    if strangers := [pid for pid in pids if not may_kill(pid)]:
        why = f"process {debris_processes.named(strangers[0])} of somebody else is in it: move it to another cgroup"
        return Finding("cgroup", box, what, why, 0, False)
    return Finding("cgroup", box, what, "the box does not run", cgroups.usage(box).memory, True)


def clear(cgroups: Cgroups, box: str, may_kill: Callable[[int], bool]) -> Steps[None]:
    """Refused: a stranger came. Failed: something stays."""
    until = time.monotonic() + SECONDS
    if not any(not may_kill(pid) for pid in _members(cgroups.directories(box))):
        yield from cgroups.kill(box)  # thaws on v1 what was killed while it stood still (M04)
    while True:
        directories = cgroups.directories(box)
        pids = _members(directories)  # also in what kill() does not know: made by hand, or in one hierarchy alone
        if strangers := [pid for pid in pids if not may_kill(pid)]:
            raise Refused(f"process {debris_processes.named(strangers[0])} of somebody else is in the box's cgroup")
        for pid in pids:
            _end(pid)
        if not pids and all([control.removed(each) for each in directories]):
            break
        if time.monotonic() > until:
            raise Failed(f"the box's cgroup stays: {debris_processes.some(pids)}", "ringfence doctor")
        yield from pause(0.005)
    cgroups.again()


def _members(directories: list[str]) -> list[int]:
    found = {int(line) for each in directories for line in control.read(f"{each}/cgroup.procs").split()}
    return sorted(pid for pid in found if sweep.uids_of(pid))  # 0: of another process namespace; a dead one has none


def _end(pid: int) -> None:
    with contextlib.suppress(OSError):
        uids = sweep.uids_of(pid)
        if uids:
            sweep.kill_one(pid, range(uids[0], uids[0] + 1))
