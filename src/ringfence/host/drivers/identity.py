"""Who is at the far end of a box's socket: facts read from the kernel of the host, and a plain decision over them.

The peer of a connected unix socket is, for its credentials, the process that called `listen` (unix(7), SO_PEERCRED):
PID 1 of the box. A pid may have been given to a stranger since, so it is proven by what is never given twice: the inode
of its pidfd (pidfs, Linux 6.9), else its start time within this boot. Never decides by anything that the peer says.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ringfence.spawner.protocol import Identity

_SO_PEERPIDFD = 77  # include/uapi/asm-generic/socket.h, Linux 6.5; not in Python's socket module
_UCRED = struct.Struct("3i")  # pid, uid, gid
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Peer:
    """What the host's kernel says of the process at the far end, now."""

    pid: int
    uid: int  # as our user namespace counts
    pidfd_inode: int  # 0 where it cannot be had
    start_time: int | None  # clock ticks; None where /proc does not show it, or it has ended
    boot_id: str


def from_record(record: Mapping[str, Any]) -> Identity:
    """The identity that the store kept as an opaque record. ValueError: it is none."""
    names = {field.name for field in fields(Identity)}
    if set(record) != names:
        raise ValueError(f"an identity has exactly {sorted(names)}, not {sorted(record)}")
    for name in names:
        if type(record[name]) is not (str if name == "boot_id" else int):
            raise ValueError(f"{name} of an identity cannot be {record[name]!r}")
    return Identity(**record)


def boot_id() -> str:
    """Of this boot of the host; a fresh random UUID at each."""
    return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat (proc(5)) of a living process; None when it has ended, is a zombie or is hidden."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    after = text.rpartition(")")[2].split()  # the command name before it may hold anything, ")" too
    return None if len(after) < 20 or after[0] in "ZXx" else int(after[19])


def peer(sock: socket.socket) -> Peer:
    """Facts of the far end of a connected unix socket."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid, _pidfd_inode(sock), start_time(pid), boot_id())


def _pidfd_inode(sock: socket.socket) -> int:
    """0: a kernel without SO_PEERPIDFD, or a peer that has ended: newer kernels name it all the same, and its pidfd is
    readable then (pidfd_open(2))."""
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return 0
    try:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        return 0 if ended.poll(0) else os.fstat(pidfd).st_ino
    finally:
        os.close(pidfd)


def mismatch(expected: Identity, found: Peer) -> str | None:
    """Why the peer is not the expected process; None when it is proven to be. Pure."""
    if found.boot_id != expected.boot_id:
        return "the host was started anew since"
    if found.pid != expected.pid:
        return f"another process listens (pid {found.pid}, not {expected.pid})"
    if found.uid != expected.uid:
        return f"the process belongs to another uid ({found.uid}, not {expected.uid})"
    by_inode = bool(expected.pidfd_inode and found.pidfd_inode)
    if by_inode and found.pidfd_inode != expected.pidfd_inode:
        return f"pid {found.pid} was given to another process since (its pidfd is another one)"
    if found.start_time is not None and found.start_time != expected.start_time:
        return f"pid {found.pid} was given to another process since (it started at another time)"
    if found.start_time is None and not by_inode:
        return f"pid {found.pid} has ended, or this host hides what would prove it"
    return None


def gone(expected: Identity) -> bool:
    """True when the process has certainly ended; False when it lives or cannot be seen (hidepid)."""
    if boot_id() != expected.boot_id:
        return True
    seen = start_time(expected.pid)
    if seen is not None:
        return seen != expected.start_time
    return start_time(1) is not None  # processes of others are visible here, and this one is not there
