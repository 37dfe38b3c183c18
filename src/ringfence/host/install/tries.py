"""Questions that only a real attempt answers, each in a forked child that does the one thing and ends.

Nothing here changes the process that asks, and nothing stays behind.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000  # linux/sched.h
MS_REC, MS_PRIVATE = 0x4000, 0x40000  # linux/mount.h
PR_SET_DUMPABLE = 4
PIDFS_MAGIC = 0x50494446  # "PIDF", linux/magic.h
NETLINK_NETFILTER = 12
NFT_MSG_NEWGEN, NFT_MSG_GETGEN = 0x0A0F, 0x0A10  # subsystem 10 (nf_tables), linux/netfilter/nf_tables.h
SYS_LANDLOCK_CREATE_RULESET = 444  # the same on every architecture since 5.13
LANDLOCK_CREATE_RULESET_VERSION = 1
_NOT_MINE = 255  # a child that failed otherwise than with an errno


def in_child(work: Callable[[], None], uid: int | None = None) -> int:
    """0 when `work` returns, else the errno that it ended with. Runs as `uid` where this process may become it."""
    pid = os.fork()
    if pid == 0:
        code = _NOT_MINE
        try:
            if uid is not None:
                _become(uid)
            work()
            code = 0
        except OSError as error:
            code = error.errno or _NOT_MINE
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else errno.EPERM  # killed by a filter


def _become(uid: int) -> None:
    """In a user namespace that has one id only there is no other id to become: the attempt then says as much as it can."""
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        _call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # a change of ids takes /proc/self/uid_map away from its owner
    except OSError:
        return


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_id(uid: int) -> None:
    """Takes one id for good, as a box does. OSError EINVAL: this user namespace does not have it."""
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def user_namespace() -> None:
    """What the walls need of an unprivileged account: a user namespace with power over its own mounts. On Ubuntu 24.04
    the first call alone works and the mount is what AppArmor denies."""
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def nf_tables() -> None:
    """Asks nf_tables of a network namespace of its own for its generation: answered only where it is there."""
    if os.geteuid() == 0:
        _call("unshare", CLONE_NEWNET)
    else:
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as channel:
        channel.bind((0, 0))
        channel.settimeout(2)
        # struct nlmsghdr {len 20, type, NLM_F_REQUEST, seq, pid}, struct nfgenmsg {family, version, res_id}
        channel.send(struct.pack("=IHHIIBBH", 20, NFT_MSG_GETGEN, 1, 1, 0, 0, 0, 0))
        answer = channel.recv(4096)
    kind = struct.unpack_from("=H", answer, 4)[0]
    if kind != NFT_MSG_NEWGEN:
        code = -struct.unpack_from("=i", answer, 16)[0] if len(answer) >= 20 else errno.EPROTO
        raise OSError(code or errno.EPROTO, "nf_tables did not answer")


def landlock_abi() -> int:
    """0: none, or switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, int(version))


def pidfs() -> bool:
    """Whether a pidfd has an inode of its own, which names a process for the whole life of the host (Linux 6.9)."""
    try:
        fd = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        filesystem = (ctypes.c_long * 32)()  # struct statfs, 120 bytes; f_type comes first
        libc = ctypes.CDLL(None, use_errno=True)
        return libc.fstatfs(fd, filesystem) == 0 and filesystem[0] == PIDFS_MAGIC
    finally:
        os.close(fd)
