"""What a gate looks like on a terminal: whole, in one order, and obeyed by no terminal."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.cli import event_words
from ringfence.cli.gate_command import _then, lines
from ringfence.cli.options import again

GATE: dict[str, Any] = {
    "gate": "gat_1",
    "kind": "approval",
    "state": "open",
    "user": "alice",
    "answerer": "alice",
    "thread": "t",
    "run": "run_1",
    "n": 1,
    "tool": "http.webhook",
    "answer": None,
    "answered_by": None,
    "answered_via": "",
    "answered_at": None,
    "used_at": None,
    "reason": "",
    "created_at": "2026-01-01T00:00:00Z",
    "expires_at": None,
    "shown": {"to": "https://a.b/c\x1b[2K"},
    "obligations": {"redact": [], "cap_bytes": 5, "notify_owner": False, "expire_seconds": None},
    "equal": 3,
    "means": "a wall: x",
    "call": 'http.webhook {\n  "a": "\\u202e"\n}',
    "odd": ["1 x U+202E RIGHT-TO-LEFT OVERRIDE"],
}


def test_an_open_gate() -> None:
    rows = lines(GATE)
    text = "\n".join(rows)
    assert all(character == "\n" or character.isprintable() for character in text)
    for part in (
        "gat_1",
        "\\x1b[2K",
        "cap_bytes",
        "3 other",
        "a wall",
        '"\\u202e"',
        "OVERRIDE",
        "ringfence deny gat_1",
    ):
        assert part in text
    assert rows[-2:] == ["answer: ringfence approve gat_1", "    or: ringfence deny gat_1"]
    spoken_for = ["answer: ringfence approve gat_1 --as alice", "    or: ringfence deny gat_1 --as alice"]
    assert lines(GATE, again("alice", "default"))[-2:] == spoken_for
    elsewhere = "answer: ringfence approve gat_1 --as alice --tenant acme"
    assert lines(GATE, again("alice", "acme"))[-2:] == [
        elsewhere,
        elsewhere.replace("answer: ", "    or: ").replace("approve", "deny"),
    ]
    assert lines(GATE, again(None, "acme"))[-2] == "answer: ringfence approve gat_1 --tenant acme"


@pytest.mark.parametrize(("state", "goes_on"), [("allowed", True), ("denied", True), ("used", False)])
def test_an_answer_says_that_the_run_goes_on_only_when_it_does(state: str, goes_on: bool) -> None:
    assert (_then({**GATE, "state": state}) == "the run goes on") is goes_on


def test_one_in_doubt_and_one_that_is_closed() -> None:
    assert "--answer done|not-done|again" in lines({**GATE, "kind": "in_doubt"})[-1]
    assert "ringfence approve" not in "\n".join(lines({**GATE, "state": "used"}))


def test_who_answered_what_and_what_became_of_it() -> None:
    answered = {
        "state": "used",
        "answer": "allow",
        "answered_by": "carol",
        "answered_via": "as socket:0",
        "answered_at": "2026-01-02T00:00:00Z",
        "used_at": "2026-01-02T00:00:01Z",
    }
    rows = lines({**GATE, **answered})
    for row in ("answer     allow", "by         carol", "via        as socket:0", "at         2026-01-02T00:00:00Z"):
        assert row in rows
    assert "used       2026-01-02T00:00:01Z" in rows
    closed = lines({**GATE, "state": "expired", "reason": "nobody answered \x1b[2K"})
    assert "reason     nobody answered \\x1b[2K" in closed
    assert not [row for row in lines(GATE) if row.startswith(("answer  ", "by ", "via ", "at ", "used ", "reason "))]


def test_the_tool_is_named_when_the_call_is_not_shown() -> None:
    assert "tool       http.webhook" in lines({**GATE, "call": None})
    assert not [row for row in lines(GATE) if row.startswith("tool ")], "the call begins with it"


@pytest.mark.parametrize("kind", ["auth", "setup"])
def test_one_that_waits_for_something_to_be_mended(kind: str) -> None:
    shown = {"to": "https://a.b/c", "missing": "it \x1b[2K is gone", "mend": "put it there"}
    rows = lines({**GATE, "kind": kind, "shown": shown})
    assert "missing    it \\x1b[2K is gone" in rows and "mend       put it there" in rows
    assert rows[-2:] == ["answer: ringfence approve gat_1 --answer done", "    or: ringfence deny gat_1"]
    hidden = lines({**GATE, "kind": kind, "shown": shown, "call": None})
    assert "mend       put it there" in hidden, "the operator sees what is missing"


def test_what_is_not_to_be_seen_is_said_to_be_somebodys() -> None:
    assert lines({**GATE, "call": None})[-1] == "what is asked is for the acting user, or its owner, alone"


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (
            "run.parked",
            {"n": 1, "tool": "t", "kind": "approval", "gate": "g"},
            "step 1: t: asks whether it may go on, gate g",
        ),
        ("run.parked", {"n": 1, "kind": "in_doubt"}, "step 1: asks whether it was done"),
        ("run.parked", {"n": 1, "tool": "t", "kind": "setup"}, "step 1: t: asks for what is missing to be set up"),
        ("run.parked", {"n": 1, "tool": "t", "kind": "auth"}, "step 1: t: asks for its key to be renewed"),
        ("run.resumed", {"attempt": 1}, "the agent goes on"),
        ("gate.answered", {"n": 2, "tool": "t", "answer": "deny"}, "step 2: t: the answer is deny"),
        (
            "gate.closed",
            {"n": 2, "state": "expired", "reason": "late"},
            "step 2: the question is closed: expired: late",
        ),
        ("effect.settled", {"n": 2, "tool": "t", "state": "done"}, "step 2: t: known only now: done"),
    ],
)
def test_events(kind: str, body: dict[str, Any], words: str) -> None:
    assert event_words.words({"kind": kind, "cursor": 1, "body": body}) == words
