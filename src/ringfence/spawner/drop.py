"""Giving up root for good, in a forked child. Must never be called in the spawner's own process, but for oom_score.

The order matters: the bounding set and the securebits need CAP_SETPCAP, so they go first; the ids next; what is left
of the capabilities last (a child that stays uid 0 of a one-id user namespace still has them then).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal

from ringfence.spawner import syscalls


def to_account(uid: int, gid: int, *, groups: bool, keep: tuple[int, ...] = ()) -> None:
    """No supplementary groups (where the id map allows it), real, effective and saved ids, no capability, and
    no_new_privs. `groups` is False in a user namespace whose setgroups is denied. `keep`: capabilities that are kept all the
    same, also by the next program (capabilities(7), ambient); the bounding set is empty then too."""
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    if keep:
        syscalls.make_inheritable(keep)
        for number in keep:
            syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_RAISE, number)
    _close_bounding_set()
    if groups:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    syscalls.drop_capabilities(keep)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)


def _close_bounding_set() -> None:
    for capability in range(syscalls.LAST_CAP + 1):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
        except OSError:  # EINVAL: past the last capability that this kernel knows
            break
    syscalls.prctl(syscalls.PR_SET_SECUREBITS, syscalls.SECUREBITS_LOCKED)


def reset_signals() -> None:
    """Default dispositions, nothing blocked: what a program started from a shell expects."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    for number in (32, 33):  # of the C library (signal(7)): only the bare system call reaches them
        syscalls.default_action(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def oom_score(value: int, pid: int | None = None) -> None:
    """Of this process, or of `pid`, and of its later children: -1000 (never) to 1000 (first). Lowering it needs
    CAP_SYS_RESOURCE, which root of a container may lack: it then stays. OSError: it would stay lower than `value`."""
    path = f"/proc/{pid or 'self'}/oom_score_adj"
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(str(value))
    except PermissionError:
        with open(path, encoding="ascii") as file:
            if int(file.read()) < value:
                raise


def limit(kind: int, soft: int, hard: int) -> None:
    """Sets a resource limit, at most what the caller has: the spawner may lack CAP_SYS_RESOURCE."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (soft, hard))
        return
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def keep_only(wanted: list[int], first: int) -> None:
    """Makes `wanted` the descriptors first, first + 1, ... and closes every other one from `first` on."""
    above = first + len(wanted)  # a dup2 below must not hit one that is still wanted
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in wanted]
    for number, fd in enumerate(high, first):
        os.dup2(fd, number, inheritable=True)
    os.closerange(above, os.sysconf("SC_OPEN_MAX"))
