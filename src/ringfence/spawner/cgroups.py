"""The boxes' cgroup directories: <mount>/ringfence-<installation>/<box>/{main,cmds} in each hierarchy that is used.

The same code for v2 and for v1 with an empty unified tree (whose freeze and kill work without controllers). Must never
touch a directory that is not below its own parent.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal

from ringfence.spawner import control_files as control
from ringfence.spawner import freezing
from ringfence.spawner import limits as arithmetic
from ringfence.spawner.all_boxes import REST, AllBoxes, Hierarchy, make
from ringfence.spawner.errors import Failed, Unavailable, of_cgroup_error, of_limit_error, of_os_error
from ringfence.spawner.limits import Knob, Shares
from ringfence.spawner.tasks import Steps, pause

LEAVES = ("main", "cmds")
KILL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Usage:
    pids: int = 0
    memory: int = 0
    peak: int = 0
    limit: int = 0  # of cmds
    oom_kills: int = 0
    cpu_usec: int = 0


class Cgroups(AllBoxes):
    """No hierarchy at all is kind `none`: every method then does nothing. `why`: what kept it from having one."""

    def __init__(self, kind: Literal["v2", "v1", "none"], hierarchies: tuple[Hierarchy, ...], why: str = "") -> None:
        super().__init__(hierarchies)
        self.kind, self.why = kind, why
        self._unified = next((h for h in hierarchies if h.version == 2), None)
        self._freezer = self._unified or next((h for h in hierarchies if "freezer" in h.controllers), None)

    def lacks(self, *, swap: bool) -> list[str]:
        """Ids (weaknesses.py) of what these hierarchies cannot do. `swap`: this host swaps."""
        files = [f"{h.parent}/{arithmetic.SWAP[h.version]}" for h in self._all if "memory" in h.controllers]
        found = {
            "no-cpu-limit": bool(self._all) and not any("cpu" in h.controllers for h in self._all),
            "no-swap-limit": swap and bool(files) and not all(os.path.exists(file) for file in files),
            "no-freezer": bool(self._all) and self._freezer is None,
        }
        return [name for name, missing in found.items() if missing]

    def resting_place(self) -> str | None:
        """Of a helper of the spawner's: a leaf beside the boxes, for a v2 parent with controllers may hold no process.
        Not made yet. None: no hierarchy."""
        return f"{self._all[0].parent}/{REST}" if self._all else None

    def make(self, box: str) -> None:
        """The box's directories and leaves, without limits. Raises SpawnerError."""
        self.again()
        try:
            for hierarchy in self._all:
                base = f"{hierarchy.parent}/{box}"
                make(base, hierarchy, leaf=False)
                for leaf in LEAVES:
                    make(f"{base}/{leaf}", hierarchy, leaf=True)
        except OSError as error:
            raise of_cgroup_error(error) from error

    def set_limits(self, box: str, shares: Shares) -> None:
        """Of the box and of cmds, CPU at most that of all boxes (v1 refuses more). Either order is legal: the kernel
        checks the tree at charge time. Raises OSError."""
        if self.whole.quota:
            shares = replace(shares, quota=min(shares.quota, self.whole.quota))
        for hierarchy in self._all:
            base = f"{hierarchy.parent}/{box}"
            control.write_all(base, arithmetic.box_knobs(hierarchy.version, hierarchy.controllers, shares))
            control.write_all(f"{base}/cmds", arithmetic.cmds_knobs(hierarchy.version, hierarchy.controllers, shares))

    @contextlib.contextmanager
    def changed_limits(self, box: str, shares: Shares) -> Iterator[None]:
        """Those of a running box; as they were before when they are refused, or what is done meanwhile is.
        Raises SpawnerError."""
        former: list[tuple[str, list[Knob]]] = []
        for hierarchy in self._all:
            base = f"{hierarchy.parent}/{box}"
            outer = arithmetic.box_knobs(hierarchy.version, hierarchy.controllers, shares)
            inner = arithmetic.cmds_knobs(hierarchy.version, hierarchy.controllers, shares)
            former += [(base, control.as_it_is(base, outer)), (f"{base}/cmds", control.as_it_is(f"{base}/cmds", inner))]
        try:
            try:
                self.set_limits(box, shares)
            except OSError as error:
                raise of_limit_error(error, self.usage(box).memory) from error
            yield
        except BaseException:
            for directory, knobs in former:
                with contextlib.suppress(OSError):
                    control.write_all(directory, knobs)
            raise

    def open_leaf(self, box: str, leaf: str) -> list[int]:
        """Write descriptors of the leaf's cgroup.procs, one a hierarchy: writing "0" moves the writer there."""
        opened: list[int] = []
        try:
            for hierarchy in self._all:
                opened.append(os.open(f"{hierarchy.parent}/{box}/{leaf}/cgroup.procs", os.O_WRONLY))
        except OSError as error:
            for fd in opened:
                os.close(fd)
            raise of_os_error(error, "opening the box's cgroups") from error
        return opened

    def processes(self, box: str) -> list[int]:
        found: set[int] = set()
        for hierarchy in self._all:
            base = f"{hierarchy.parent}/{box}"
            for directory in (base, *(f"{base}/{leaf}" for leaf in LEAVES)):
                found.update(int(line) for line in control.read(f"{directory}/cgroup.procs").split())
        return sorted(found)

    def holds(self, box: str, pid: int) -> bool:
        """Whether the box's PID 1 is in its cgroup of every hierarchy: nobody has moved it out, or removed them."""
        return all(str(pid) in control.read(f"{h.parent}/{box}/main/cgroup.procs").split() for h in self._all)

    def populated(self, box: str) -> bool:
        if self._unified is not None:
            return "populated 1" in control.read(f"{self._unified.parent}/{box}/cgroup.events")
        return bool(self.processes(box))

    def kill(self, box: str) -> Steps[None]:
        """Kills every process of the box and waits until none is left. Failed after 20 s (a process that the kernel
        cannot end: uninterruptible in a file system)."""
        deadline = time.monotonic() + KILL_SECONDS
        delay = 0.0005
        while self.populated(box):
            self._kill_once(box)
            if time.monotonic() > deadline:
                raise Failed("the box still has processes that the kernel cannot end", "ringfence doctor")
            yield from pause(delay)
            delay = min(delay * 2, 0.05)

    def _kill_once(self, box: str) -> None:
        if self._unified is not None:
            with contextlib.suppress(OSError):
                control.write(f"{self._unified.parent}/{box}", Knob("cgroup.kill", "1"))
                return
        for pid in self.processes(box):  # before Linux 5.14, or v1 alone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        if self._freezer is not None:  # a frozen process of v1 dies only once it is thawed (M04)
            with contextlib.suppress(OSError):
                freezing.SWITCHES[self._freezer.version].turn(f"{self._freezer.parent}/{box}", False)

    def freeze(self, box: str, *, frozen: bool) -> Steps[None]:
        """Freezes or thaws. Unavailable: this host gives no freezer. Failed, OSError."""
        if self._freezer is None:
            raise Unavailable(
                "this host gives the server no cgroup that can be frozen", "stop it: ringfence box stop U"
            )
        yield from freezing.turn(self._freezer.version, f"{self._freezer.parent}/{box}", frozen=frozen)

    def frozen(self, box: str) -> bool:
        freezer = self._freezer
        return freezer is not None and freezing.is_frozen(freezer.version, f"{freezer.parent}/{box}")

    def remove(self, box: str) -> Steps[None]:
        """Removes the empty directories. The kernel may need some milliseconds after the last process (EBUSY)."""
        deadline = time.monotonic() + KILL_SECONDS
        for hierarchy in self._all:
            base = f"{hierarchy.parent}/{box}"
            for directory in (*(f"{base}/{leaf}" for leaf in LEAVES), base):
                while not control.removed(directory):
                    if time.monotonic() > deadline:
                        raise Failed("the box's cgroup cannot be removed", "ringfence doctor")
                    yield from pause(0.002)
        self.again()

    def left(self) -> set[str]:
        """Names of directories beside those of the server's own in any hierarchy, also where the others have none."""
        found: set[str] = set()
        for hierarchy in self._all:
            with contextlib.suppress(OSError), os.scandir(hierarchy.parent) as entries:
                found |= {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        return found - {REST}

    def directories(self, box: str) -> list[str]:
        """Of the box in every hierarchy, whatever somebody has made in them; those below before those above."""
        tops = [f"{hierarchy.parent}/{box}" for hierarchy in self._all]
        return [found for top in tops for found, _, _ in os.walk(top, topdown=False)]

    def usage(self, box: str) -> Usage:
        """Zeros where a file is missing."""
        memory = next((h for h in self._all if "memory" in h.controllers), None)
        pids = next((h for h in self._all if "pids" in h.controllers), None)
        values = dict.fromkeys((f.name for f in fields(Usage)), 0)
        if pids is not None:
            values["pids"] = control.number(f"{pids.parent}/{box}/pids.current")
        if memory is not None:
            values |= _memory(memory, f"{memory.parent}/{box}")
        return Usage(**values | {"cpu_usec": self._cpu_usec(box)})

    def _cpu_usec(self, box: str) -> int:
        """Since the box's cgroup was made. Every v2 cgroup has it, also one without controllers (cgroup-v2.rst); of v1 alone only
        where cpuacct is mounted with what boxes are in."""
        if self._unified is not None:
            return control.count(f"{self._unified.parent}/{box}/cpu.stat", "usage_usec")
        return max((control.number(f"{h.parent}/{box}/cpuacct.usage") for h in self._all), default=0) // 1000


def _memory(hierarchy: Hierarchy, base: str) -> dict[str, int]:
    if hierarchy.version == 2:
        names = ("memory.current", "memory.peak", "memory.max", "memory.events")
        counted: tuple[str, ...] = (base,)  # hierarchical
    else:
        names = ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control")
        counted = (base, *(f"{base}/{leaf}" for leaf in LEAVES))
    now, peak, limit, events = names
    return {
        "memory": control.number(f"{base}/{now}"),
        "peak": control.number(f"{base}/{peak}"),
        "limit": control.number(f"{base}/cmds/{limit}"),
        "oom_kills": sum(control.count(f"{directory}/{events}", "oom_kill") for directory in counted),
    }
