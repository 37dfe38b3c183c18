"""Tries project quotas on this host before any box relies on them: a child without rights must be stopped by bytes and
by inodes. What is not seen to hold here is not used, whatever the mount options say. Must never touch a box's directory.
"""

from __future__ import annotations

import contextlib
import os

from ringfence.spawner import drop, project_quota
from ringfence.spawner.openat import open_beneath
from ringfence.spawner.paths import StateRoot

_PLACE = "quota-proof"
_BYTES, _INODES = 1 << 20, 16
_STOPPED, _PASSED = 0, 1


def holds(state: StateRoot, account: int) -> bool:
    """`account`: the kernel's uid, which is no box's; its number serves as the project too."""
    if os.fstat(state.spawner).st_dev != os.fstat(state.boxes).st_dev or not project_quota.enforced(state.spawner):
        return False
    try:
        _remove(state.spawner)
        os.mkdir(_PLACE, 0o700, dir_fd=state.spawner)
        place = open_beneath(state.spawner, _PLACE.encode(), os.O_RDONLY | os.O_DIRECTORY)
        try:
            return _tried(place, account)
        finally:
            project_quota.limit(place, account, 0, 0)
            os.close(place)
    except OSError:
        return False
    finally:
        _remove(state.spawner)


def _tried(place: int, account: int) -> bool:
    project_quota.limit(place, account, _BYTES, _INODES)
    project_quota.mark(place, account)
    os.fchown(place, account, account)
    pid = os.fork()
    if pid == 0:
        code = _PASSED
        try:
            drop.to_account(account, account, groups=True)
            code = _STOPPED if _bytes_end(place) and _inodes_end(place) else _PASSED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == _STOPPED


def _bytes_end(place: int) -> bool:
    fd = os.open("bytes", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=place)
    try:
        with contextlib.suppress(OSError):
            for _ in range(4):
                os.write(fd, bytes(_BYTES // 2))
            os.fsync(fd)  # where blocks are given out late, the refusal comes late
        return os.fstat(fd).st_blocks * 512 <= _BYTES
    finally:
        os.close(fd)


def _inodes_end(place: int) -> bool:
    try:
        for number in range(2 * _INODES):
            os.close(os.open(str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=place))
    except OSError:
        return True
    return False


def _remove(spawner: int) -> None:
    try:
        place = open_beneath(spawner, _PLACE.encode(), os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        for name in os.listdir(place):
            os.unlink(name, dir_fd=place)
    finally:
        os.close(place)
    os.rmdir(_PLACE, dir_fd=spawner)
