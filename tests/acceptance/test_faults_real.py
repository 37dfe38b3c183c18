"""F13, F15. What a real box is made of, killed one by one under a turn: the box's outer process, its PID 1, its agent loop, the
command itself. The run goes on or ends with a reason, nothing is run a second time, and nothing of the old box is left.
And a real server that is told to end under a turn."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.bench import processes
from tests.support.installation import Installation, eventually, installation, of_uid, until_file

PATIENCE = 30.0


def first_of(uid: int) -> int:
    """PID 1 of the box."""
    [pid] = [pid for pid, status in of_uid(uid).items() if re.search(r"^NSpid:.*\t1$", status, re.M)]
    return pid


def outer_of(uid: int) -> int:
    """The process that made the box and waits for its PID 1."""
    return int(Path(f"/proc/{first_of(uid)}/stat").read_text().rpartition(")")[2].split()[1])


def loop_of(uid: int) -> int:
    """In the leaf of PID 1; commands are in the other one."""
    first = first_of(uid)
    [pid] = [pid for pid in of_uid(uid) if pid != first and pid != outer_of(uid) and in_main(pid)]
    return pid


def in_main(pid: int) -> bool:
    try:
        return "/main\n" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def command_of(uid: int) -> int:
    [pid, *_] = [pid for pid in of_uid(uid) if not in_main(pid) and b"go-on" in cmdline(pid)]
    return pid


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.root
@pytest.mark.parametrize(
    ("which", "ends_the_box", "first_step"),
    [
        (outer_of, False, "ended"),  # it only waits: the box goes on without it, and is ended by its cgroup
        (first_of, True, "interrupted"),
        (loop_of, False, "ended"),
        (command_of, False, "ended"),
    ],
    ids=["outer", "pid 1", "loop", "command"],
)
def test_a_part_of_a_box_is_killed_under_a_turn(
    server: Installation, person: str, which: Callable[[int], int], ends_the_box: bool, first_step: str
) -> None:
    server.ok("exec", person, "--", "true")
    before = server.box(person)
    thread = f"killed-{person}"
    text = f"$ echo x >> begun; {until_file('go-on')}; echo x >> once\n$ cat begun"
    client = server.popen("say", "--as", person, "--thread", thread, "--json", text)
    processes.first_of(until_file("go-on"))
    eventually(
        lambda: server.run("files", "get", person, "begun", "-").out == b"x\n", PATIENCE, "the command has begun"
    )
    old = set(of_uid(before["uid"]))
    victim = which(before["uid"])
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: victim not in of_uid(before["uid"]), PATIENCE, "it has ended")
    if ends_the_box:
        eventually(lambda: not old & set(of_uid(before["uid"])), PATIENCE, "every process of that box has ended")
    server.ok("files", "put", person, "go-on", "-", stdin=b"")
    out, err = client.communicate(timeout=120)
    answer = json.loads(out)
    assert answer["status"] == "completed", (answer, err)
    run = server.ok("run", "show", answer["run"], "--json").json()
    assert [step["state"] for step in run["steps"]] == [first_step, "ended"]
    assert server.ok("files", "get", person, "begun", "-").text == "x\n", "begun once"
    done = server.run("files", "get", person, "once", "-")
    assert (done.code == 0) == (which in (outer_of, loop_of)), "what is no part of the command leaves it at work"
    kinds = [event["kind"] for event in server.ok("events", thread, "--as", person, "--json").json()["events"]]
    assert (kinds.count("reply"), kinds.count("run.ended")) == (1, 1)
    after = server.box(person)
    assert after["generation"] == before["generation"] + ends_the_box
    assert server.ok("exec", person, "--", "echo", "well").out == b"well\n"
    server.ok("box", "stop", person)
    eventually(lambda: not of_uid(before["uid"]), PATIENCE, "nothing is left of it")
    left = [path for path in Path("/sys/fs/cgroup").rglob("cgroup.procs") if before["box"] in str(path)]
    assert not left, left


@pytest.mark.root
def test_a_server_that_is_told_to_end_hands_on_its_work() -> None:
    """F15: SIGTERM ends it with status 0 though a command goes on; that one stays, what waited behind it still waits, and the
    next server brings both to their end."""
    with installation() as made:
        made.ok("user", "add", "ann")
        talk = ("say", "--as", "ann", "--thread", "t", "--json", "--key")
        first = f"$ echo x >> begun; {until_file('go-on')}; echo x >> once"
        second = "$ echo y >> once"
        clients = [made.popen(*talk, "one", first)]
        processes.first_of(until_file("go-on"))
        eventually(lambda: made.run("files", "get", "ann", "begun", "-").out == b"x\n", PATIENCE, "it has begun")
        clients.append(made.popen(*talk, "two", second))
        events = ("events", "t", "--as", "ann", "--json")
        eventually(lambda: second in made.ok(*events).text, PATIENCE, "the other waits behind it")
        command = command_of(made.box("ann")["uid"])
        assert made.stop() == 0, "by itself, and not killed when its time was over"
        assert b"go-on" in cmdline(command), "the command is left at work"
        for client in clients:
            client.kill()
            client.communicate(timeout=120)
        made.start()
        made.ok("files", "put", "ann", "go-on", "-", stdin=b"")
        answers = [made.ok(*talk, key, text).json() for key, text in (("one", first), ("two", second))]
        assert [answer["status"] for answer in answers] == ["completed", "completed"]
        assert made.ok("files", "get", "ann", "begun", "-").text == "x\n", "begun once"
        assert made.ok("files", "get", "ann", "once", "-").text == "x\ny\n"
        epochs = [made.ok("run", "show", answer["run"], "--json").json()["epoch"] for answer in answers]
        assert epochs == [2, 1], "the one was handed over, the other not begun before"
