"""Who of a server's own account reads its memory, though it is not dumpable (row K03, and "Other modes" of docs/threats.md).

The server of an ordinary user is started in a user namespace of that user's, and whoever owns a namespace may do everything to
what was started in it (user_namespaces(7)). A box is in a namespace within, of which the same is not true.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ringfence.prove import jail, programs
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.stage import said

pytestmark = pytest.mark.root
ACCOUNT = 1_600_000_000 + os.getpid() % 65536  # an id that nobody has
# What the server does (app._closed_to_debuggers). Each line that it is given is a program for a namespace within its own.
SERVER = """
import ctypes, subprocess, sys
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE
print("ready", flush=True)
for line in sys.stdin:
    done = subprocess.run(["unshare", "-r", *sys.argv[1:]], input=line, capture_output=True, text=True)
    print(" ".join(done.stdout.splitlines()[-1:]) or done.stderr[-300:], flush=True)
"""


@contextmanager
def server(*before: str) -> Iterator[subprocess.Popen[str]]:
    inner = (jail.PYTHON, "-I", "-c", programs.COMMAND)
    with subprocess.Popen(
        [*before, jail.PYTHON, "-I", "-c", SERVER, *inner],
        user=ACCOUNT, group=ACCOUNT, extra_groups=[], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def attack(name: str, pid: int) -> str:
    return programs.payload("siblings", name, (str(pid),))


def outcomes(pid: int) -> dict[str, str]:
    """By another program of the account, outside of every box."""
    found: dict[str, str] = {}
    for name in ("memory", "steal"):
        found |= said(jail.bare(ACCOUNT, attack(name, pid), 30.0)).outcomes
    return found


def reached(found: dict[str, str]) -> set[str]:
    return {name for name, outcome in found.items() if outcome.startswith(DONE)}


ALL = {"mem", "mem_write", "maps", "environ", "fds", "root", "cwd", "pidfd_getfd", "ptrace", "vm"}


def test_an_account_of_its_own_is_kept_out() -> None:
    with server() as process:
        found = outcomes(process.pid)
    assert found.keys() == ALL and not reached(found)


def test_the_user_whose_namespace_it_is_gets_in() -> None:
    """What is not promised, as the paper says; and the control for the other two."""
    with server("unshare", "-r") as process:
        assert reached(outcomes(process.pid)) == ALL


def test_a_namespace_within_does_not_lead_there() -> None:
    """A box's place, with the same host id and the server's pid in sight: what a mistake in pid namespaces would leave. The
    numbers of its descriptors, no more: their folder belongs to the namespace's root, who is the account."""
    with server("unshare", "-r") as process:
        assert process.stdin is not None and process.stdout is not None
        found: dict[str, str] = {}
        for name in ("memory", "steal"):
            process.stdin.write(attack(name, process.pid) + "\n")
            process.stdin.flush()
            found |= said(process.stdout.readline()).outcomes
    assert found.keys() == ALL and reached(found) == {"fds"}
