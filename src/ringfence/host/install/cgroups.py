"""Which cgroup controllers this account may use for boxes. Looks only; the spawner makes the directories."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.host.install.hostfacts import Row

NEEDED = frozenset({"memory", "pids", "cpu"})
DELEGATE = "systemd-run --user --scope -p Delegate=yes ringfence serve"


def mounts(mountinfo: str, wanted: frozenset[str] = NEEDED) -> tuple[Path | None, dict[str, Path]]:
    """(the v2 mount, `wanted` v1 controllers and their mounts) of a /proc/self/mountinfo text (proc(5))."""
    unified: Path | None = None
    v1: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            unified = Path(fields[4])
        elif kind[0] == "cgroup":
            v1 |= {name: Path(fields[4]) for name in kind[2].split(",") if name in wanted}
    return unified, v1


def own_group(lines: str) -> str:
    """The v2 path of the lines of /proc/self/cgroup: the part after `0::`."""
    return next((line[3:] for line in lines.splitlines() if line.startswith("0::")), "/")


def row(root: bool, proc: Path = Path("/proc/self")) -> Row:
    unified, v1 = mounts(text(proc / "mountinfo"))
    if root:
        return _of_root(unified, v1)
    place = None
    if unified is not None:
        place = unified / own_group(text(proc / "cgroup")).lstrip("/")
        have = NEEDED & set(text(place / "cgroup.controllers").split())
        if have == NEEDED and os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK):
            return Row("cgroups", True, "recommended", f"v2, delegated to this account: {place}")
    found = "none delegated to this account: no memory, pids or CPU limits for a box, and no freeze"
    return Row("cgroups", False, "recommended", found, f"{DELEGATE}; or accept no-cgroup")


def _of_root(unified: Path | None, v1: dict[str, Path]) -> Row:
    have = NEEDED & set(text(unified / "cgroup.controllers").split()) if unified else set()
    if unified is not None and have == NEEDED and os.access(unified, os.W_OK):
        return Row("cgroups", True, "recommended", f"v2 at {unified}")
    if set(v1) == NEEDED and all(os.access(path, os.W_OK) for path in v1.values()):
        kind = "hybrid: v1 controllers, freeze and kill by v2" if unified else "v1 controllers"
        return Row("cgroups", True, "recommended", kind)
    lacking = ", ".join(sorted(NEEDED - have - set(v1))) or "write access"
    remedy = "boot with systemd.unified_cgroup_hierarchy=1; in a container, delegate cgroups to it; or accept no-cgroup"
    return Row("cgroups", False, "recommended", f"not usable, lacking: {lacking}", remedy)


def text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
