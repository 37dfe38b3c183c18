"""What a turn's story makes of its events."""

from __future__ import annotations

from typing import Any

from ringfence.client.saying import _Story


def told(*events: tuple[str, dict[str, Any]]) -> _Story:
    story = _Story(None)
    for cursor, (kind, body) in enumerate(events, 1):
        story.see({"kind": kind, "body": body, "cursor": cursor})
    return story


def detail(text: str) -> tuple[str, dict[str, Any]]:
    return "run.detail", {"code": "x", "message": text}


def ended(text: str) -> tuple[str, dict[str, Any]]:
    return "run.ended", {"state": "failed", "reason": "x", "message": text}


def test_why_is_the_end_and_the_words_for_the_actor() -> None:
    assert told(detail("step 1"), ended("diverged")).why == "diverged: step 1"
    assert told(ended("diverged")).why == "diverged"
    assert told(detail("step 1"), ended("")).why == "step 1"
    assert told(detail("the same"), ended("the same")).why == "the same"


def test_what_failed_before_a_redrive_by_hand_says_nothing_of_the_next_time() -> None:
    first = detail("the first time"), ended("over quota"), ("run.queued", {"reason": "redriven by hand"})
    assert told(*first, ended("too long")).why == "too long"
    assert told(*first, detail("the second time"), ended("too long")).why == "too long: the second time"


def test_live_text_is_not_the_last_durable_thing() -> None:
    story = told(ended("x"))
    story.see({"kind": "delta", "text": "late"})
    assert story.last["kind"] == "run.ended"
