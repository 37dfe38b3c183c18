"""What /proc says of this host and of a process of ours."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def machine() -> str:
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return f"{os.cpu_count()} x {model[1] if model else platform.machine()}, Linux {platform.release()}"


def anonymous_bytes(pid: int) -> int:
    """What a process has in memory that no file could give back: its heaps and stacks (proc_pid_smaps(5)).
    PermissionError: the kernel process cannot be looked into by its own account, only by root."""
    found = re.search(r"^Anonymous:\s+(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0


def peak_bytes(pid: int | str) -> int:
    """The most that a process has had in memory, files that it maps included. `pid`: also "self"."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0
