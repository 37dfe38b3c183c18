"""What this host cannot enforce, by id. Missing isolation is a refusal with the remedy, or named in `accept`.

Must never hide one: the ids go to the kernel with the greeting, to `status`, to each box's page and to the agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ringfence.spawner import syscalls, userns
from ringfence.spawner.errors import StartRefused
from ringfence.spawner.identity import has_pidfs
from ringfence.spawner.protocol import DiskBy

SCOPE_ABI = 6  # Landlock with signal and abstract socket scopes, Linux 6.12

_WRITABLE = "mount -o remount,rw /sys/fs/cgroup (docker: --privileged), and is [limits_all] what this host can give?"
_COUNTED = "they are counted from time to time, deleted files that are still open are not, and a box above its limit is stopped"
_ACCEPT_COUNTED = "--accept no-disk-quota, or accept in the settings"
# Those without which walls between boxes are missing: id -> (what, remedy).
_MUST_ACCEPT = {
    "no-cgroup": (
        "this host gives the server no cgroup: boxes have no memory and process limits of their own",
        "systemd-run --user --scope -p Delegate=yes ringfence serve   (or, without limits: --accept no-cgroup)",
    ),
    "no-cpu-limit": (
        "the server's cgroup has no cpu controller: nothing bounds the processor time of a box",
        "systemctl edit user@.service, with [Service] Delegate=cpu memory pids   (or, without: --accept no-cpu-limit)",
    ),
    "no-swap-limit": (
        "this host swaps and its kernel does not count swap: a box's memory limit holds for RAM alone",
        "swapoff -a, or boot with swapaccount=1   (or, with swap unbounded: --accept no-swap-limit)",
    ),
    "no-disk-quota": (
        f"nothing on this host bounds the bytes and inodes of a box's tree: {_COUNTED}",
        f"apt-get install -y e2fsprogs && modprobe loop, and run it as root   (or, counted only: {_ACCEPT_COUNTED})",
    ),
    "shared-uid": (
        "all boxes, and the egress workers that hold their users' secrets, would run under one host id: namespaces alone keep one user's from another's",
        userns.INSTALL,
    ),
}


def find(
    mode: str,
    cgroups: Literal["v2", "v1", "none"],
    *,
    rules: bool,
    disk: DiskBy = "accounting",
    lacks: Iterable[str] = (),
) -> tuple[str, ...]:
    """Sorted ids. `rules`: nf_tables works. `disk`: what bounds the tree of a new box. `lacks`: of Cgroups."""
    abi = syscalls.landlock_abi()
    present = {
        "no-cgroup": cgroups == "none",
        "shared-uid": mode == "shared",
        "no-landlock": abi < 1,
        "no-landlock-scope": 1 <= abi < SCOPE_ABI,
        "no-pidfs": not has_pidfs(),
        "no-nft": not rules,
        "no-disk-quota": disk == "accounting",
    }
    return tuple(sorted([*(name for name, weak in present.items() if weak), *lacks]))


def refuse_unaccepted(weak: tuple[str, ...], accept: frozenset[str], no_cgroup: str = "", disk: str = "auto") -> None:
    """Raises StartRefused for the first that must be accepted by name and is not. `no_cgroup`: why one that is there
    cannot be used. `disk`: as the settings have it."""
    for name in weak:
        if name in _MUST_ACCEPT and name not in accept:
            what, remedy = _MUST_ACCEPT[name]
            if name == "no-cgroup" and no_cgroup:
                what = (
                    f"the server's cgroup cannot be set up: {no_cgroup}; without it boxes have no limits of their own"
                )
                remedy = f"{_WRITABLE}   (or, without limits: --accept no-cgroup)"
            # Asked for, so it is not the host that lacks something.
            if name == "no-disk-quota" and disk == "accounting":
                what = f"disk is set to accounting: bytes and inodes of a box's tree have no bound, {_COUNTED}"
                remedy = f'set disk = "auto"   (or, counted only: {_ACCEPT_COUNTED})'
            if name == "shared-uid":
                remedy = f"{remedy}; {userns.ranges_remedy()}"
            raise StartRefused(f"{what} ({name})", remedy)
