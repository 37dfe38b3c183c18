"""What real boxes use over restarts and kills of a real server, and a real, hostile box as an archive."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Installation, installation

pytestmark = pytest.mark.root
BURN = "import time\nwhile time.process_time() < 0.5: pass"
HOSTILE = r"""
mkdir -p d/e; echo inside > d/e/f; ln -s /etc/shadow out; ln -s ../../.. up; mkfifo pipe; ln d/e/f hard
truncate -s 300M sparse; printf 'x' > "$(printf 'a\nb\377')"; mkdir closed; echo c > closed/c; chmod 000 closed
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('sock')"; echo w > /workspace/w
"""


@pytest.fixture(scope="module")
def made() -> Iterator[Installation]:
    with installation() as given:
        given.ok("user", "add", "alice")
        yield given


def burned(made: Installation) -> None:
    made.ok("exec", "alice", "--", "python3", "-c", BURN)


def used(made: Installation) -> dict[str, Any]:
    """What is written when a server ends, as the next one tells it."""
    made.stop()
    made.start()
    found: dict[str, Any] = made.ok("usage", "alice", "--json").json()["sum"]
    return found


def test_cpu_time_is_counted_once_over_a_restart_and_a_kill(made: Installation) -> None:
    burned(made)
    first = used(made)
    assert 0.5 <= first["cpu_seconds"] < 3
    assert 0 < first["active_seconds"] <= first["running_seconds"]
    assert (first["starts"], first["pauses"]) == (1, 0)
    again = used(made)
    assert again["cpu_seconds"] - first["cpu_seconds"] < 0.4, "nothing was done, and nothing is counted twice"
    burned(made)
    made.kill()
    made.start()
    burned(made)
    last = used(made)
    assert 1.0 <= last["cpu_seconds"] - again["cpu_seconds"] < 3
    assert last["starts"] in (1, 2), "2: the spawner was killed too, and the box with it"


def test_a_hostile_box_as_an_archive(made: Installation, tmp_path: Path) -> None:
    made.ok("exec", "alice", "--", "sh", "-c", HOSTILE)
    target = tmp_path / "alice.tar.gz"
    told = json.loads(made.ok("user", "export", "alice", "--output", str(target), "--json").text)
    assert told["size_bytes"] == target.stat().st_size < 8 << 20, "300 MB of zeros"
    with tarfile.open(target, errors="surrogateescape") as tar:
        found = {each.name.removeprefix("export/files"): each for each in tar}
        inside = tar.extractfile("export/files/home/user/d/e/f")
        assert inside is not None and inside.read() == b"inside\n"
        manifest = json.load(tar.extractfile("export/manifest.json"))  # type: ignore[arg-type]
        assert not [
            each.name for each in tar if each.isdev() or each.name.startswith("/") or ".." in each.name.split("/")
        ]
    assert found["/home/user/out"].issym() and found["/home/user/out"].linkname == "/etc/shadow"
    assert found["/home/user/sparse"].size == 300 << 20
    assert "/home/user/a\nb\udcff" in found
    assert "/workspace/w" in found and "/home/user/hard" in found
    left = {each["path"] for each in manifest["left_out"]}
    assert {"/home/user/pipe", "/home/user/sock"} <= left
    assert manifest["whole"] and manifest["counts"]["files"] >= 7
    listed = subprocess.run(["tar", "-tzf", str(target)], capture_output=True, check=True).stdout
    assert len(listed.splitlines()) == len(found), "and to others it is a tar too"
