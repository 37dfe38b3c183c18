"""Which processes belong together, and how to end all of them. Reads /proc; keeps nothing.

A pid alone is never trusted to mean the same process later: with it goes its start time.
"""

import posix

from ringfence.guest.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ROUNDS = 50
"""Of stop and walk. Whatever forks faster than that meets the pids limit of the box first."""


class Process:
    """One line of /proc."""

    __slots__ = ("parent", "session", "start", "state")

    def __init__(self, parent: int, session: int, start: int, state: str) -> None:
        self.parent = parent
        self.session = session
        self.start = start  # clock ticks since boot
        self.state = state  # R S D Z T ...


def look(pid: int) -> Process | None:
    """None when it is gone."""
    try:
        fd = posix.open(f"/proc/{pid}/stat", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = posix.read(fd, 4096)
    except OSError:
        return None
    finally:
        posix.close(fd)
    fields = data[data.rfind(b")") + 2 :].split()  # from field 3 of proc(5) on; a name may hold anything
    if len(fields) < 20:
        return None
    return Process(int(fields[1]), int(fields[3]), int(fields[19]), chr(fields[0][0]))


def command_line(pid: int) -> bytes:
    try:
        fd = posix.open(f"/proc/{pid}/cmdline", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return posix.read(fd, 4096)
    except OSError:
        return b""
    finally:
        posix.close(fd)


def scan() -> dict[int, Process]:
    """Every process of the box."""
    found = {}
    for name in posix.listdir("/proc"):
        if name.isdigit():
            process = look(int(name))
            if process is not None:
                found[int(name)] = process
    return found


def alive(pid: int, start: int) -> bool:
    process = look(pid)
    return process is not None and process.start == start and process.state not in "ZX"


def members(processes: dict[int, Process], roots: dict[int, int], session: int) -> dict[int, int]:
    """pid -> start time of `roots` (pid -> start time) that still are, of what is in `session` (0: none), and of all
    their descendants. Zombies count: their children do not hang below them any more, but they may be named."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    queue = [pid for pid, start in roots.items() if pid in processes and processes[pid].start == start]
    queue += [pid for pid, process in processes.items() if session and process.session == session]
    found: dict[int, int] = {}
    while queue:
        pid = queue.pop()
        if pid not in found and pid != 1:
            found[pid] = processes[pid].start
            queue += children.get(pid, [])
    return found


def living(processes: dict[int, Process], pids: "Iterable[int]") -> list[int]:
    return sorted(pid for pid in pids if processes[pid].state not in "ZX")


def kill(roots: dict[int, int], session: int) -> None:
    """Stops what it finds until it finds nothing new, then kills all of it: what is stopped cannot fork away."""
    stopped: dict[int, int] = {}
    for _ in range(MAX_ROUNDS):
        found = members(scan(), {**roots, **stopped}, session)
        new = [pid for pid in found if pid not in stopped]
        if not new:
            break
        for pid in new:
            send(pid, signal.SIGSTOP)
            stopped[pid] = found[pid]
    for pid in stopped:
        send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """A signal to one process that may be gone."""
    try:
        posix.kill(pid, number)
    except OSError:
        return


def send_group(group: int, number: int) -> None:
    try:
        posix.killpg(group, number)
    except OSError:
        return
