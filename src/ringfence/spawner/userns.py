"""Ordinary mode: the spawner becomes root of a user namespace of its own, over the user's subordinate ids (mode subuid)
or over the user alone (mode shared: his one id; every capability comes from having made the namespace). Must be called first thing, while the process has one thread and no child.

In mode subuid id 0 is the user and 1.. are the subordinate ids, mapped by newuidmap(1) and newgidmap(1), which a helper
child runs from outside: inside, the caller's own id is not mapped yet and the setuid programs would have no power.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import subprocess
import sys

from ringfence.spawner import identity, paths, syscalls
from ringfence.spawner.config import SHARED_ID, Config
from ringfence.spawner.errors import SpawnerError, StartRefused
from ringfence.spawner.protocol import BOX_ID

INSTALL = "apt-get install uidmap"
NS_GET_PARENT = 0xB702  # ioctl_ns(2)
MAPPERS = ("newuidmap", "newgidmap")


def ranges_remedy() -> str:
    """The command that gives the calling user subordinate ids."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"USER (uid {os.getuid()} needs a line in /etc/passwd first)"
    return (
        f"usermod --add-subuids 3000000-3065535 --add-subgids 3000000-3065535 {name}"
        "   (or, with one host id for all boxes: --accept shared-uid)"
    )


def enter(config: Config) -> None:
    """Unshares user and mount namespace and becomes id 0 of it. Mode root: nothing. Raises StartRefused."""
    if config.mode == "root":
        return
    uid, gid = os.getuid(), os.getgid()
    earlier = _of_living_box(config)
    if earlier is not None:
        syscalls.setns(earlier, syscalls.CLONE_NEWUSER)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        os.close(earlier)
    elif config.mode == "shared":
        _unshare()
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{SHARED_ID} {uid} 1")
        _write("/proc/self/gid_map", f"{SHARED_ID} {gid} 1")
    else:
        _enter_mapped(config, uid, gid)
    if config.mode == "subuid":
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    syscalls.mount(None, b"/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def _of_living_box(config: Config) -> int | None:
    """The user namespace that an earlier spawner made, while a box of its still lives: only in there does this one have
    power over those boxes' processes. The invariant is that all living boxes are below one namespace."""
    state = paths.open_state(config.home)
    known = identity.Identifier()
    try:
        for box in sorted(filter(BOX_ID.match, os.listdir(f"/proc/self/fd/{state.boxes}"))):
            live, pidfd = None, None
            with contextlib.suppress(SpawnerError), paths.box_directory(state, box) as fd:
                live = identity.read(fd)
                pidfd = known.open_live(live) if live is not None else None
            if live is not None and pidfd is not None:
                os.close(pidfd)
                return _below_own(live.identity.pid)
    finally:
        for fd in (state.home, state.boxes, state.spawner):
            os.close(fd)
    return None


def _below_own(pid: int) -> int | None:
    """Descriptor of the process's ancestor namespace whose parent is the caller's own (bubblewrap nests two more)."""
    own = os.stat("/proc/self/ns/user").st_ino
    with contextlib.suppress(OSError):
        here = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
        while True:
            above: int = fcntl.ioctl(here, NS_GET_PARENT)
            if os.fstat(above).st_ino == own:
                os.close(above)
                return here
            os.close(here)
            here = above
    return None


def _unshare() -> None:
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    except OSError as error:
        raise StartRefused(
            f"user namespaces are off on this host: {error.strerror}",
            "sysctl -w user.max_user_namespaces=65536 kernel.unprivileged_userns_clone=1 "
            "kernel.apparmor_restrict_unprivileged_userns=0   (those that exist)",
        ) from error


def _enter_mapped(config: Config, uid: int, gid: int) -> None:
    assert config.subuid and config.subgid  # config._problem
    ready_read, ready_write = os.pipe()
    pid = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(ready_write)
        code = 1
        try:
            os.read(ready_read, 1)
            code = _map(pid, (uid, gid), (config.subuid, config.subgid))
        finally:
            os._exit(code)
    os.close(ready_read)
    try:
        _unshare()
        os.write(ready_write, b"1")
    finally:
        os.close(ready_write)
        _, status = os.waitpid(helper, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 127:
        raise StartRefused("newuidmap and newgidmap are not installed", INSTALL)
    if code != 0:
        raise StartRefused("newuidmap refused the user's subordinate ids", ranges_remedy())


def _map(pid: int, own: tuple[int, int], ranges: tuple[tuple[int, int], tuple[int, int]]) -> int:
    """In the helper, outside. 0, 127: not installed, 1: refused (its words are on stderr)."""
    for program, mine, (start, count) in zip(MAPPERS, own, ranges, strict=True):
        path = next((p for p in (f"/usr/bin/{program}", f"/usr/local/bin/{program}") if os.path.exists(p)), None)
        if path is None:
            return 127
        argv = [path, str(pid), "0", str(mine), "1", "1", str(start), str(count)]
        done = subprocess.run(argv, env={}, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        if done.returncode:
            return 1
    return 0


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
