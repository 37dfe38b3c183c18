"""E74: what a pause does to time-outs, with real boxes that really stand still.

Each pause alone is longer than the time-out. A command ends well when it is given a sign, which comes after the pause: one that
was ended too early is found out by that. What becomes of it without the host's word: tests/contract/test_guest_pauses.py."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from ringfence.client.sync import SyncClient
from tests.support.installation import Installation, eventually, installation

TIMEOUT, PAUSE = 6.0, 6.5  # of the first is awake: two calls of a client that is there already


@pytest.fixture(scope="module")
def server() -> Iterator[Installation]:
    with installation(settings="[rest]\npause_after = 0\nstop_after = 0\n") as made:
        made.ok("user", "add", "ann")
        made.ok("exec", "ann", "--", "true")
        if not made.freezes("ann"):
            pytest.skip("this host cannot freeze: pause means stop")
        yield made


@pytest.fixture
def client(server: Installation) -> Iterator[SyncClient]:
    with SyncClient(socket=server.socket) as made:
        yield made


def _begun(server: Installation, sign: str, *options: str) -> subprocess.Popen[bytes]:
    """It runs, and has said so; ends when the file is there."""
    script = f"echo up; until [ -e {sign} ]; do sleep 0.05; done; echo done >> {sign}; echo done"
    process = server.popen("exec", "ann", "--timeout", str(TIMEOUT), *options, "--", "sh", "-c", script)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    return process


def test_a_command_has_its_time_awake(server: Installation, client: SyncClient) -> None:
    process = _begun(server, "one")
    client.pause_box("ann")
    time.sleep(PAUSE)
    client.exec("ann", ["touch", "one"])  # resumes it
    said, errors = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, b"done\n"), errors


def test_and_no_more_than_that(server: Installation, client: SyncClient) -> None:
    began = time.monotonic()
    words = ("exec", "ann", "--json", "--timeout", "2", "--", "sh", "-c", "touch up; while :; do sleep 0.1; done")
    process = server.popen(*words)
    eventually(lambda: client.exec("ann", ["ls"])["stdout"].find("up") >= 0, what="it runs")
    client.pause_box("ann")
    time.sleep(PAUSE)
    client.resume_box("ann")
    said, _ = process.communicate(timeout=120)
    outcome = json.loads(said)
    assert outcome["reason"] == "timeout"
    assert 2000 <= outcome["duration_ms"] <= (time.monotonic() - began - PAUSE) * 1000


@pytest.mark.root
def test_so_it_has_under_the_next_server(server: Installation, client: SyncClient) -> None:
    """F12: paused by a server that is killed, resumed by the next one, to which it is nobody's command."""
    process = _begun(server, "two")
    client.pause_box("ann")
    server.kill()
    process.communicate(timeout=120)
    time.sleep(PAUSE)
    server.start()
    with SyncClient(socket=server.socket) as again:
        assert again.box("ann")["observed"] == "paused"
        again.exec("ann", ["touch", "two"])
        eventually(
            lambda: again.exec("ann", ["cat", "two"])["stdout"] == "done\n", what="it came to its end", seconds=30
        )
