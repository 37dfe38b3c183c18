"""What an installation may leave on a host, and the last means against it.

Looks for processes, cgroups, mounts, loop devices, keys and the folder itself. Must never act on an id of another
installation.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from ringfence.host.install.accounts import running_under

CGROUPS = Path("/sys/fs/cgroup")
PATIENCE = 5.0  # the kernel takes a killed process's keys and cgroups away within moments


@dataclass(frozen=True, slots=True)
class Facts:
    """`ids` (0, 0): an ordinary user's, whose processes no range tells."""

    installation: str
    ids: tuple[int, int]


def find(facts: Facts, root: Path) -> list[str]:
    """A line for each thing that is left after some patience; empty as it should be."""
    until = time.monotonic() + PATIENCE
    while (left := _find(facts, root)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _find(facts: Facts, root: Path) -> list[str]:
    left = [f"process {pid}" for pid in (running_under(facts.ids) if facts.ids != (0, 0) else [])]
    left += [f"cgroup {path}" for path in cgroups(facts.installation)]
    left += [f"mount {line}" for line in _lines("/proc/self/mountinfo") if str(root) in line]
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        left += [f"loop device {backing.parts[3]}" for line in _lines(str(backing)) if str(root) in line]
    if facts.ids != (0, 0):
        left += [f"keys of id {uid}" for uid in _key_owners() if facts.ids[0] <= uid <= facts.ids[1]]
    return left + ([f"folder {root}"] if root.exists() else [])


def cgroups(installation: str, below: str = "", at: Path = CGROUPS) -> list[Path]:
    """The installation's directory, or what is `below` it, wherever it is: under v2 (`at` itself), and in each hierarchy of
    v1. Without the doubles that links make (cpu -> cpu,cpuacct)."""
    if not installation:
        return []
    name = f"ringfence-{installation}/{below}".rstrip("/")
    return sorted({path.resolve() for pattern in (name, f"*/{name}") for path in at.glob(pattern)})


def _key_owners() -> list[int]:
    return [int(line.split(":")[0]) for line in _lines("/proc/key-users") if line.strip()]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def end_by_force(facts: Facts, root: Path) -> None:
    """Where the server could not do it: kills every process of the installation's ids, and removes its cgroups and
    mounts. What still uses a mount keeps it to its end; the folder below it can be removed."""
    _kill(facts)
    for line in reversed(_lines("/proc/self/mountinfo")):
        place = line.split()[4]
        if place.startswith(f"{root}/") and os.geteuid() == 0:
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


def _kill(facts: Facts) -> None:
    if facts.ids == (0, 0):
        return
    until = time.monotonic() + PATIENCE
    while (pids := running_under(facts.ids)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    take_cgroups(facts.installation)


def take_cgroups(installation: str) -> None:
    """Those that are empty: a server that refused to start, or was killed, leaves some."""
    for top in cgroups(installation):
        for path in sorted([top, *(p for p in top.rglob("*") if p.is_dir())], reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
