"""Boxes at rest, the way a user meets them: pause and resume, idleness, quarantine, cycles with kills in between; real boxes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Installation, eventually, installation, of_uid

# Whatever is in the tree, with modes, times, links and content, as one digest.
DIGEST = (
    "cd / && find home/user workspace -printf '%p %y %m %s %T@ %l\\n' | LC_ALL=C sort | sha256sum; "
    "find home/user workspace -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
)
FILES = (
    "mkdir -p d/e && head -c 100000 /dev/urandom > d/e/random && ln -s /etc/passwd link && ln d/e/random d/hard "
    "&& touch -d 2001-01-01 old && chmod 0400 old && truncate -s 1M d/sparse && printf x > \"$(printf 'a\\nb')\""
)
CYCLES = 25
NEVER = "[rest]\npause_after = 0\nstop_after = 0\n"


def _box(ours: Installation, user: str = "ann") -> dict[str, Any]:
    answer = ours.ok("box", "show", user, "--json").json()
    assert isinstance(answer, dict)
    return answer


def _until(ours: Installation, state: str, user: str = "ann") -> None:
    eventually(lambda: _box(ours, user)["observed"] == state, what=f"{user}'s box is {state}")


@pytest.fixture(scope="module")
def awake() -> Iterator[Installation]:
    """Nothing rests by itself."""
    with installation(settings=NEVER) as made:
        for name in ("ann", "ben"):
            made.ok("user", "add", name)
        yield made


def test_a_paused_box_uses_no_processor_and_goes_on_where_it_was(awake: Installation) -> None:
    if not awake.freezes("ann"):
        assert awake.outcome("ann", "true")["exit_code"] == 0
        refused = awake.run("box", "pause", "ann", "--json")
        assert refused.code == 5
        return
    spin = "(while :; do n=$((n+1)); echo $n > /run/count; done) & echo $! > /run/spins; sleep 0.2"
    assert awake.outcome("ann", spin)["exit_code"] == 0
    awake.ok("box", "pause", "ann")
    box = _box(awake)
    assert (box["observed"], box["desired"], box["memory_bytes"] > 0) == ("paused", "paused", True)
    before = _ticks(box["uid"])
    # Whoever looks meanwhile, looks at a box that stands still.
    for _ in range(5):
        _box(awake)
        awake.ok("status")
    assert _ticks(box["uid"]) == before
    assert awake.ok("box", "resume", "ann", "--json").json()["observed"] == "running"
    eventually(lambda: _ticks(box["uid"]) > before, what="it counts on")
    assert awake.outcome("ann", "kill $(cat /run/spins)")["exit_code"] == 0


def _ticks(uid: int) -> int:
    """Of processor, of all processes of the id: proc(5), utime and stime."""
    total = 0
    for pid in of_uid(uid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total


def test_a_command_that_is_paused_goes_on(awake: Installation) -> None:
    """E74: it loses nothing, and the clock is right after it."""
    if not awake.freezes("ann"):
        pytest.skip("this host cannot freeze: there is no pause")
    with _at_work(awake, "ann", "echo up; read line; date +%s; echo down $line") as running:
        awake.ok("box", "pause", "ann")
        out, _ = _told(running, b"hello\n", lambda: awake.ok("box", "resume", "ann"))
    said = out.decode().splitlines()
    assert (running.returncode, said[1]) == (0, "down hello")
    assert abs(int(said[0]) - time.time()) < 60


@contextlib.contextmanager
def _at_work(ours: Installation, user: str, script: str = "echo up; read x") -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs in the box until its stdin ends."""
    with ours.popen("exec", user, "--", "sh", "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        yield process


def _told(process: subprocess.Popen[bytes], line: bytes, then: Callable[[], object]) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()
    then()
    return process.communicate()


def test_nothing_is_lost_in_cycles_with_kills_between() -> None:
    """Pause, resume, stop and start in any order, the box's PID 1 or the server killed in between, and the tree is byte for byte what
    it was. 1,000 of them: tests/soak/test_rest_cycles.py."""
    chance = random.Random(CYCLES)
    with installation(settings=NEVER) as ours:
        ours.ok("user", "add", "ann")
        assert ours.outcome("ann", FILES)["exit_code"] == 0
        before = ours.outcome("ann", DIGEST)["stdout"]
        assert before.count("-") >= 2
        for _ in range(CYCLES):
            _one_cycle(ours, chance)
            assert ours.outcome("ann", DIGEST)["stdout"] == before
        assert ours.run("box", "stop", "ann").code == 0
        box = _box(ours)
        assert (box["observed"], of_uid(box["uid"])) == ("stopped", {})


def _one_cycle(ours: Installation, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 3)):
        verb = chance.choice(("pause", "resume", "stop", "start", "kill box", "kill kernel"))
        if verb == "kill kernel":
            ours.kill()
            ours.start()
        elif verb == "kill box":
            uid = _box(ours)["uid"]
            for pid in of_uid(uid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            done = ours.run("box", verb, "ann", "--json")
            if done.code != 0:  # refused in words: what is not running cannot be paused
                assert done.json()["error"]["code"] in ("conflict", "unavailable", "box_lost"), done.text


def test_idle_boxes_come_to_rest() -> None:
    """E73, E77: however often somebody looks; what is in them stays."""
    with installation(settings="[rest]\npause_after = 1\nstop_after = 4\n") as ours:
        ours.ok("user", "add", "ann")
        assert ours.outcome("ann", FILES)["exit_code"] == 0
        before = ours.outcome("ann", DIGEST)["stdout"]
        if ours.freezes("ann"):
            _until(ours, "paused")
            assert ours.outcome("ann", DIGEST)["stdout"] == before
        _until(ours, "stopped")
        assert ours.outcome("ann", DIGEST)["stdout"] == before
        assert ours.outcome("ann", "sleep 6")["exit_code"] == 0  # E76: silent for longer than both


def test_quarantine(awake: Installation) -> None:
    assert awake.outcome("ben", "echo kept > file; (sleep 1000 &)")["exit_code"] == 0
    awake.ok("box", "quarantine", "ben", "--reason", "mining")
    for words in (
        ("exec", "ben", "--", "true"),
        ("box", "start", "ben", "--as", "ben"),
        ("files", "get", "ben", "file", "-", "--as", "ben"),
    ):
        refused = awake.run(*words)
        assert (refused.code, "mining" in refused.errors) == (3, True), words
    assert awake.ok("files", "get", "ben", "file", "-").text == "kept\n"  # an operator
    assert _box(awake, "ben")["quarantine"] == "mining"
    assert "mining" not in awake.ok("box", "release", "ben", "--json").json().values()
    assert awake.outcome("ben", "cat file")["stdout"] == "kept\n"


def test_caps_make_room_by_the_longest_idle_and_never_by_one_at_work() -> None:
    with installation(settings=NEVER + "[boxes]\nmost = 2\nwait_seconds = 2\n") as ours:
        for name in ("ann", "ben", "cat"):
            ours.ok("user", "add", name)
        assert ours.outcome("ann", "true")["exit_code"] == 0
        assert ours.outcome("ben", "true")["exit_code"] == 0
        assert ours.outcome("cat", "true")["exit_code"] == 0
        assert [_box(ours, name)["observed"] for name in ("ann", "ben", "cat")] == ["stopped", "running", "running"]
        with _at_work(ours, "ben") as ben, _at_work(ours, "cat") as cat:
            refused = ours.run("exec", "ann", "--json", "--", "true")
            assert (refused.code, "at work" in refused.json()["error"]["message"]) == (5, True)
            with ours.popen("exec", "ann", "--", "true") as waiting:
                ben.communicate()
                waiting.communicate()
            assert waiting.returncode == 0
            cat.communicate()


def test_verbs_at_once_and_on_boxes_that_are_not_there(awake: Installation) -> None:
    awake.ok("user", "add", "cat")
    for verb in ("pause", "resume"):
        refused = awake.run("box", verb, "cat", "--json")
        assert (refused.code, refused.json()["error"]["code"]) == (1, "conflict")
    for verb in ("pause", "resume", "quarantine", "release", "upgrade"):
        more = ["--reason", "odd"] if verb == "quarantine" else []
        assert awake.run("box", verb, "nobody", *more).code == 4
    assert awake.outcome("cat", "true")["exit_code"] == 0
    verbs = [awake.popen("box", chosen, "cat") for chosen in ("pause", "resume", "stop", "start", "pause", "start") * 3]
    for one in verbs:
        one.communicate()
    assert {one.returncode for one in verbs} <= {0, 1, 5}
    assert awake.outcome("cat", "echo on")["stdout"] == "on\n"
    for bad in ("nan", "-1", "1e12", "inf"):
        assert awake.run("box", "upgrade", "cat", "--drain", bad).code == 2, bad


def test_an_upgrade_waits_for_work_or_says_so(awake: Installation) -> None:
    """E87: limits that hold from the next start on are a drift like a new release."""
    assert awake.outcome("ann", "true")["exit_code"] == 0
    assert awake.ok("box", "upgrade", "ann", "--json").json()["drifted"] == []
    awake.ok("box", "limits", "ann", "--nofile", "4000")
    with _at_work(awake, "ann") as busy:
        refused = awake.run("box", "upgrade", "ann", "--json")
        assert (refused.code, "at work" in refused.json()["error"]["message"]) == (1, True)
        with awake.popen("box", "upgrade", "ann", "--drain", "60", "--json") as waiting:
            busy.communicate()
            waiting.communicate()
        assert waiting.returncode == 0
    assert awake.outcome("ann", "ulimit -Hn")["stdout"] == "4000\n"
    assert awake.ok("box", "upgrade", "--all", "--json").json()["boxes"][0]["done"] == "current"
