"""Every limit of the configuration bites where it says, in a box like any other; what stays below passes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Installation, installation

MIB = 1 << 20
LIMITS: dict[str, Any] = {
    "memory": '"256MiB"',
    "pids": 80,
    "cpu_milli": 200,
    "nofile": 300,
    "fsize": '"2MiB"',
    "shm": '"8MiB"',
    "run": '"2MiB"',
    "disk": '"64MiB"',
    "inodes": 2048,
}
# Of a program: how much of it (an argument), what ends it, and the line that says it went well.
PROGRAMS = {
    "memory": "x = bytearray(int(n) << 20)\nprint('fine')",
    "pids": "import os, signal\nmade = []\ntry:\n  for _ in range(int(n)):\n    made.append(os.fork())\n"
    "    if made[-1] == 0: signal.pause()\n  print('fine')\nfinally:\n  for pid in made: os.kill(pid, 9)",
    "nofile": "import os\nfds = [os.open('/dev/null', os.O_RDONLY) for _ in range(int(n))]\nprint('fine')",
    "fsize": "open('big', 'wb').write(bytes(int(n) << 10))\nprint('fine')",
    "shm": "for i in range(int(n)): open(f'/dev/shm/{i}', 'wb').write(bytes(1 << 20))\nprint('fine')",
    "run": "for i in range(int(n)): open(f'/run/{i}', 'wb', 0).write(b'x')\nprint('fine')",
    "disk": "for i in range(int(n)): open(f'/workspace/{i}', 'wb').write(bytes(1 << 20))\nprint('fine')",
    "inodes": "import os\nfor i in range(int(n)): os.mknod(f'/workspace/i{i}')\nprint('fine')",
}
CASES = [
    ("memory", "100", "400", "oom"),
    ("pids", "20", "100", "Resource temporarily unavailable"),
    ("nofile", "250", "320", "Too many open files"),
    ("fsize", "2000", "2100", "File too large"),
    ("shm", "6", "12", "No space left"),
    ("run", "400", "600", "No space left"),
    ("disk", "30", "80", "disk_full"),
    ("inodes", "1000", "2100", "disk_full"),
]
BY_CGROUP, BY_DISK = ("memory", "pids", "cpu_milli"), ("disk", "inodes")
CLEAN = "rm -rf /workspace/* /dev/shm/* /run/[0-9]* big"


@pytest.fixture(scope="module")
def limited() -> Iterator[Installation]:
    settings = "[limits]\n" + "".join(f"{name} = {value}\n" for name, value in LIMITS.items())
    with installation(settings=settings) as made:
        made.ok("user", "add", "ann")
        yield made


def in_units(value: Any) -> int:
    """Of a size in MiB, or a number."""
    return int(value.strip('"').removesuffix("MiB")) * MIB if isinstance(value, str) else int(value)


def enforced(made: Installation, limit: str) -> bool:
    """What this account's host cannot hold it says itself, and such a limit is not claimed."""
    weak = made.ok("status", "--json").json()["weak"]
    lacks = (limit in BY_CGROUP and "no-cgroup" in weak) or (limit in BY_DISK and "no-disk-quota" in weak)
    assert not (lacks and os.geteuid() == 0)
    return not lacks


@pytest.mark.parametrize(("limit", "below", "above", "said"), CASES, ids=[case[0] for case in CASES])
def test_a_limit_bites_and_what_is_below_passes(
    limited: Installation, limit: str, below: str, above: str, said: str
) -> None:
    def tried(amount: str) -> dict[str, Any]:
        words = ["python3", "-c", f"n = {amount}\n{PROGRAMS[limit]}"]
        answer = limited.run("exec", "ann", "--json", "--", *words).json()
        limited.shell("ann", CLEAN)
        assert isinstance(answer, dict)
        return answer

    assert limited.box("ann")["limits"][limit] == in_units(LIMITS[limit])
    passed = tried(below)
    assert (passed["reason"], passed["stdout"]) == ("exit", "fine\n"), passed
    if enforced(limited, limit):
        failed = tried(above)
        assert "fine" not in failed["stdout"]
        assert said == failed["reason"] or said in failed["stderr"], failed
    assert limited.shell("ann", "echo alive").out == b"alive\n"


@pytest.mark.root
def test_processor_time_is_bounded(limited: Installation) -> None:
    """A spinner in a box of 0.2 core is held back (cpu.stat of its cgroup); with 2 cores, or all that boxes may use
    together, it is not."""
    shown = limited.box("ann")
    name = f"ringfence-{limited.ok('status', '--json').json()['installation']}/{shown['box']}"
    places = [Path(f"/sys/fs/cgroup/{part}{name}/cpu.stat") for part in ("cpu/", "cpu,cpuacct/", "")]
    stat = next(place for place in places if place.exists())

    def held_back() -> int:
        words = stat.read_text().split()
        before = int(words[words.index("nr_throttled") + 1])
        limited.shell("ann", "timeout 0.8 sh -c 'while :; do :; done'")
        words = stat.read_text().split()
        return int(words[words.index("nr_throttled") + 1]) - before

    assert held_back() >= 2
    limited.ok("box", "limits", "ann", "--cpu", "2")
    assert held_back() == 0
    limited.ok("box", "limits", "ann", "--cpu", "0.2")


def test_locks_and_shared_memory(server: Installation, person: str) -> None:
    """C55: 200 MiB in /dev/shm within the default limits; the control is what no box has."""
    script = (
        "import multiprocessing, sys\nlock = multiprocessing.Lock()\n"
        "with lock, open('/dev/shm/x', 'wb') as file:\n"
        "  for _ in range(int(sys.argv[1])): file.write(bytes(1 << 20))\nprint('fine')"
    )
    done = server.ok("exec", person, "--json", "--", "python3", "-c", script, "200").json()
    assert (done["reason"], done["stdout"]) == ("exit", "fine\n")
    assert server.shell(person, "stat -c %s /dev/shm/x; rm /dev/shm/x").text == f"{200 * MIB}\n"
    refused = server.ok("exec", person, "--json", "--", "python3", "-c", script, "300").json()
    assert refused["exit_code"] == 1 and "No space left" in refused["stderr"]
    assert server.shell(person, "rm /dev/shm/x; echo alive").out == b"alive\n"
    assert server.box(person)["generation"] == 1
