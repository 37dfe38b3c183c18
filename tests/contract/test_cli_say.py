"""`ringfence say` and its neighbours when something is in the way: said once, with ids, and before the server is asked
where that is possible."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cli_rig import eventually
from tests.support.web_rig import Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


def waiting(served: Web, thread: str, *more: str) -> subprocess.Popen[bytes]:
    """A turn of alice's that does not end by itself, once its step has ended."""
    process = served.popen("say", "--as", "alice", "--thread", thread, *more, "wait")
    eventually(lambda: b"step 1 ended" in served.cli("events", thread).stdout)
    return process


def ids(served: Web, thread: str) -> dict[str, Any]:
    event = json.loads(served.cli("events", thread, "--json").stdout)["events"][0]
    return {name: event[name] for name in ("turn", "run")}


@pytest.mark.parametrize("more", [["--json"], [], ["--verbose"]])
def test_a_member_who_is_removed_learns_what_became_of_the_message(served: Web, more: list[str]) -> None:
    thread = f"removed{len(''.join(more))}"
    process = waiting(served, thread, *more)
    assert served.cli("thread", "member", "rm", thread, "alice").returncode == 0
    out, said = process.communicate(timeout=120)
    assert process.returncode == 4
    known = ids(served, thread)
    if more == ["--json"]:
        error = json.loads(out)["error"]
        assert error["details"].items() >= known.items() and error["details"]["message"].startswith("msg_")
        assert (error["code"], error["remedy"]) == ("not_found", f"see: ringfence run show {known['run']}")
        assert error["message"].startswith(
            "the message was accepted, but its turn cannot be followed any more: no such"
        )
    else:
        first, second = said.decode().splitlines()[-2:]
        assert first.startswith("ringfence: the message was accepted, but")
        assert second == f"  see: ringfence run show {known['run']}"
        assert served.cli(*second.split()[2:]).returncode == 0, "the control: what it names works"


def test_an_interrupt_is_an_object_for_programs(served: Web) -> None:
    process = waiting(served, "left", "--json")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=120)
    error = json.loads(out)["error"]
    assert (process.returncode, said, error["code"]) == (130, b"", "interrupted")
    assert error["details"].items() >= ids(served, "left").items()
    assert error["remedy"].endswith(" --as alice") and "ringfence run cancel run_" in error["remedy"]


def test_why_has_the_words_for_the_actor(served: Web) -> None:
    said = served.cli("say", "--as", "alice", "--thread", "why", "--json", "fail")
    answer = json.loads(said.stdout)
    assert answer["why"] == "what was asked again is not what the journal has: step 1 was \x1b[2Jsomething else"
    assert json.loads(served.cli("say", "--as", "alice", "--thread", "why", "--json", "hi").stdout)["why"] == ""


def test_a_cancelled_turn_is_said_once(served: Web) -> None:
    process = waiting(served, "once")
    assert served.cli("run", "cancel", ids(served, "once")["run"]).returncode == 0
    _, said = process.communicate(timeout=120)
    assert said.decode().splitlines()[0] == "ringfence: cancelled"
    assert served.cli("events", "once").stdout.decode().rstrip().endswith("  the turn ended: cancelled")


@pytest.mark.parametrize("words", ["events absent", "run show run_absent", "run ls --limit 0"])
def test_an_error_for_programs_is_one_line(served: Web, words: str) -> None:
    done = served.cli(*words.split(), *(["--follow"] if "events" in words else []), "--json")
    assert done.returncode in (2, 4)
    assert len(done.stdout.splitlines()) == 1 and json.loads(done.stdout)["error"]["remedy"]


def test_a_followed_stream_that_ends_ends_with_one_line(served: Web) -> None:
    served.cli("thread", "add", "followed", "--member", "alice")
    follow = served.popen("events", "followed", "--follow", "--json", "--as", "alice")
    eventually(lambda: bool(served.engine.threads.watches))
    served.cli("thread", "member", "rm", "followed", "alice")
    out, _ = follow.communicate(timeout=120)
    *_, last = (json.loads(row) for row in out.splitlines())
    assert (follow.returncode, last["error"]["code"]) == (4, "not_found")


@pytest.mark.parametrize(
    "words",
    [
        ["say", "--thread", "t", "--mode", "shout", "hi"],
        ["say", "--thread", "t", "--key", "k" * 201, "hi"],
        ["say", "--thread", "t", b"half \xff"],
        ["say", "--thread", "t", " "],
        ["say", "--thread", "t", *["--attach", "f"] * 21, "hi"],
        ["run", "ls", "--limit", "0"],
        ["run", "ls", "--limit", "1001"],
        ["events", "t", "--after", "-1"],
        ["files", "put", "alice", "x", "/dev/null", "--mode", "1777"],
        ["user", "add", "x", "--kind", "cat"],
        ["token", "add", "--user", "alice", "--scope", "all"],
        ["token", "add", "--user", "alice", "--ttl", "nan"],
        ["thread", "break-glass", "t", "--reason", "x"],
    ],
)
def test_what_is_wrong_is_said_without_a_server(served: Web, words: list[str | bytes]) -> None:
    """Exit code 5 would be: it was asked."""
    nowhere = {"RINGFENCE_HOME": str(served.home / "nowhere")}
    done = served.cli(*words, env=nowhere)
    assert (done.returncode, done.stdout) == (2, b"")
    assert len(done.stderr.splitlines()) == 2
    assert served.cli("run", "ls", env=nowhere).returncode == 5, "the control"


def test_who_is_no_member_cannot_be_removed(served: Web) -> None:
    served.cli("thread", "add", "members", "--member", "alice")
    never = served.cli("thread", "member", "rm", "members", "bob")
    assert never.returncode == 4
    assert never.stderr.decode().splitlines() == [
        "ringfence: 'bob' is no member of 'members'", "  see: ringfence thread show members",
    ]  # fmt: skip
    assert served.cli("thread", "member", "add", "members", "bob").returncode == 0
    assert served.cli("thread", "member", "rm", "members", "bob").returncode == 0
    assert served.cli("thread", "member", "rm", "members", "bob").returncode == 4
