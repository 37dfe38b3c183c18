"""Events in words: one line each, of which nothing obeys a terminal, whatever was in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.cli import event_words
from ringfence.host.kernel.threads import EventKind


def words(kind: str, **body: Any) -> str:
    return event_words.words({"kind": kind, "body": body})


@pytest.mark.parametrize(
    ("kind", "body", "wanted"),
    [
        ("message", {"text": "hi\nthere"}, r"says: hi\nthere"),
        ("message", {"text": "and", "steer": True}, "adds to the turn under way: and"),
        ("message", {"text": "x", "attachments": [{"path": "a\x1b", "size": 2048}]}, r"says: x [attached: a\x1b (2.0KiB)]"),
        ("message", {"author": "ann"}, "says something"),
        ("run.queued", {}, "queued"),
        ("run.queued", {"reason": "redriven by hand"}, "queued: redriven by hand"),
        ("run.redriven", {"attempt": 2}, "restarted (attempt 2)"),
        ("run.redriven", {"attempt": 1}, "tried again by hand"),
        ("step.begun", {"n": 1, "tool": "shell", "arguments": {"timeout": 5, "command": "ls"}}, "step 1: shell ls"),
        ("step.begun", {"n": 1}, "step 1"),
        ("step.ended", {"n": 1, "result": {"exit_code": 3}}, "step 1 ended, exit code 3"),
        ("step.ended", {"n": 1, "result": {"exit_code": 0}}, "step 1 ended"),
        ("reply", {}, "the agent replies"),
        ("run.detail", {"code": "diverged", "message": "step 2"}, "why: diverged: step 2"),
        ("run.ended", {"state": "completed", "reason": "", "message": ""}, "the turn ended: completed"),
        ("run.ended", {"state": "failed", "reason": "deadline", "message": "too long"}, "the turn ended: failed: deadline: too long"),
        ("run.ended", {"state": "cancelled", "reason": "cancelled", "message": "it was cancelled"}, "the turn ended: cancelled"),
        ("run.ended", {"state": "cancelled", "reason": "user_removed", "message": "the user was removed"}, "the turn ended: cancelled: user_removed: the user was removed"),
        ("run.ended", {"state": "failed", "reason": "failed", "message": "it broke down"}, "the turn ended: failed: it broke down"),
        ("run.ended", {}, "the turn ended: ?"),
        ("member.added", {"user": "bob"}, "bob is a member now"),
        ("member.removed", {"user": "bob"}, "bob is no member any more"),
        ("break_glass", {"by": "socket:0", "until": "10:00", "reason": "why not"}, "an operator (socket:0) opened this thread's text until 10:00: why not"),
        ("from.tomorrow", {"a": 1}, "from.tomorrow {'a': 1}"),
    ],
)  # fmt: skip
def test_what_is_said(kind: str, body: dict[str, Any], wanted: str) -> None:
    assert words(kind, **body) == wanted


def test_every_kind_has_words() -> None:
    assert set(event_words._WORDS) == {kind.value for kind in EventKind}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["text", "steer", "n", "tool", "arguments", "result", "state", "reason", "message", "user"])


@given(st.sampled_from([kind.value for kind in EventKind]), st.dictionaries(NAMES, VALUES, max_size=6))
def test_whatever_a_body_has_it_is_one_printable_line(kind: str, body: dict[str, Any]) -> None:
    shown = event_words.line({"cursor": 1, "kind": kind, "at": "2026", "actor": "a\x1b", "body": body})
    assert shown.isprintable()
