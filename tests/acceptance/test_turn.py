"""A message becomes a run in its author's own box, and its reply is durable."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from ringfence.bench import processes
from tests.support.installation import Installation, eventually, installation, of_uid, until_file


def test_say_runs_in_the_authors_box(server: Installation, alice: str, bob: str) -> None:
    server.ok("thread", "add", "both", "--member", alice, "--member", bob)
    for user in (alice, bob):
        answer = server.say(user, "both", "Where am I?", f"$ echo {user} > whose.txt", "$ cat whose.txt")
        assert answer["status"] == "completed", answer
        assert user in answer["reply"]
        assert server.ok("files", "get", user, "whose.txt", "-").text == f"{user}\n"
    run = server.ok("run", "show", answer["run"], "--json").json()
    assert [(step["n"], step["tool"], step["state"]) for step in run["steps"]] == [
        (1, "shell", "ended"),
        (2, "shell", "ended"),
    ]
    events = server.ok("events", "both", "--json").json()["events"]
    assert [event["cursor"] for event in events] == list(range(1, len(events) + 1))
    assert [event["kind"] for event in events].count("reply") == 2


def test_the_provider_says_that_it_is_no_model(server: Installation, alice: str) -> None:
    answer = server.say(alice, "plain", "Write me a poem.")
    assert answer["status"] == "completed"
    assert "scripted" in answer["reply"] and "no model" in answer["reply"]


def test_file_tools_and_a_failing_command(server: Installation, alice: str) -> None:
    answer = server.say(alice, "tools", "@write note.txt hello there", "@read note.txt", "$ exit 3")
    assert answer["status"] == "completed"
    assert "hello there" in answer["reply"] and "3" in answer["reply"]


def test_the_same_key_is_the_same_turn(server: Installation, alice: str) -> None:
    first = server.say(alice, "keyed", "$ echo once >> counted.txt", key="k1")
    again = server.say(alice, "keyed", "$ echo once >> counted.txt", key="k1")
    assert (first["turn"], first["run"]) == (again["turn"], again["run"])
    assert server.ok("files", "get", alice, "counted.txt", "-").text == "once\n"
    other = server.run("say", "--as", alice, "--thread", "keyed", "--key", "k1", "--json", "something else")
    assert other.code == 1
    assert other.json()["error"]["code"] in ("conflict", "key_reused")


def test_a_stranger_finds_no_thread(server: Installation, alice: str, bob: str) -> None:
    server.say(alice, "private", "nothing")
    absent = server.run("events", "no-such-thread", "--as", bob)
    hidden = server.run("events", "private", "--as", bob)
    assert (absent.code, hidden.code) == (4, 4)
    assert absent.errors.replace("no-such-thread", "X") == hidden.errors.replace("private", "X")
    posted = server.run("say", "--as", bob, "--thread", "private", "--json", "let me in")
    assert posted.code == 4


def test_a_lane_is_ordered(server: Installation, alice: str) -> None:
    server.say(alice, "lane", "first")
    text = f"$ {until_file('lane-go')}; echo one >> order.txt"
    slow = server.popen("say", "--as", alice, "--thread", "lane", "--json", text)
    processes.first_of(until_file("lane-go"))
    rejected = server.run("say", "--as", alice, "--thread", "lane", "--mode", "reject", "--json", "no")
    assert rejected.code == 3
    assert rejected.json()["status"] == "rejected"
    server.ok("files", "put", alice, "lane-go", "-", stdin=b"")
    assert server.say(alice, "lane", "$ echo two >> order.txt")["status"] == "completed"
    slow.communicate(timeout=120)
    assert server.ok("files", "get", alice, "order.txt", "-").text == "one\ntwo\n"


def test_a_turn_survives_a_killed_server_and_runs_its_step_once() -> None:
    with installation() as made:
        made.ok("user", "add", "ann")
        text = f"$ {until_file('back')}; echo x >> once\n$ cat once"
        words = ("say", "--as", "ann", "--thread", "t", "--key", "k", "--json", text)
        client = made.popen(*words)
        processes.first_of(until_file("back"))
        made.kill()
        client.kill()
        client.communicate(timeout=120)
        made.start()
        made.ok("files", "put", "ann", "back", "-", stdin=b"")
        answer = made.ok(*words).json()
        assert answer["status"] == "completed", answer
        assert made.ok("files", "get", "ann", "once", "-").text == "x\n"
        run = made.ok("run", "show", answer["run"], "--json").json()
        assert [step["state"] for step in run["steps"]] == ["ended", "ended"]
        assert run["epoch"] >= 2
        kinds = [event["kind"] for event in made.ok("events", "t", "--json").json()["events"]]
        assert kinds.count("run.ended") == 1 and kinds.count("reply") == 1


def in_main(pid: int) -> bool:
    try:
        return "/main\n" in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


@pytest.mark.root
def test_a_turn_survives_a_killed_loop(server: Installation, person: str) -> None:
    """The loop is another process than any command; the box's owner cannot see it, its host can."""
    text = f"$ {until_file('go-on')}; echo x >> once\n$ cat once"
    client = server.popen("say", "--as", person, "--thread", f"loop-{person}", "--json", text)
    uid = server.box(person)["uid"]

    def loops() -> list[int]:
        """In the leaf of PID 1, and not PID 1 (commands are in the other leaf)."""
        return [
            pid for pid, status in of_uid(uid).items() if in_main(pid) and not re.search(r"^NSpid:.*\t1$", status, re.M)
        ]

    eventually(loops, 15, "the loop is there")
    processes.first_of(until_file("go-on"))
    os.kill(loops()[0], 9)
    server.ok("files", "put", person, "go-on", "-", stdin=b"")
    out, err = client.communicate(timeout=120)
    answer = json.loads(out)
    assert answer["status"] == "completed", (answer, err)
    assert server.ok("files", "get", person, "once", "-").text == "x\n"


def test_a_box_stopped_under_a_turn_ends_it_in_a_defined_way(server: Installation, person: str) -> None:
    thread = f"stopped-{person}"
    client = server.popen("say", "--as", person, "--thread", thread, "--json", "$ sleep 30; echo x >> never\n$ echo on")
    eventually(lambda: b"sleep 30" in server.shell(person, "cat /proc/[0-9]*/cmdline 2>/dev/null").out, 15)
    server.ok("box", "stop", person)
    out, _ = client.communicate(timeout=120)
    answer = json.loads(out)
    assert answer["status"] == "completed"
    run = server.ok("run", "show", answer["run"], "--json").json()
    assert run["steps"][0]["state"] == "interrupted"
    assert "interrupted" in answer["reply"]
    assert server.run("files", "get", person, "never", "-").code == 4
