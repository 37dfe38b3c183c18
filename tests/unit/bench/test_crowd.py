"""What is wrong with the events of a turn is found: each kind of loss is shown to be one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ringfence.bench.crowd import KINDS, Answered, wrong
from ringfence.bench.watching import Seen

MARK = "r1-3"
REPLY = (
    f"$ echo {MARK} > x\n[exit code 0]\n\n$ cat x\n[exit code 0]\n{MARK}\n\n$ seq 1 1000 | wc -l\n[exit code 0]\n1000"
)


def turn(events: list[Seen]) -> Answered:
    return Answered(MARK, 10.0, "thread", "trn_1", events)


def good() -> list[Seen]:
    return [
        Seen(n, kind, "trn_1", "run_1", {"text": REPLY} if kind == "reply" else {}, 10.0 + n, 3.0)
        for n, kind in enumerate(KINDS, 1)
    ]


def test_a_turn_with_everything_has_nothing_wrong() -> None:
    assert wrong(turn(good())) == []
    assert turn(good()).whole_ms == pytest.approx(len(KINDS) * 1e3)


def lost(events: list[Seen]) -> list[Seen]:
    return events[:4] + events[5:]


def twice(events: list[Seen]) -> list[Seen]:
    return [*events[:5], events[4], *events[5:]]


def swapped(events: list[Seen]) -> list[Seen]:
    return [*events[:3], events[4], events[3], *events[5:]]


def renumbered(events: list[Seen]) -> list[Seen]:
    """A step that nobody heard of, without a gap to show for it."""
    left = [event for event in events if not event.kind.startswith("step.")]
    return [replace(event, cursor=n) for n, event in enumerate(left, 1)]


def another_reply(events: list[Seen]) -> list[Seen]:
    """That of another box."""
    return [
        replace(event, body={"text": REPLY.replace(MARK, "r1-4")}) if event.kind == "reply" else event
        for event in events
    ]


def failed_command(events: list[Seen]) -> list[Seen]:
    return [
        replace(event, body={"text": REPLY.replace("code 0", "code 1", 1)}) if event.kind == "reply" else event
        for event in events
    ]


@pytest.mark.parametrize("breaks", [lost, twice, swapped, renumbered, another_reply, failed_command])
def test_what_is_missing_or_out_of_order_is_found(breaks: Callable[[list[Seen]], list[Seen]]) -> None:
    assert wrong(turn(breaks(good())))
