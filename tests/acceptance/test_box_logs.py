"""`ringfence box logs`, the way an owner and an operator meet it: why a box is as it is, with real boxes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import Installation, eventually, installation, of_uid

NEVER = "[rest]\npause_after = 0\nstop_after = 0\n"


@pytest.fixture(scope="module")
def ours() -> Iterator[Installation]:
    with installation(settings=NEVER) as made:
        for name in ("ann", "ben"):
            made.ok("user", "add", name)
            made.ok("exec", name, "--", "true")
        yield made


def _lines(ours: Installation, user: str, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ours.ok("box", "logs", user, "--json", *options).text.splitlines()]


def _texts(ours: Installation, user: str, *sources: str) -> list[str]:
    return [each["text"] for each in _lines(ours, user, "--lines", "10000") if not sources or each["source"] in sources]


def pid1_of(uid: int) -> int:
    """Of a box that runs."""
    found = [
        pid
        for pid, status in of_uid(uid).items()
        if any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in status.splitlines())
    ]
    assert len(found) == 1, found
    return found[0]


def test_starts_rests_and_verbs_are_told_in_their_order(ours: Installation) -> None:
    ours.ok("user", "add", "cat")
    ours.ok("exec", "cat", "--", "true")
    if ours.freezes("cat"):
        ours.ok("box", "pause", "cat")
        ours.ok("box", "resume", "cat")
    ours.ok("box", "snapshot", "cat")
    ours.ok("box", "stop", "cat")
    told = _texts(ours, "cat", "life")
    wanted = ["started:", "snapshot begins", "stopped:", "snapshot is done"]  # it is stopped for it
    if ours.freezes("cat"):
        wanted = ["started:", "stands still", "goes on", "snapshot begins", "snapshot is done", "stopped:"]
    places = [next(at for at, text in enumerate(told) if text.startswith(each)) for each in wanted]
    assert places == sorted(places), told
    assert all(each.keys() == {"at", "source", "text"} for each in _lines(ours, "cat"))


def test_who_asked_and_why_is_there(ours: Installation) -> None:
    ours.ok("box", "quarantine", "ben", "--reason", "mining")
    ours.ok("box", "release", "ben")
    told = _texts(ours, "ben")
    assert "put into quarantine: mining" in told and "released from quarantine" in told
    assert any(text.startswith("box.quarantine by an operator") for text in _texts(ours, "ben", "audit"))


@pytest.mark.root
def test_a_killed_box_is_told_to_have_ended_by_itself(ours: Installation) -> None:
    assert not any("ended by itself" in text for text in _texts(ours, "ann"))
    os.kill(pid1_of(ours.box("ann")["uid"]), signal.SIGKILL)
    eventually(lambda: ours.box("ann")["observed"] != "running", what="the server sees it")
    assert ours.outcome("ann", "true")["exit_code"] == 0
    told = _texts(ours, "ann", "life")
    ended = next(at for at, text in enumerate(told) if text.startswith("ended by itself"))
    assert any(text.startswith("started:") for text in told[ended:])


@pytest.mark.root
def test_out_of_memory_is_told_with_limit_and_peak(ours: Installation) -> None:
    ours.ok("box", "limits", "ben", "--memory", "256MiB")
    assert ours.outcome("ben", "exec python3 -c 'bytearray(600 << 20)'")["reason"] == "oom"
    assert any("out of memory" in text and "the limit is" in text for text in _texts(ours, "ben", "limit"))


@pytest.mark.root
def test_what_pid_1_says_is_heard_by_the_next_server_too(ours: Installation) -> None:
    """A fault of PID 1 after a restart of the server is as much worth as one before it."""
    for number in (1, 2):
        _says(pid1_of(ours.box("ann")["uid"]), f"guest: fault {number} \x1b[2J\u202e\n".encode())
        eventually(lambda n=number: any(f"guest: fault {n}" in text for text in _texts(ours, "ann", "guest")))  # type: ignore[misc]
        if number == 1:
            ours.kill()
            ours.start()
    told = _texts(ours, "ann", "guest")
    assert all(text.isprintable() for text in told), told
    assert not any("fault" in text for text in _texts(ours, "ben", "guest"))
    assert any("another server" in text for text in _texts(ours, "ann", "life"))


@pytest.mark.root
def test_a_box_that_writes_without_end_loses_its_own_words_and_none_of_the_hosts(ours: Installation) -> None:
    assert ours.outcome("ann", "true")["exit_code"] == 0
    before = _texts(ours, "ann", "life")
    pid = pid1_of(ours.box("ann")["uid"])
    # It may be stopped meanwhile: of a tree that is being worked on a release is soon another's.
    with contextlib.suppress(FileNotFoundError):
        for _ in range(200):
            _says(pid, b"x" * 1999 + b"\n" + b"noise\n" * 3000)
            time.sleep(0.01)
    eventually(lambda: any("left out" in text for text in _texts(ours, "ann", "guest")), what="it is cut")
    kept = sum(path.stat().st_size for path in (ours.home / "logs").iterdir())
    assert kept < 4 * 3 * (128 << 10)
    assert _texts(ours, "ann", "life")[: len(before)] == before
    assert ours.outcome("ann", "echo on")["stdout"] == "on\n"


def _says(pid: int, words: bytes) -> None:
    """As PID 1 would: a hostile one could, and nothing in a box may ptrace the real one. What finds no room is lost, as its is."""
    fd = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    try:
        with contextlib.suppress(BlockingIOError):
            os.write(fd, words)
    finally:
        os.close(fd)


def test_a_user_sees_the_own_log_alone_and_an_operators_look_is_recorded(ours: Installation) -> None:
    assert ours.run("box", "logs", "ann", "--as", "ann", "--json").code == 0
    assert ours.run("box", "logs", "ben", "--as", "ann").code == 4
    assert ours.run("box", "logs", "nobody").code == 4
    for bad in ("0", "-1", "nan", "1e12"):
        assert ours.run("box", "logs", "ann", "--lines", bad).code == 2, bad
    rows = ours.ok("audit", "ls", "--limit", "100", "--json").json()["rows"]
    assert any(row["action"] == "box.logs" for row in rows)
    assert len(_lines(ours, "ann", "--lines", "1")) == 1


def test_following_ends_by_an_interrupt_and_keeps_no_box_awake() -> None:
    with installation(settings="[rest]\npause_after = 0\nstop_after = 2\n") as ours:
        ours.ok("user", "add", "ann")
        ours.ok("exec", "ann", "--", "true")
        with ours.popen("box", "logs", "ann", "--follow", "--json") as following:
            assert following.stdout is not None
            seen = []
            for raw in following.stdout:
                seen.append(json.loads(raw)["text"])
                if any(text.startswith("stopped: ") and "idle" in text for text in seen):
                    break
            following.send_signal(signal.SIGINT)
            following.communicate()
        assert following.returncode == 130
        assert len([text for text in seen if text.startswith("started:")]) == 1  # nothing twice


def test_a_purged_users_log_is_gone(ours: Installation) -> None:
    ours.ok("user", "add", "brief")
    ours.ok("exec", "brief", "--", "true")
    box = ours.box("brief")["box"]
    assert _texts(ours, "brief", "life")
    assert any(path.name.startswith(box) for path in (ours.home / "logs").iterdir())
    ours.ok("user", "rm", "--purge", "brief")
    assert not any(path.name.startswith(box) for path in (ours.home / "logs").iterdir())
