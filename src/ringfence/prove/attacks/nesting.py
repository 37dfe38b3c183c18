"""Group H: a jail of one's own, by the programs that make them. Nothing is done in one that comes up."""

from __future__ import annotations

import subprocess
from functools import partial

from ringfence.prove.attacks.trying import Outcomes, Place, attempt

VIEW = "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64"
COMMANDS = {
    "unshare --user": "unshare --user /usr/bin/true",
    "unshare --mount": "unshare --user --map-root-user --mount /usr/bin/true",
    "bwrap": f"bwrap --unshare-user {VIEW} /usr/bin/true",
    "bwrap with all": f"bwrap --unshare-all {VIEW} --proc /proc --dev /dev /usr/bin/true",
}


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False, cwd="/", timeout=10)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip().rpartition("\n")[2][:100] or f"exit {done.returncode}")


def jails(_place: Place) -> Outcomes:
    return {name: attempt(partial(_run, command)).removeprefix("ValueError: ") for name, command in COMMANDS.items()}


ATTACKS = {"jails": jails}
