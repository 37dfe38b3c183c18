"""Which cgroup hierarchies this host offers the spawner: v2, v1 (with or without a unified tree beside it), or none.

Root uses its own directory at the mounts' top; an ordinary user only what was delegated to him (systemd Delegate=, a
user scope). Must never move a process that is not the spawner's own.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

from ringfence.spawner import control_files as control
from ringfence.spawner import limits
from ringfence.spawner.all_boxes import Hierarchy
from ringfence.spawner.cgroups import Cgroups
from ringfence.spawner.config import Config
from ringfence.spawner.errors import StartRefused
from ringfence.spawner.limits import Knob, Whole

WANTED = frozenset({"memory", "pids", "cpu"})


@dataclass(frozen=True, slots=True)
class Mounted:
    version: int
    path: str
    controllers: frozenset[str]


def parse_mounts(mountinfo: str) -> list[Mounted]:
    """The cgroup lines of /proc/self/mountinfo (proc(5)), first mount of each hierarchy. v2 without controllers yet."""
    found: dict[frozenset[str] | int, Mounted] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        path, words = left.split()[4], right.split()
        if words and words[0] == "cgroup2":
            found.setdefault(2, Mounted(2, path, frozenset()))
        elif words and words[0] == "cgroup" and len(words) >= 3:
            controllers = frozenset(words[2].split(",")) & (WANTED | {"freezer"})
            if controllers:
                found.setdefault(controllers, Mounted(1, path, controllers))
    return list(found.values())


def own_path(text: str) -> str:
    """The caller's unified cgroup of /proc/self/cgroup, `/` when there is none."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::")), "/")


def find(config: Config) -> Cgroups:
    """Cgroups ready for boxes; kind `none` when the host gives the spawner nothing that limits memory and pids.
    StartRefused: the directory that the settings name is none to use; another one would not be what was asked for."""
    mounts = parse_mounts(_text("/proc/self/mountinfo"))
    name = f"ringfence-{config.installation}"
    unified = next((m for m in mounts if m.version == 2), None)
    if unified is not None:
        top = _top(config, unified)
        if top and WANTED - {"cpu"} <= _controllers(top):
            tree = Hierarchy(2, WANTED & _controllers(top), f"{top}/{name}")
            return _prepared(Cgroups("v2", (tree,)), top, config)
    if config.cgroup_parent is not None:
        raise StartRefused(
            f"cgroup_parent {config.cgroup_parent} is no version 2 cgroup with the controllers memory and pids",
            "name a delegated one, or leave cgroup_parent out; ringfence doctor",
        )
    if config.mode != "root":
        return Cgroups("none", ())
    # The freezer of v1 only where there is no unified tree: its frozen processes cannot be killed (M04).
    wanted = WANTED if unified is not None else WANTED | {"freezer"}
    parts = [
        Hierarchy(1, m.controllers & wanted, f"{m.path}/{name}")
        for m in mounts
        if m.version == 1 and m.controllers & wanted
    ]
    if not {"memory", "pids"} <= {c for part in parts for c in part.controllers}:
        return Cgroups("none", ())
    if unified is not None:
        parts.append(Hierarchy(2, frozenset(), f"{unified.path}/{name}"))
    return _prepared(Cgroups("v1", tuple(parts)), None, config)


def _top(config: Config, unified: Mounted) -> str | None:
    """The directory that our parent goes into: given, or the mount's top (root), or the caller's own if delegated."""
    if config.cgroup_parent is not None:
        return config.cgroup_parent
    if config.mode == "root":
        return unified.path
    own = unified.path + own_path(_text("/proc/self/cgroup")).rstrip("/")
    return own if own != unified.path and os.access(f"{own}/cgroup.subtree_control", os.W_OK) else None


def _prepared(cgroups: Cgroups, top: str | None, config: Config) -> Cgroups:
    """Makes the parents. A delegated v2 directory may hold no process itself, so the spawner moves to a leaf of it."""
    try:
        if top is not None and config.mode != "root":
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{top}/ringfence-server")
            control.write(f"{top}/ringfence-server", Knob("cgroup.procs", "0"))
        if top is not None:
            words = " ".join(f"+{name}" for name in sorted(WANTED & _controllers(top)))
            control.write(top, Knob("cgroup.subtree_control", words))
        cgroups.prepare(limits.total(Whole(_host_memory(), _host_pids(), _host_quota()), config.limits_all))
    except OSError as error:
        cgroups.leave()
        return Cgroups("none", (), f"{error.filename}: {error.strerror}")
    return cgroups


def _controllers(directory: str) -> frozenset[str]:
    return frozenset(_text(f"{directory}/cgroup.controllers").split())


def _host_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _host_pids() -> int:
    return min(int(_text("/proc/sys/kernel/pid_max")), int(_text("/proc/sys/kernel/threads-max")))


def _host_quota() -> int:
    return len(os.sched_getaffinity(0)) * limits.PERIOD


def host_swaps(meminfo: str = "/proc/meminfo") -> bool:
    """Whether swap is in use on this host now (proc(5))."""
    found = re.search(r"^SwapTotal: *(\d+) kB$", _text(meminfo), re.MULTILINE)
    return found is not None and int(found[1]) > 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
