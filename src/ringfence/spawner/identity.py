"""Who a running box's PID 1 is: written to live.json at start, compared before anything is done to a process.

A pid alone is somebody else's tomorrow (threats M05): boot id, start time and, where the kernel has pidfs, the pidfd's
inode must all agree. Must never signal by pid: always by a pidfd whose identity was compared after it was opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from dataclasses import asdict, dataclass

from ringfence.spawner import paths
from ringfence.spawner.protocol import Identity


@dataclass(frozen=True, slots=True)
class Live:
    """live.json: PID 1 and bwrap's own process outside, its parent."""

    identity: Identity
    outer_pid: int
    outer_start: int


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat; 0 when there is no such process or only its zombie is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def has_pidfs() -> bool:
    """Whether a pidfd's inode names its process for good (Linux 6.9): then pidfds have a file system of their own."""
    pidfd, plain = os.pidfd_open(os.getpid()), os.eventfd(0)
    try:
        return os.fstat(pidfd).st_dev != os.fstat(plain).st_dev
    finally:
        os.close(pidfd)
        os.close(plain)


class Identifier:
    """Takes and compares identities on this boot."""

    def __init__(self) -> None:
        self.boot_id = boot_id()
        self.pidfs = has_pidfs()

    def take(self, pid: int, pidfd: int, uid: int, pid_ns: int, net_ns: int) -> Identity:
        inode = os.fstat(pidfd).st_ino if self.pidfs else 0
        return Identity(pid, start_time(pid), self.boot_id, pid_ns, net_ns, inode, uid)

    def open(self, pid: int, started: int, inode: int, boot: str) -> int | None:
        """A pidfd of that very process, or None when it is gone."""
        if boot != self.boot_id or started == 0:
            return None
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        same = not (inode and self.pidfs) or os.fstat(pidfd).st_ino == inode
        if same and start_time(pid) == started and not exited(pidfd):
            return pidfd
        os.close(pidfd)
        return None

    def open_live(self, live: Live) -> int | None:
        known = live.identity
        return self.open(known.pid, known.start_time, known.pidfd_inode, known.boot_id)

    def kill(self, live: Live) -> None:
        """SIGKILL to PID 1 (its pid namespace dies with it) and to the bwrap process outside it."""
        known = live.identity
        for pid, started, inode in (
            (known.pid, known.start_time, known.pidfd_inode),
            (live.outer_pid, live.outer_start, 0),
        ):
            pidfd = self.open(pid, started, inode, known.boot_id)
            if pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)


def exited(pidfd: int) -> bool:
    """Whether the process has ended (a zombie counts as ended)."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def read(box_fd: int) -> Live | None:
    """What live.json says, or None; a damaged one is nobody's identity."""
    data = paths.read_file(box_fd, "live.json")
    if data is None:
        return None
    try:
        raw = json.loads(data)
        return Live(Identity(**raw["identity"]), int(raw["outer_pid"]), int(raw["outer_start"]))
    except (ValueError, TypeError, KeyError):
        return None


def write(box_fd: int, live: Live) -> None:
    paths.write_file(box_fd, "live.json", json.dumps(asdict(live)).encode(), 0o600, durable=False)


def forget(box_fd: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink("live.json", dir_fd=box_fd)
