"""`ringfence prove` on this host: whole, with walls taken out of its copy of the package, as an ordinary user, killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.bench.throwaway import COMMAND, state_base
from ringfence.prove import building, copied, remains
from ringfence.prove.copied import Patch
from ringfence.prove.registry import chosen, rows
from ringfence.prove.suite import prove

LEAST_HELD = 95
ORDINARY = 54321  # an account without a name, groups and subordinate ids


def without(text: str) -> Patch:
    return lambda source: source.replace(text, "")


WALLS: dict[str, tuple[dict[str, Patch], str]] = {
    "filter": (
        {"spawner/profile.py": without('Flag(("--seccomp", str(fds.seccomp)), "the strict filter"),')},
        "B11,C01,C06,C09,D05,H10",
    ),
    "read-only": ({"spawner/profile.py": without('ReadOnly("/dev"),\n        ReadOnly("/"),')}, "B09"),
    "ipc": ({"spawner/profile.py": without('Flag(("--unshare-ipc",), "own System V and POSIX queues"),')}, "D03"),
    "network": (
        {
            "spawner/launch.py": without("    syscalls.setns(sources.network, syscalls.CLONE_NEWNET)\n"),
            # A second wall: the spawner opens no listener in the host's network, and a box without its own does not start.
            "host/engine/outward.py": lambda text: text.replace("self._egress = parts.egress", "self._egress = None"),
        },
        "D07,D12,H08",
    ),
    "undumpable": ({"guest/init.py": without("    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)\n")}, "B05"),
    "host name": (
        {
            "spawner/profile.py": lambda text: text.replace('Flag(("--unshare-uts",), "own host name"),', "").replace(
                'Flag(("--hostname", etc_files.HOSTNAME), "tells nothing"),', ""
            )
        },
        "C23",
    ),
}


@pytest.mark.root
def test_the_whole_suite_holds_and_leaves_nothing() -> None:
    done = subprocess.run([COMMAND, "prove", "--json"], capture_output=True, text=True, check=False, timeout=600)
    report = json.loads(done.stdout)
    unheld = {row["id"]: [row["observed"], row["why"]] for row in report["rows"] if row["status"] == "open"}
    assert unheld == {}
    assert report["left"] == []
    assert done.returncode == 0
    assert report["held"] >= LEAST_HELD
    assert all(row["why"] for row in report["rows"] if row["status"] == "not_applicable")


@pytest.mark.root
@pytest.mark.parametrize("wall", WALLS)
def test_a_wall_that_is_taken_away_opens_its_rows(wall: str) -> None:
    patches, ids = WALLS[wall]
    report = prove(chosen(rows(), ids), patches={**copied.HOSTILE, **patches})
    assert {result.row.id: result.status for result in report.results} == dict.fromkeys(ids.split(","), "open")
    assert not any("control failed" in result.why for result in report.results)
    assert report.left == []


@pytest.fixture
def newcomer() -> Iterator[dict[str, str]]:
    """Environment of an account that has nothing but a HOME."""
    with tempfile.TemporaryDirectory(prefix="ringfence-prove-home-") as name:
        os.chown(name, ORDINARY, ORDINARY)
        yield {"PATH": os.environ["PATH"], "HOME": name, "XDG_DATA_HOME": f"{name}/data", "LANG": "C.UTF-8"}


@pytest.mark.root
def test_an_ordinary_user_can_run_it(newcomer: dict[str, str]) -> None:
    done = subprocess.run(
        [COMMAND, "prove", "--only", "A,B,C,D,H07,H08,H09,H10,H12", "--json"], capture_output=True, text=True, check=False, timeout=600,
        env=newcomer, cwd="/", user=ORDINARY, group=ORDINARY, extra_groups=[],
    )  # fmt: skip
    report: dict[str, Any] = json.loads(done.stdout)
    assert {row["id"]: row["observed"] for row in report["rows"] if row["status"] == "open"} == {}
    assert (done.returncode, report["left"]) == (0, [])
    assert report["held"] >= 45
    jail = {row["id"]: row["status"] for row in report["rows"] if row["id"][0] == "H"}
    assert jail == dict.fromkeys(("H07", "H08", "H09", "H10", "H12"), "held")
    assert list(Path(newcomer["XDG_DATA_HOME"]).iterdir()) == []


def begun() -> tuple[subprocess.Popen[str], Path]:
    """A prove that has come to its first row, and its folder, by the command line of its server."""
    command = [COMMAND, "prove", "--only", "A,B"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("... ")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in children]
    found = [re.search(rf"{state_base()}/{building.PREFIX}\w+", line) for line in lines]
    (folder,) = {Path(match[0]) for match in found if match is not None}
    return process, folder


def finish(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=120)
    return process.returncode


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_interrupted_takes_everything_away(number: signal.Signals) -> None:
    process, folder = begun()
    process.send_signal(number)
    assert finish(process) == 128 + number
    assert not folder.exists()


@pytest.mark.root
def test_what_a_killed_one_left_is_taken_away_by_the_next() -> None:
    process, folder = begun()
    installation = json.loads((folder / "state" / "installation.json").read_text())["id"]
    process.kill()
    finish(process)
    assert folder.exists()
    assert remains.cgroups(installation)  # control
    deadline = time.monotonic() + 60
    while folder.exists() and time.monotonic() < deadline:
        building.sweep()
        time.sleep(0.2)
    assert not folder.exists()
    assert remains.cgroups(installation) == []
