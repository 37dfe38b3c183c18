"""What this host cannot enforce, by id. Missing isolation is a refusal with the remedy, or named in `accept`.

Must never hide one: the ids go to the kernel with the greeting, to `status`, to each box's page and to the agent.
"""

from __future__ import annotations

from typing import Literal

from ringfence.spawner import syscalls, userns
from ringfence.spawner.errors import StartRefused
from ringfence.spawner.identity import has_pidfs

SCOPE_ABI = 6  # Landlock with signal and abstract socket scopes, Linux 6.12

# Those without which walls between boxes are missing: id -> (what, remedy).
_MUST_ACCEPT = {
    "no-cgroup": (
        "this host gives the server no cgroup: boxes have no memory and process limits of their own",
        "systemd-run --user --scope -p Delegate=yes ringfence serve   (or, without limits: --accept no-cgroup)",
    ),
    "shared-uid": (
        "all boxes would run under one host id: one user's box is kept from another's by namespaces alone",
        userns.INSTALL,
    ),
}


def find(mode: str, cgroups: Literal["v2", "v1", "none"], *, rules: bool) -> tuple[str, ...]:
    """Sorted ids. `rules`: nf_tables works."""
    abi = syscalls.landlock_abi()
    present = {
        "no-cgroup": cgroups == "none",
        "shared-uid": mode == "shared",
        "no-landlock": abi < 1,
        "no-landlock-scope": 1 <= abi < SCOPE_ABI,
        "no-pidfs": not has_pidfs(),
        "no-nft": not rules,
    }
    return tuple(sorted(name for name, weak in present.items() if weak))


def refuse_unaccepted(weak: tuple[str, ...], accept: frozenset[str]) -> None:
    """Raises StartRefused for the first that must be accepted by name and is not."""
    for name in weak:
        if name in _MUST_ACCEPT and name not in accept:
            what, remedy = _MUST_ACCEPT[name]
            if name == "shared-uid":
                remedy = f"{remedy}; {userns.ranges_remedy()}"
            raise StartRefused(f"{what} ({name})", remedy)
