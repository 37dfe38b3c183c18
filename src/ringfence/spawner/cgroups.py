"""The boxes' cgroup directories: <mount>/ringfence-<installation>/<box>/{main,cmds} in each hierarchy that is used.

The same code for v2 and for v1 with an empty unified tree (whose freeze and kill work without controllers). Must never
touch a directory that is not below its own parent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass, fields
from typing import Literal

from ringfence.spawner import limits as arithmetic
from ringfence.spawner.errors import Failed, of_os_error
from ringfence.spawner.limits import Knob, Shares
from ringfence.spawner.protocol import Limits
from ringfence.spawner.tasks import Steps, pause

LEAVES = ("main", "cmds")
REST = "server"  # no box id: those have 16 characters
KILL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy, and our parent directory in it."""

    version: int
    controllers: frozenset[str]  # those of memory, pids, cpu that it has
    parent: str


@dataclass(frozen=True, slots=True)
class Usage:
    pids: int = 0
    memory: int = 0
    peak: int = 0
    limit: int = 0  # of cmds
    oom_kills: int = 0


class Cgroups:
    """No hierarchy at all is kind `none`: every method then does nothing."""

    def __init__(self, kind: Literal["v2", "v1", "none"], hierarchies: tuple[Hierarchy, ...]) -> None:
        self.kind = kind
        self._all = hierarchies
        self._unified = next((h for h in hierarchies if h.version == 2), None)

    def prepare(self, whole: Limits) -> None:
        """The parents, with the sum for all boxes. Raises OSError."""
        shares = Shares(whole.memory, 0, whole.pids, 0, 0, 0, 0)
        for hierarchy in self._all:
            _make(hierarchy.parent, hierarchy, leaf=False)
            _write_all(hierarchy.parent, arithmetic.box_knobs(hierarchy.version, hierarchy.controllers, shares))

    def leave(self) -> None:
        """The spawner ends: its parents go when no box of it runs, else the next server finds them."""
        for hierarchy in self._all:
            removed(f"{hierarchy.parent}/{REST}")
            removed(hierarchy.parent)

    def resting_place(self) -> str | None:
        """Of a helper of the spawner's: a leaf beside the boxes, for a v2 parent with controllers may hold no process.
        Not made yet. None: no hierarchy."""
        return f"{self._all[0].parent}/{REST}" if self._all else None

    def make(self, box: str) -> None:
        """The box's directories and leaves, without limits. Raises SpawnerError."""
        try:
            for hierarchy in self._all:
                base = f"{hierarchy.parent}/{box}"
                _make(base, hierarchy, leaf=False)
                for leaf in LEAVES:
                    _make(f"{base}/{leaf}", hierarchy, leaf=True)
        except OSError as error:
            raise of_os_error(error, "making the box's cgroups") from error

    def set_limits(self, box: str, shares: Shares) -> None:
        """Of the box and of cmds. Either order is legal: the kernel checks the tree at charge time. Raises OSError."""
        for hierarchy in self._all:
            base = f"{hierarchy.parent}/{box}"
            _write_all(base, arithmetic.box_knobs(hierarchy.version, hierarchy.controllers, shares))
            _write_all(f"{base}/cmds", arithmetic.cmds_knobs(hierarchy.version, hierarchy.controllers, shares))

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

    def boxes(self) -> list[str]:
        """Boxes that have a directory here, running or not."""
        with contextlib.suppress(OSError, IndexError):
            return sorted(e.name for e in os.scandir(self._all[0].parent) if e.is_dir() and e.name != REST)
        return []

    def processes(self, box: str) -> list[int]:
        found: set[int] = set()
        for hierarchy in self._all:
            base = f"{hierarchy.parent}/{box}"
            for directory in (base, *(f"{base}/{leaf}" for leaf in LEAVES)):
                found.update(int(line) for line in _read(f"{directory}/cgroup.procs").split())
        return sorted(found)

    def populated(self, box: str) -> bool:
        if self._unified is not None:
            return "populated 1" in _read(f"{self._unified.parent}/{box}/cgroup.events")
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
                _write(f"{self._unified.parent}/{box}", Knob("cgroup.kill", "1"))
                return
        for pid in self.processes(box):  # before Linux 5.14, or v1 alone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def remove(self, box: str) -> Steps[None]:
        """Removes the empty directories. The kernel may need some milliseconds after the last process (EBUSY)."""
        deadline = time.monotonic() + KILL_SECONDS
        for hierarchy in self._all:
            base = f"{hierarchy.parent}/{box}"
            for directory in (*(f"{base}/{leaf}" for leaf in LEAVES), base):
                while not removed(directory):
                    if time.monotonic() > deadline:
                        raise Failed("the box's cgroup cannot be removed", "ringfence doctor")
                    yield from pause(0.002)

    def usage(self, box: str) -> Usage:
        """Zeros where a file is missing."""
        memory = next((h for h in self._all if "memory" in h.controllers), None)
        pids = next((h for h in self._all if "pids" in h.controllers), None)
        values = dict.fromkeys((f.name for f in fields(Usage)), 0)
        if pids is not None:
            values["pids"] = _number(f"{pids.parent}/{box}/pids.current")
        if memory is not None:
            values |= _memory(memory, f"{memory.parent}/{box}")
        return Usage(**values)


def _memory(hierarchy: Hierarchy, base: str) -> dict[str, int]:
    if hierarchy.version == 2:
        names = ("memory.current", "memory.peak", "memory.max", "memory.events")
        counted: tuple[str, ...] = (base,)  # hierarchical
    else:
        names = ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control")
        counted = (base, *(f"{base}/{leaf}" for leaf in LEAVES))
    now, peak, limit, events = names
    return {
        "memory": _number(f"{base}/{now}"),
        "peak": _number(f"{base}/{peak}"),
        "limit": _number(f"{base}/cmds/{limit}"),
        "oom_kills": sum(_field(f"{directory}/{events}", "oom_kill") for directory in counted),
    }


def _make(directory: str, hierarchy: Hierarchy, *, leaf: bool) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    if hierarchy.version == 2 and hierarchy.controllers and not leaf:
        words = " ".join(f"+{name}" for name in sorted(hierarchy.controllers))
        _write(directory, Knob("cgroup.subtree_control", words))


def _write_all(directory: str, knobs: list[Knob]) -> None:
    """v1 refuses memory above memory + swap (EINVAL): what was refused is tried again after the rest."""
    refused = []
    for knob in knobs:
        try:
            _write(directory, knob)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            refused.append(knob)
    for knob in refused:
        _write(directory, knob)


def _write(directory: str, knob: Knob) -> None:
    try:
        fd = os.open(f"{directory}/{knob.file}", os.O_WRONLY)
    except FileNotFoundError:
        if knob.optional:
            return
        raise
    try:
        os.write(fd, knob.value.encode())
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def _number(path: str) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _field(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def removed(directory: str) -> bool:
    """Whether it is gone now; False: it is in use."""
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
