"""Pure parts of the engine: run_start."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from ringfence.host.engine.run_start import TAIL_BYTES, conversation, next_step, tail
from ringfence.host.kernel.errors import TooLarge
from ringfence.host.kernel.ids import MessageId, RunId, ThreadId, TurnId, UserId
from ringfence.host.kernel.runs import Effect, Step, StepState
from ringfence.host.kernel.threads import Message

MADE = datetime(2026, 1, 1, tzinfo=UTC)


def message(cursor: int, turn: str, text: str = "", author: str | None = "alice") -> Message:
    who = UserId(author) if author else None
    return Message(MessageId(f"m{cursor}"), ThreadId("t"), TurnId(turn), who, author or "agent", text, cursor, MADE)


def step(n: int, state: StepState) -> Step:
    return Step(RunId("r"), n, "shell", {}, "", Effect.LOCAL, state, None, MADE, None)


def test_its_own_message_is_last_and_later_ones_are_left_out() -> None:
    messages = [
        message(1, "a"),
        message(2, "b"),
        message(3, "c"),
        message(4, "a", author=None),  # the reply to a, which came after b was posted
        message(5, "c", author=None),  # of a turn that is later than b
    ]
    assert [m.cursor for m in conversation(messages, TurnId("b"))] == [1, 4, 2]
    assert [m.cursor for m in conversation(messages, TurnId("a"))] == [1]
    assert [m.cursor for m in conversation(messages, TurnId("c"))] == [1, 2, 4, 3]


def test_an_attempt_after_the_reply_was_lost_sees_no_reply_of_its_own() -> None:
    messages = [message(1, "a"), message(2, "a", "mine", author=None)]
    assert [m.cursor for m in conversation(messages, TurnId("a"))] == [1]


def test_the_tail_is_bounded_and_its_own_message_always_there() -> None:
    many = [message(n, f"t{n}", "x" * 10_000) for n in range(1, 101)]
    got = tail(many, 1 << 20, may_cut=False)
    assert got[-1]["cursor"] == 100
    assert sum(len(m["text"]) for m in got) <= TAIL_BYTES
    assert [m["cursor"] for m in got] == list(range(101 - len(got), 101))
    assert len(got) == TAIL_BYTES // 10_000
    narrow = tail(many, 25_000, may_cut=False)
    assert len(json.dumps(narrow)) <= 25_000 + 2
    assert tail(many, 10_200, may_cut=False)[0]["cursor"] == 100


def test_a_message_that_does_not_fit_is_an_error_or_cut() -> None:
    own = [message(1, "a", "\x01" * 50_000)]
    with pytest.raises(TooLarge, match="300002 bytes as JSON"):
        tail(own, 100_000, may_cut=False)
    [cut] = tail(own, 100_000, may_cut=True)
    assert 0 < len(json.dumps(cut)) <= 100_000


def test_the_next_step_is_the_first_without_an_end() -> None:
    ended, begun, gone = StepState.ENDED, StepState.BEGUN, StepState.INTERRUPTED
    assert next_step([]) == 1
    assert next_step([step(1, ended), step(2, gone)]) == 3
    assert next_step([step(1, ended), step(2, begun)]) == 2
