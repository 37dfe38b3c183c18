"""Pure parts of the engine: what a new executor is told, and the order and bounds of it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from ringfence.host.engine.history import STEER_BYTES, TAIL_BYTES, History, cut, first, newest, spoken, steer, visible
from ringfence.host.engine.run_start import Told, next_step, told
from ringfence.host.kernel.errors import TooLarge
from ringfence.host.kernel.ids import MessageId, ThreadId, TurnId, UserId
from ringfence.host.kernel.ports import Store
from ringfence.host.kernel.runs import StepState
from ringfence.host.kernel.threads import Attachment, Message, Summary

MADE = datetime(2026, 1, 1, tzinfo=UTC)
ROOM = 1 << 20


def message(cursor: int, turn: str, text: str = "", author: str | None = "alice") -> Message:
    who = UserId(author) if author else None
    return Message(MessageId(f"m{cursor}"), ThreadId("t"), TurnId(turn), who, author or "agent", text, cursor, MADE)


class Kept:
    """As much of a store as a history reads."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self.reads = self.turns = self
        self.pages = 0

    async def tail(
        self, thread: ThreadId, before: int | None, after: int, limit: int | None, size: int
    ) -> tuple[list[Message], bool]:
        """As little as it may give, but for a handful more."""
        self.pages += 1
        there = [m for m in self._messages if (before is None or m.cursor < before) and m.cursor > after]
        first = len(there)
        while first and size >= 0 and (limit is None or len(there) - first < limit):
            first -= 1
            size -= len(there[first].text)
        first = max(0, first - 3)
        return there[first:], first > 0

    async def said(self, turn: TurnId, after: int = 0) -> list[Message]:
        return [m for m in self._messages if m.turn == turn and m.author is not None and m.cursor > after]


async def tell(messages: list[Message], turn: str, room: int = ROOM, **also: Any) -> Told:
    kept = Kept(messages)
    said = await kept.said(TurnId(turn))
    history = History(cast(Store, kept), ThreadId("t"), said[0])
    return await told(history, said, also.get("summary"), room, may_cut=also.get("may_cut", False))


def cursors(items: list[dict[str, Any]]) -> list[int]:
    return [item["cursor"] for item in items]


THREAD = [
    message(1, "a"),
    message(2, "b"),
    message(3, "c"),
    message(4, "a", author=None),  # the reply to a, which came after b was posted
    message(5, "b", "a steer of b"),
    message(6, "c", author=None),  # of a turn that is later than b
    message(7, "b", "mine", author=None),  # an attempt whose reply was lost sees no reply of its own
]


@pytest.mark.parametrize(
    ("turn", "messages", "steers"), [("a", [1], []), ("b", [1, 4, 2], [5]), ("c", [1, 2, 4, 5, 7, 3], [])]
)
async def test_its_own_message_is_last_and_later_ones_are_left_out(
    turn: str, messages: list[int], steers: list[int]
) -> None:
    got = await tell(THREAD, turn)
    assert (cursors(got.messages), cursors(got.steers), got.earlier) == (messages, steers, 0)


def test_what_a_turn_may_see() -> None:
    seen = visible(THREAD, THREAD[1], {TurnId("a")})
    assert [m.cursor for m in seen] == [1, 4]


async def test_the_tail_is_bounded_and_the_rest_is_named() -> None:
    many = [message(n, f"t{n}", "x" * 10_000) for n in range(1, 101)]
    got = await tell(many, "t100")
    assert sum(len(m["text"]) for m in got.messages) <= TAIL_BYTES
    assert cursors(got.messages) == list(range(101 - TAIL_BYTES // 10_000, 101))
    assert got.earlier == got.messages[0]["cursor"]
    narrow = await tell(many, "t100", 25_000)
    assert len(json.dumps(narrow.messages)) <= 25_000
    assert cursors(narrow.messages) == [99, 100]
    assert narrow.earlier == 99


async def test_a_thread_of_tiny_messages_is_not_read_to_its_beginning() -> None:
    many = [message(n, f"t{n}", "x") for n in range(1, 30_001)]
    kept = Kept(many)
    said = await kept.said(TurnId("t30000"))
    got = await told(History(cast(Store, kept), ThreadId("t"), said[0]), said, None, ROOM, may_cut=False)
    assert len(json.dumps(got.messages)) <= ROOM
    assert 5000 < len(got.messages) < 15_000
    assert kept.pages < 300


async def test_a_message_that_does_not_fit_is_an_error_or_cut() -> None:
    own = [message(1, "a", "\x01" * 50_000)]
    with pytest.raises(TooLarge, match="300002 bytes as JSON"):
        await tell(own, "a", 100_000)
    cut_one = await tell(own, "a", 100_000, may_cut=True)
    [item] = cut_one.messages
    assert item["text"].endswith("an agent loop can be given ...]")
    assert len(json.dumps(item)) <= 100_000


async def test_messages_after_the_summary_and_what_is_between() -> None:
    many = [message(n, f"t{n}", "x" * 10_000) for n in range(1, 101)]
    brief = Summary(ThreadId("t"), UserId("alice"), 90, "in short", MADE)
    got = await tell(many, "t100", summary=brief)
    assert got.summary == {"cursor": 90, "text": "in short"}
    assert (cursors(got.messages), got.earlier) == (list(range(91, 101)), 0)
    between = await tell(many, "t100", summary=replace(brief, cursor=10))
    assert between.earlier == between.messages[0]["cursor"] > 11
    later = await tell(many, "t50", summary=brief)  # made by a turn after this one, which is tried again
    assert later.summary is None
    assert later.messages[-1]["cursor"] == 50


async def test_a_summary_or_steers_that_do_not_fit_are_left_out_and_nothing_is_lost() -> None:
    thread = [message(1, "a"), message(2, "b"), *(message(n, "b", "s" * 900) for n in range(3, 13))]
    brief = Summary(ThreadId("t"), UserId("alice"), 1, "x" * 5000, MADE)
    got = await tell(thread, "b", 4000, summary=brief)
    assert got.summary is None
    assert cursors(got.steers) == [3, 4, 5]  # the oldest: the rest comes with the answer to run.finish
    assert (cursors(got.messages), got.earlier) == ([1, 2], 0)
    assert len(json.dumps([got.summary, got.messages, got.steers])) < 4000
    tight = await tell(thread, "b", 150, summary=brief)
    assert (cursors(tight.steers), cursors(tight.messages), tight.earlier) == ([], [2], 2)


def test_a_steer_is_cut_alike_wherever_it_is_sent() -> None:
    wild = message(3, "a", "\x01" * (256 * 1024))
    assert len(json.dumps(steer(wild))) <= STEER_BYTES
    assert first([wild], ROOM) == [steer(wild)]
    assert steer(message(3, "a", "\U0001f600" * 65_536)) == spoken(message(3, "a", "\U0001f600" * 65_536))


def test_attachments_are_told_and_counted() -> None:
    paths = tuple(Attachment("\x01" * 4096, n) for n in range(20))
    one = replace(message(1, "a", "see"), attachments=paths)
    assert spoken(one)["attachments"][19] == {"path": "\x01" * 4096, "size": 19}
    assert newest([one], TAIL_BYTES, 400_000) == []
    assert cut(one, 600_000) == one


def test_the_next_step_is_the_first_without_an_end() -> None:
    ended, begun, gone = StepState.ENDED, StepState.BEGUN, StepState.INTERRUPTED
    assert next_step({}) == 1
    assert next_step({1: ended, 2: gone}) == 3
    assert next_step({1: ended, 2: begun}) == 2
