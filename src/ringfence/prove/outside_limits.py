"""What the host's own files say of limits and mounts of boxes. Reads /proc and /sys/fs/cgroup only.

Makes Tries: `done` for a limit that bounds nothing, or a mount whose set-user-id bits and devices count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ringfence.prove.attacks.trying import DONE
from ringfence.prove.remains import cgroups
from ringfence.prove.row import NotHere, Tries

MEMORY = ("memory.max", "memory.limit_in_bytes")  # v2, v1
QUOTAS = ("cpu.max", "cpu.cfs_quota_us")
NO_CGROUP = "this host gives the server no cgroup"


def parents(installation: str) -> list[Path]:
    """The installation's directory in each hierarchy. NotHere: it has none."""
    found = cgroups(installation)
    if not found:
        raise NotHere(NO_CGROUP)
    return found


def below_the_host(directories: list[Path]) -> Tries:
    """Each of memory, pids and CPU that these directories have is bounded, and by less than the whole host."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    pids = int(Path("/proc/sys/kernel/pid_max").read_text())
    processors = float(os.cpu_count() or 1)
    return Tries(
        {
            "memory": _less(_least(directories, MEMORY, _number), memory),
            "pids": _less(_least(directories, ("pids.max",), _number), pids),
            "cpu": _less(_least(directories, QUOTAS, _processors), processors),
        }
    )


def leaf_below_box(directories: list[Path]) -> Tries:
    """Of boxes' directories: commands get less memory and fewer processes than the box, so that PID 1 has the rest."""
    told = {}
    for name, files in (("memory", MEMORY), ("pids", ("pids.max",))):
        box = _least(directories, files, _number)
        leaf = _least([directory / "cmds" for directory in directories], files, _number)
        told[f"{name} of commands"] = "no limit" if box is None else _less(leaf, box)
    return Tries(told)


def _less(value: float | None, whole: float) -> str:
    if value is not None and value < whole:
        return "less than the whole"
    return f"{DONE} unbounded" if value is None else f"{DONE} {value:.10g} of {whole:.10g}"


def _least(directories: list[Path], names: tuple[str, ...], number: Callable[[Path], float | None]) -> float | None:
    """None: nowhere a limit."""
    found = [number(directory / name) for directory in directories for name in names]
    return min((value for value in found if value is not None), default=None)


def _number(path: Path) -> float | None:
    text = _text(path)
    return float(text) if text.isdigit() else None  # `max`: none


def _processors(path: Path) -> float | None:
    quota, _, period = _text(path).partition(" ")
    whole = period or _text(path.with_name("cpu.cfs_period_us"))
    return int(quota) / int(whole) if quota.isdigit() and whole.isdigit() else None  # v1: -1 for none


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def mounts(pid: int, below: str) -> Tries:
    """Options of what is mounted at or below a path in that process's view. NotHere: nothing is, or nobody may look."""
    told = {}
    for line in _text(Path(f"/proc/{pid}/mountinfo")).splitlines():
        _, _, _, _, place, options, *_ = line.split()
        if place == below or place.startswith(below.rstrip("/") + "/"):
            lacks = [word for word in ("nosuid", "nodev") if word not in options.split(",")]
            told[place.replace(below, "", 1) or place] = (
                f"{DONE} without {', '.join(lacks)}" if lacks else "nosuid, nodev"
            )
    if not told:
        raise NotHere(f"no mount at {below} that this account can see")
    return Tries(told)
