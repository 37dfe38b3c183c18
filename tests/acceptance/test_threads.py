"""A thread with two people through the command line: steer, cancel, attachments, break-glass, redrive by hand."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from ringfence.bench import processes
from tests.support.installation import Installation, eventually, until_file


@pytest.fixture
def pair(server: Installation, person: str, bob: str) -> tuple[str, str, str]:
    """(thread, its first member, the other)."""
    thread = f"pair-{person}"
    server.ok("thread", "add", thread, "--member", person, "--member", bob)
    return thread, person, bob


def saying(server: Installation, user: str, thread: str, text: str, *options: str) -> subprocess.Popen[bytes]:
    return server.popen("say", "--as", user, "--thread", thread, "--json", *options, text)


def answer(client: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, err = client.communicate(timeout=120)
    found = json.loads(out)
    assert isinstance(found, dict), err
    return found


def events(server: Installation, thread: str, *options: str) -> list[dict[str, Any]]:
    found = server.ok("events", thread, "--json", *options).json()["events"]
    assert [event["cursor"] for event in found] == list(range(1, len(found) + 1))
    assert isinstance(found, list)
    return found


def messages(server: Installation, thread: str) -> int:
    return [event["kind"] for event in events(server, thread)].count("message")


def test_a_steer_reaches_the_run_of_its_author_and_nobody_elses(
    server: Installation, pair: tuple[str, str, str]
) -> None:
    thread, ann, bob = pair
    first = saying(server, ann, thread, f"$ {until_file('go-steer')}; echo first >> steps")
    processes.first_of(until_file("go-steer"))
    others = saying(server, bob, thread, "$ echo bobs >> steps", "--mode", "steer")
    own = saying(server, ann, thread, "$ echo second >> steps", "--mode", "steer")
    eventually(lambda: messages(server, thread) == 3, 60)
    server.ok("files", "put", ann, "go-steer", "-", stdin=b"")
    turn, joined, apart = answer(first), answer(own), answer(others)
    assert turn["status"] == joined["status"] == apart["status"] == "completed", (turn, joined, apart)
    assert joined["turn"] == turn["turn"] and joined["reply"] == turn["reply"]
    assert apart["turn"] != turn["turn"]
    assert server.ok("files", "get", ann, "steps", "-").text == "first\nsecond\n"
    assert server.ok("files", "get", bob, "steps", "-").text == "bobs\n"
    steps = server.ok("run", "show", turn["run"], "--json").json()["steps"]
    assert len(steps) == 2
    assert [event["kind"] for event in events(server, thread)].count("reply") == 2


def test_a_steer_without_a_turn_under_way_is_a_message_like_any_other(
    server: Installation, pair: tuple[str, str, str]
) -> None:
    thread, ann, _ = pair
    alone = answer(saying(server, ann, thread, "$ echo alone", "--mode", "steer"))
    assert alone["status"] == "completed" and "alone" in alone["reply"]


def test_a_steer_outlives_the_loop_that_it_was_for(server: Installation, pair: tuple[str, str, str]) -> None:
    """The loop is killed after the steer was accepted: the next one is given it."""
    thread, ann, _ = pair
    idle = processes.idle_forks(server.popen("exec", ann, "--", "sleep", "91.5"), "91.5")
    first = saying(server, ann, thread, f"$ {until_file('go-loop')}; echo first >> steps")
    one = processes.first_of(until_file("go-loop"))
    own = saying(server, ann, thread, "$ echo second >> steps", "--mode", "steer")
    eventually(lambda: messages(server, thread) == 2, 60)
    assert server.server is not None
    for pid in processes.forks_of(one) - idle:
        processes.kill(pid, server.server.pid)
    server.ok("files", "put", ann, "go-loop", "-", stdin=b"")
    turn, joined = answer(first), answer(own)
    assert turn["status"] == "completed" and joined["turn"] == turn["turn"], (turn, joined)
    assert server.ok("files", "get", ann, "steps", "-").text == "first\nsecond\n"
    assert server.ok("run", "show", turn["run"], "--json").json()["attempts"] == 2


def test_cancel_ends_the_command_and_the_lane_goes_on(server: Installation, pair: tuple[str, str, str]) -> None:
    thread, ann, bob = pair
    slow = saying(server, ann, thread, "$ sleep 60.0625; echo never > never")
    processes.first_of("sleep 60.0625")
    run = next(event["run"] for event in events(server, thread) if event["kind"] == "run.started")
    refused = server.run("run", "cancel", run, "--as", bob)
    assert refused.code == 3, refused.errors
    server.ok("run", "cancel", run, "--as", ann)
    ended = answer(slow)
    assert (ended["status"], slow.returncode) == ("cancelled", 1)
    eventually(lambda: server.shell(ann, "pgrep -f '[s]leep 60.0625'").code != 0, 15, "the command has ended")
    assert answer(saying(server, ann, thread, "$ echo on"))["status"] == "completed"
    again = server.run("run", "cancel", run, "--as", ann)
    assert again.code == 0, "a run that has ended is answered as it is"
    refused = server.run("run", "redrive", run, "--as", ann, "--json")
    assert refused.code == 1 and refused.json()["error"]["code"] == "conflict"


def test_attachments_are_files_of_the_authors_box(server: Installation, pair: tuple[str, str, str]) -> None:
    thread, ann, bob = pair
    server.ok("files", "put", ann, "notes.txt", "-", stdin=b"remember\n")
    said = answer(saying(server, ann, thread, "$ cat notes.txt", "--attach", "notes.txt"))
    assert said["status"] == "completed" and "remember" in said["reply"]
    keyed = ("--attach", "notes.txt", "--key", f"attached-{ann}")
    first = answer(saying(server, ann, thread, "$ mv notes.txt moved.txt", *keyed))
    assert answer(saying(server, ann, thread, "$ mv notes.txt moved.txt", *keyed))["turn"] == first["turn"]
    message = next(event for event in events(server, thread, "--as", bob) if event["kind"] == "message")
    assert message["body"]["attachments"] == [{"path": "notes.txt", "size": 9}]
    server.shell(ann, "ln -s /etc/passwd out; mkdir -p folder; mkfifo pipe")
    for bad, code in (("absent", 4), ("folder", 2), ("pipe", 3), ("out", 3), ("a\nb", 4)):
        refused = server.run("say", "--as", ann, "--thread", thread, "--json", "--attach", bad, "look")
        assert refused.code in (code, 1, 2, 3, 4) and refused.code != 0, (bad, refused.text)
        assert refused.json()["error"]["remedy"], bad
    assert server.run("say", "--as", bob, "--thread", thread, "--json", "--attach", "notes.txt", "x").code == 4
    assert [event["kind"] for event in events(server, thread)].count("message") == 2


def test_break_glass_is_told_to_the_members(server: Installation, pair: tuple[str, str, str]) -> None:
    thread, ann, _ = pair
    answer(saying(server, ann, thread, "the secret plan\n$ echo hidden-result"))
    assert "secret plan" not in server.ok("events", thread).text
    short = server.run("thread", "break-glass", thread, "--reason", "x")
    assert short.code == 2, short.errors
    assert server.run("thread", "break-glass", thread, "--reason", "curious", "--as", ann).code in (3, 4)
    server.ok("thread", "break-glass", thread, "--reason", "incident 7: what was asked?")
    opened = server.ok("events", thread, "--json").json()["events"]
    assert any("secret plan" in json.dumps(event["body"]) for event in opened)
    ended = [event for event in opened if event["kind"].startswith("step.")]
    assert ended and "echo hidden-result" not in json.dumps(ended), "steps stay their actor's own"
    told = [event for event in events(server, thread, "--as", ann) if event["kind"] == "break_glass"]
    assert len(told) == 1 and told[0]["body"]["reason"] == "incident 7: what was asked?"


def test_events_follow_shows_live_what_happens(server: Installation, pair: tuple[str, str, str]) -> None:
    thread, ann, bob = pair
    answer(saying(server, ann, thread, "$ true"))
    watching = server.popen("events", thread, "--as", bob, "--follow", "--json")
    assert watching.stdout is not None
    answer(saying(server, ann, thread, "$ echo again"))
    kinds = []
    for line in watching.stdout:
        kinds.append(json.loads(line)["kind"])
        if kinds.count("run.ended") == 2:
            break
    watching.terminate()
    watching.communicate(timeout=120)
    assert kinds.count("reply") == 2 and "delta" not in kinds, "another member sees replies, no text in between"
