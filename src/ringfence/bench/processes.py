"""The processes of a box as its host sees them: who is PID 1, who is an agent loop; and ending one from outside.

For the demo and the acceptance tests, which kill what must survive being killed. Reads /proc and names no process by its
user's name: a command is found by a word of its own that nobody else says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

GUEST = b"init.pyc"  # in the command line of PID 1 and of everything that it forked and that has not become a command


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def first_of(word: str, seconds: float = 20.0) -> int:
    """PID 1 of the box in which a command with this word runs. TimeoutError: there is none for so long.

    Every command of a box is a child of its PID 1 (CLONE_PARENT), or a descendant of one that is.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in _pids():
            if word.encode() not in _cmdline(pid):
                continue
            while (pid := _parent(pid)) > 1:
                if GUEST in _cmdline(pid):
                    return pid
        time.sleep(0.05)
    raise TimeoutError(f"no command with {word!r} in any box for {seconds:.0f} s")


def forks_of(first: int) -> set[int]:
    """Children of a box's PID 1 that are no commands: command spawners and agent loops."""
    return {pid for pid in _pids() if _parent(pid) == first and GUEST in _cmdline(pid)}


def idle_forks(marker: subprocess.Popen[bytes], word: str) -> set[int]:
    """What `forks_of` finds in a box without a run. `marker`: a client that runs a command with this word there; it is
    ended."""
    found = forks_of(first_of(word))
    marker.terminate()
    marker.communicate(timeout=30)
    return found


def kill(pid: int, server: int) -> None:
    """SIGKILL from the host. An ordinary user's boxes have ids of the user namespace that `server` made, so that it takes
    its root to do it: the user owns that namespace, and enters it."""
    try:
        os.kill(pid, 9)
    except PermissionError:
        nsenter = shutil.which("nsenter") or "/usr/bin/nsenter"
        enter = [nsenter, "--user", "--preserve-credentials", "--target", str(server)]
        subprocess.run([*enter, "/bin/sh", "-c", f"kill -9 {pid}"], check=True, capture_output=True)
