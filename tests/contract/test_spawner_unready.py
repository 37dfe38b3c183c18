"""A spawner that breaks down while it comes up, by what nobody foresaw, takes its cgroups away."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.support import spawner_rig
from tests.support.spawner_rig import PYTHON, Rig, cgroup_parents

pytestmark = pytest.mark.root
CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from ringfence.spawner import config, disk_kind, main

def broken(*_):
    raise OSError(28, "No space left on device")

if sys.argv[3] == "broken":
    disk_kind.choose = broken
main.open_host(config.load(sys.argv[2]))
"""


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make()
    yield made
    made.discard()


def opened(rig: Rig, how: str) -> str:
    """The last word of a process that only comes up."""
    site = rig.home / "runtime" / "test" / "site"
    command = [PYTHON, "-I", "-S", "-B", "-c", CODE, str(site), str(rig.config), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}, cwd="/")
    return done.stderr.strip().splitlines()[-1] if done.stderr else ""


def test_it_leaves_no_cgroup(rig: Rig) -> None:
    assert "No space left on device" in opened(rig, "broken")
    assert cgroup_parents() == []
    assert opened(rig, "whole") == ""
    assert cgroup_parents() != [], "control: it had made some by then"
