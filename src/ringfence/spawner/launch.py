"""One start: fork, put the child into its namespaces, bind its sources, give up root, join the cgroups, exec bwrap.

The cgroups are joined last, when the uid is dropped already: nothing of the box has run before (decision 0013). The
box's uid is dropped to BEFORE bubblewrap runs, its environment is empty, its arguments are in a descriptor, and it
inherits exactly the descriptors named here. Must never run anything of the box in the spawner's own namespaces, nor
return in the child.
"""

from __future__ import annotations

import os
import resource
import socket
from dataclasses import dataclass
from typing import NoReturn

from ringfence.spawner import drop, profile, syscalls
from ringfence.spawner.config import Config
from ringfence.spawner.profile import SOURCE
from ringfence.spawner.protocol import Limits
from ringfence.spawner.registry import Entry
from ringfence.spawner.sources import FIRST_FD, Host, Sources

SOFT_FILES = 4096
OOM_SCORE = 100  # killed before the server and the host's services, after commands (the guest gives those 200)
TAIL = 4096  # bytes of what bubblewrap or the guest said last


@dataclass(frozen=True, slots=True)
class Launched:
    """The spawner's ends. `info` and `done` are closed by the caller, `output` by whoever drains it."""

    outer: int  # pid of bubblewrap's own process
    info: int  # JSON up to `}`
    done: int  # end of file once every mount is made
    output: int  # stdout and stderr of bubblewrap and PID 1


def launch(host: Host, entry: Entry, limits: Limits, sources: Sources) -> Launched:
    """Raises OSError when nothing was started. What fails in the child is said on `output`."""
    info_read, info_write = os.pipe()
    output_read, output_write = os.pipe()
    ours, block = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.send(b"1")  # bubblewrap reads this when it is ready to exec, then closes its end: that is the signal
    try:
        pid = os.fork()
        if pid == 0:
            _child(host, entry, limits, sources, (info_write, block.fileno(), output_write))
    except OSError:
        for fd in (info_read, output_read, ours.detach()):
            os.close(fd)
        raise
    finally:
        os.close(info_write)
        os.close(output_write)
        block.close()
    os.set_blocking(output_read, False)
    return Launched(pid, info_read, ours.detach(), output_read)


def _child(host: Host, entry: Entry, limits: Limits, sources: Sources, ends: tuple[int, int, int]) -> NoReturn:
    info, block, output = ends
    step = "output"
    try:
        os.dup2(output, 2)
        step = "namespaces"
        _enter(host, sources)
        step = "limits"
        _limit(limits, own_uid=host.config.mode != "shared" and host.cgroups.kind == "none")
        step = "session"
        os.setsid()
        _standard_streams(output)
        step = "descriptors"
        kept = [sources.listen, *sources.cmds, sources.arguments, sources.seccomp, info, block]
        drop.keep_only([*kept, *sources.main], FIRST_FD)
        step = "account"
        drop.reset_signals()
        drop.to_account(entry.uid, entry.uid, groups=host.config.mode != "shared")
        step = "cgroup"  # the longest wait of a start, so last: the rest is done while the warmer waits
        _join(range(FIRST_FD + len(kept), FIRST_FD + len(kept) + len(sources.main)))
        step = "bubblewrap"
        os.execve(host.config.bwrap, _command(host.config, len(sources.cmds)), {})
    except BaseException as error:
        os.write(2, f"start, step {step}: {error!r}\n".encode())
    finally:
        os._exit(126)


def _join(procs: range) -> None:
    """The kernel asks for the rights of whoever opened the descriptors, so this may come after they are given up."""
    for fd in procs:
        os.write(fd, b"0")
        os.close(fd)


def _command(config: Config, cmds: int) -> list[str]:
    guest = profile.guest_command(
        config.python, FIRST_FD, range(FIRST_FD + 1, FIRST_FD + 1 + cmds), config.guest_digest
    )
    return ["bwrap", "--args", str(FIRST_FD + 1 + cmds), "--", *guest]


def _enter(host: Host, sources: Sources) -> None:
    """The box's network and a copy of the launcher's root with its sources bound. The trees are cloned first: that is
    possible only in the namespace that they are mounted in."""
    trees = {name: syscalls.clone_tree(fd) for name, fd in sources.mounts.items()}
    syscalls.setns(sources.network, syscalls.CLONE_NEWNET)
    syscalls.setns(host.root.namespace, syscalls.CLONE_NEWNS)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    for name, tree in trees.items():
        syscalls.set_attributes(tree, syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV)
        syscalls.attach(tree, f"{SOURCE}/{name}".encode())
    os.chdir("/")
    syscalls.join_session_keyring()


def _limit(limits: Limits, *, own_uid: bool) -> None:
    """`own_uid`: no cgroup counts the box's processes and no other box shares its id, so RLIMIT_NPROC may."""
    # Less than any core file. Not 0: a handler behind a pipe (core_pattern), which is the host's root, is run then.
    drop.limit(resource.RLIMIT_CORE, 1, 1)
    drop.limit(resource.RLIMIT_NOFILE, min(SOFT_FILES, limits.nofile), limits.nofile)
    drop.limit(resource.RLIMIT_MEMLOCK, 64 << 10, 64 << 10)
    drop.limit(resource.RLIMIT_MSGQUEUE, 800 << 10, 800 << 10)
    drop.limit(resource.RLIMIT_SIGPENDING, 1024, 1024)
    drop.limit(resource.RLIMIT_FSIZE, limits.fsize, limits.fsize)
    drop.limit(resource.RLIMIT_RTPRIO, 0, 0)
    drop.limit(resource.RLIMIT_NICE, 0, 0)
    if own_uid:
        drop.limit(resource.RLIMIT_NPROC, limits.pids, limits.pids)
    drop.oom_score(OOM_SCORE)
    os.umask(0o077)


def _standard_streams(output: int) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
