"""The directory of all boxes in each cgroup hierarchy, and what they may use together.

Boxes outlive servers: a limit that they are above already is refused by v1 (EBUSY). It is kept, tried again when a box
comes or goes or somebody asks for it (every 5 s at most), and told until it holds. Must never say of a limit that it
holds when the kernel has another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass

from ringfence.spawner import control_files as control
from ringfence.spawner import limits as arithmetic
from ringfence.spawner.limits import Knob, Whole

REST = "server"  # no box id: those have 16 characters
# Between two tries of what was refused: before v1 refuses memory, it takes back what it can from all boxes, for which the
# spawner waits. Starts and ends may come by the hundred; a limit that has waited for a box to end can wait 5 s more.
AGAIN_SECONDS = 5.0
UNBOUNDED = 1 << 22  # the most that a kernel gives (proc(5), pid_max)
# EINVAL: v1 takes no memory above memory + swap, where that could not be raised; and no CPU quota above that of a
# directory over ours.
_LATER = (errno.EBUSY, errno.EINVAL)
_NAMES = {
    "memory.limit_in_bytes": "memory",
    "memory.memsw.limit_in_bytes": "memory_with_swap",
    "memory.kmem.tcp.limit_in_bytes": "memory_of_sockets",
    "cpu.cfs_quota_us": "cpu_milli",
}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy, and our parent directory in it."""

    version: int
    controllers: frozenset[str]  # those of memory, pids, cpu (freezer, where there is no unified tree) that it has
    parent: str


class AllBoxes:
    """Without a hierarchy every method does nothing."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self._all = hierarchies
        self.whole = Whole(0, 0, 0)
        self._next = 0.0  # monotonic: not before
        self._refused: dict[str, list[Knob]] = {}  # parent -> what is to be tried again there

    def prepare(self, whole: Whole) -> None:
        """Makes the parents, with these limits. Raises OSError."""
        self.whole = whole
        for hierarchy in self._all:
            make(hierarchy.parent, hierarchy, leaf=False)
            if hierarchy.version == 1 and "cpu" in hierarchy.controllers:
                self._fit(hierarchy)
            knobs = arithmetic.parent_knobs(hierarchy.version, hierarchy.controllers, whole)
            self._refused[hierarchy.parent] = _refused(hierarchy.parent, knobs)

    def again(self) -> None:
        """What was refused, once more, AGAIN_SECONDS after the last try at the earliest. Nothing to do in nearly every
        case."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + AGAIN_SECONDS
        for parent, knobs in self._refused.items():
            if knobs:
                with contextlib.suppress(OSError):
                    self._refused[parent] = _refused(parent, knobs)

    def unmet(self) -> dict[str, dict[str, int]]:
        """Limits that do not hold yet, tried once more: name -> {"wanted", "now"}; now -1: none holds."""
        self.again()
        found: dict[str, dict[str, int]] = {}
        for parent, knobs in self._refused.items():
            for knob in knobs:
                now = control.number(f"{parent}/{knob.file}") or -1
                wanted = int(knob.value)
                if knob.file == "cpu.cfs_quota_us":
                    wanted, now = arithmetic.milli(wanted), now if now < 0 else arithmetic.milli(now)
                found[_NAMES[knob.file]] = {"wanted": wanted, "now": now}
        return found

    def limits(self) -> dict[str, int]:
        """What all boxes together may use, as far as these hierarchies bound it: memory, pids, cpu_milli."""
        whole = {"memory": self.whole.memory, "pids": self.whole.pids, "cpu": arithmetic.milli(self.whole.quota)}
        bounded = {name for hierarchy in self._all for name in hierarchy.controllers}
        return {"cpu_milli" if name == "cpu" else name: n for name, n in whole.items() if n and name in bounded}

    def _fit(self, hierarchy: Hierarchy) -> None:
        """v1 refuses a parent's quota below a child's: boxes that outlived a server with a higher one come down
        first."""
        for box in self.boxes():
            base = f"{hierarchy.parent}/{box}"
            if control.number(f"{base}/cpu.cfs_quota_us") > self.whole.quota:
                control.write(base, Knob("cpu.cfs_quota_us", str(self.whole.quota)))

    def leave(self) -> None:
        """The spawner ends: its parents go when no box of it runs, else the next server finds them."""
        for hierarchy in self._all:
            control.removed(f"{hierarchy.parent}/{REST}")
            control.removed(hierarchy.parent)

    def pids_left(self) -> int:
        """Processes that all boxes together may still make, as far as the limit of our own directory goes."""
        for hierarchy in self._all:
            limit = control.read(f"{hierarchy.parent}/pids.max").strip() if "pids" in hierarchy.controllers else "max"
            if limit.isdigit():
                return int(limit) - control.number(f"{hierarchy.parent}/pids.current")
        return UNBOUNDED

    def boxes(self) -> list[str]:
        """Boxes that have a directory here, running or not."""
        with contextlib.suppress(OSError, IndexError):
            return sorted(e.name for e in os.scandir(self._all[0].parent) if e.is_dir() and e.name != REST)
        return []


def _refused(parent: str, knobs: list[Knob]) -> list[Knob]:
    """Writes them; those that were refused for now. OSError."""
    return control.refused(parent, knobs, lambda knob, error: error.errno in _LATER and knob.file in _NAMES)


def make(directory: str, hierarchy: Hierarchy, *, leaf: bool) -> None:
    """A directory of ours; with the controllers for those below it unless it is a leaf. OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    if hierarchy.version == 2 and hierarchy.controllers and not leaf:
        words = " ".join(f"+{name}" for name in sorted(hierarchy.controllers))
        control.write(directory, Knob("cgroup.subtree_control", words))
