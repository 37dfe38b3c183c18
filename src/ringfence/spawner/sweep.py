"""What is left of a box, and getting rid of it: its processes by uid, its files as its own uid, its keys seen.

Must never be asked about a uid that is shared with anything but the box (mode shared).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from ringfence.spawner import deletion, drop
from ringfence.spawner.children import Children
from ringfence.spawner.errors import Failed
from ringfence.spawner.tasks import Steps, pause

DELETE_SECONDS = 600.0  # 10 million files at 20 000 a second


def processes_of(uids: range) -> list[int]:
    """Pids whose real, effective, saved or file system uid is one of `uids`; what is dead and not yet reaped
    counts as gone."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and any(uid in uids for uid in uids_of(int(name))):
            found.append(int(name))
    return found


def uids_of(pid: int) -> list[int]:
    """Real, effective, saved and file system uid; none for what is dead or not there."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if line.startswith((b"State:", b"Uid:")))
    except OSError:
        return []
    if lines.get(b"State", b"").split()[:1] in ([b"Z"], [b"X"]):
        return []
    return [int(word) for word in lines.get(b"Uid", b"").split()]


def has_keys(uids: range) -> bool:
    """Whether the kernel still counts a key of such a uid (/proc/key-users, proc(5)); dead ones go within seconds."""
    with contextlib.suppress(OSError), open("/proc/key-users", encoding="ascii") as file:
        return any(int(line.split(":")[0]) in uids for line in file if line.strip())
    return False


def kill_processes(uids: range, seconds: float) -> Steps[bool]:
    """SIGKILL until none is left; False when some still are after `seconds`."""
    until = time.monotonic() + seconds
    while pids := processes_of(uids):
        if time.monotonic() > until:
            return False
        for pid in pids:
            kill_one(pid, uids)
        yield from pause(0.005)
    return True


def kill_one(pid: int, uids: range) -> None:
    """SIGKILL, if it runs under one of those ids."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if any(uid in uids for uid in uids_of(pid)):  # after the pidfd: still the same process
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def is_empty(directory: int) -> bool:
    """Of an O_PATH or readable directory descriptor."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    try:
        with os.scandir(fd) as entries:
            return next(entries, None) is None
    finally:
        os.close(fd)


def empty(directory: int, uid: int, children: Children, *, groups: bool) -> Steps[None]:
    """Deletes everything below `directory` in a child that runs as `uid`. Raises Failed with what stopped it."""
    if is_empty(directory):
        return
    reader, writer = os.pipe()
    pid = as_account(uid, lambda: deletion.empty(directory), keep=(directory, writer), report=writer, groups=groups)
    os.close(writer)
    children.add(pid, watched=True)
    try:
        status = yield from children.wait(pid, DELETE_SECONDS)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            raise Failed("the box's files are still being deleted", "ask again")
        if status != 0:
            raise Failed(f"the box's files cannot be deleted: {os.read(reader, 2000).decode(errors='replace')}")
    finally:
        os.close(reader)


def as_account(
    uid: int, work: Callable[[], None], *, keep: tuple[int, ...], report: int, groups: bool, root: int | None = None
) -> int:
    """Forks a child that gives up root for `uid`, keeps the descriptors `keep` alone, and runs `work`. `root`: it is
    locked into that directory first. Returns its pid."""
    pid = os.fork()
    if pid == 0:
        _account_child(uid, work, keep, report, groups, root)
    return pid


def _account_child(
    uid: int, work: Callable[[], None], keep: tuple[int, ...], report: int, groups: bool, root: int | None
) -> NoReturn:
    try:
        drop.reset_signals()
        drop.oom_score(0)
        os.setsid()
        _close_others(keep if root is None else (*keep, root))
        if root is not None:
            os.fchdir(root)
            os.chroot(".")
            os.chdir("/")
        drop.to_account(uid, uid, groups=groups)
        work()
        os._exit(0)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(report, repr(error).encode()[:2000])
    finally:
        os._exit(1)


def _close_others(keep: tuple[int, ...]) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    edges = [2, *sorted(set(keep)), os.sysconf("SC_OPEN_MAX")]
    for low, high in itertools.pairwise(edges):
        os.closerange(low + 1, high)
