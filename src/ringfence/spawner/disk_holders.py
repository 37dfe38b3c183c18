"""Who keeps a disk image's file system from being let go, told from /proc: for the words of a refusal.

A mount namespace of somebody else's that holds a copy of the mount, or a process that works below a place where it is
mounted. Not found are a bare open file, who works in a mount that was detached, and a namespace that only a file or a
descriptor keeps. Must never act on what it finds: it looks, and a pid may be another process's by the time that it is read.
Must never look through a link of /proc/PID at what is behind it: any process of the host may work on a file system whose
server is dead, which then answers nobody, and this is the one thread of the spawner. The link's own text costs no such ask.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

from ringfence.spawner.tasks import Steps, pause

MOST = 4  # are named: a message has a bounded size
AT_ONCE = 128  # processes between two pauses: some 3 ms, in which no other box is served
NAMESPACES = 4096  # are looked into at most, each once: a box has one
_LONGEST = 1 << 20  # bytes of a table of mounts; one of a box has some 4 KiB
_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True)
class Holder:
    pid: int  # in the spawner's pid namespace
    command: str  # of /proc/PID/comm, 15 characters at most; the process chose it
    how: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) {self.how}"


def find(device: int) -> Steps[list[Holder]]:
    """Of the file system on the block device `device` (st_rdev), one process a namespace, MOST at most."""
    own = _namespace("self")
    places = _places("self", device)
    seen: dict[str, bool] = {}  # mount namespace -> has it
    found: list[Holder] = []
    for count, name in enumerate(sorted((n for n in os.listdir("/proc") if n.isdigit()), key=int), start=1):
        if how := _holds(name, device, own, places, seen):
            found.append(Holder(int(name), _command(name), how))
        if len(found) == MOST:
            break
        if count % AT_ONCE == 0:
            yield from pause(0.0)
    return found


def _holds(pid: str, device: int, own: str, places: list[bytes], seen: dict[str, bool]) -> str:
    """How that process has it; empty: not, or it has ended. `places`: where it is mounted in our own namespace."""
    namespace = _namespace(pid)
    if namespace and namespace != own and namespace not in seen and len(seen) < NAMESPACES:
        seen[namespace] = bool(_places(pid, device))
        if seen[namespace]:
            return "has it in a mount namespace of its own"
    for link in ("root", "cwd"):
        with contextlib.suppress(OSError):
            if namespace == own and _below(os.readlink(f"/proc/{pid}/{link}".encode()), places):
                return "works in it"
    return ""


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _places(pid: str, device: int) -> list[bytes]:
    """Where that process sees it mounted. Of a line of /proc/PID/mountinfo (proc(5)) the third field is major:minor, the
    fifth the place, in which a blank, a tab, a new line and a backslash are octal."""
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/mountinfo", "rb") as file:
        lines = [line.split(b" ", 5) for line in file.read(_LONGEST).splitlines()]
        return [_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), line[4]) for line in lines if line[2:3] == [wanted]]
    return []


def _below(path: bytes, places: list[bytes]) -> bool:
    return any(path == place or path.startswith(place + b"/") for place in places)


def _command(pid: str) -> str:
    """Plain ASCII of it: whoever named the process does not write the operator's terminal."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", "rb") as file:
        return "".join(chr(byte) if 0x20 <= byte < 0x7F else "?" for byte in file.read(16).rstrip(b"\n"))
    return "?"
