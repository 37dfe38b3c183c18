"""What is left of the host: memory, and how much of the last ten seconds was lost waiting for it. Linux' own figures."""

from __future__ import annotations

import re
from pathlib import Path

from ringfence.host.kernel.life.caps import Load

_MEMINFO, _PRESSURE = Path("/proc/meminfo"), Path("/proc/pressure/memory")
_SOME = re.compile(r"^some avg10=([0-9.]+)", re.MULTILINE)


def load(meminfo: Path = _MEMINFO, pressure: Path = _PRESSURE) -> Load:
    """Of a kernel that does not say (no PSI, proc(5)): nothing presses."""
    return Load(_memory_left(meminfo), _stalled(pressure))


def _memory_left(meminfo: Path) -> float:
    try:
        kib = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        total, left = (int(kib[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return 100.0
    return 100.0 * left / total if total else 100.0


def _stalled(pressure: Path) -> float:
    try:
        found = _SOME.search(pressure.read_text())
    except OSError:  # also EOPNOTSUPP, where PSI is compiled in and switched off
        return 0.0
    return float(found[1]) if found else 0.0
