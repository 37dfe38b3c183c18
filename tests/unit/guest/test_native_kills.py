"""The native loop killed before and after each of its asks: the steps, the reply and what it has heard are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ringfence.guest import asking
from tests.support.loop_host import LoopHost, calls, is_summary, said, says, scripted, shell

LATE, LATER = said(1010, "also the logs"), said(1020, "and the disk")


def plain() -> LoopHost:
    answers = [
        calls(shell("a"), shell("b")),
        calls(("fly", {}), ("shell", {"cmd": 1})),
        calls(shell("c")),
        says("done"),
    ]
    return LoopHost(scripted(*answers))


def steered() -> LoopHost:
    """Told in the wrong order, told and not told, between two calls and during the last one."""
    answers = [calls(shell("a"), shell("b")), calls(shell("c")), says("done")]
    first, second = said(1005, "first"), said(1006, "second")
    plans = [(1, first, 2), (1, second, 1), (3, LATE, 0), (4, LATER, 4)]
    return LoopHost(scripted(*answers), steers=plans)


def steered_in_order() -> LoopHost:
    answers = [calls(shell("a")), calls(shell("b")), says("done")]
    return LoopHost(scripted(*answers), steers=[(1, LATE, 1), (3, LATER, 0)])


def compacted(steers: list[tuple[int, dict[str, Any], int]] | None = None) -> LoopHost:
    """The thread becomes a summary in pieces, then the oldest results go."""
    thread = [said(n, f"message {n} " + "x" * 2000, "bob" if n % 2 else "ringfence") for n in range(1, 60)]
    answers = [calls(shell("a")), calls(shell("b")), calls(shell("c")), says("done")]
    return LoopHost(
        scripted(*answers),
        thread=thread,
        tail=7,
        window=30_000,
        result=lambda n, arguments: {"ok": True, "stdout": f"{n}" * 50_000},
        steers=steers,
    )


def large() -> LoopHost:
    """The conversation is a blob from the third call of the model on."""
    answers = [calls(shell("a"), shell("b")), calls(shell("c"), shell("d")), calls(shell("e")), says("done")]
    return LoopHost(
        scripted(*answers),
        window=2_000_000,
        result=lambda n, arguments: {"ok": True, "stdout": f"{n}" * 230_000},
    )


def compacted_and_steered() -> LoopHost:
    return compacted([(1, LATE, 1), (5, LATER, 0)])


def large_and_compacted() -> LoopHost:
    """What a blob had is dropped later: a checkpoint must not bring it back."""
    made = [calls(shell(f"{n}a"), shell(f"{n}b")) for n in range(4)]
    return LoopHost(
        scripted(*made, says("done")),
        window=300_000,
        result=lambda n, arguments: {"ok": True, "stdout": f"{n}" * 230_000},
    )


def many_calls() -> LoopHost:
    """Thirty steps of one answer, of which a new loop knows nothing but the journal; some are the same again and again,
    which it is told of with their number, also across answers."""
    same = [shell("look")] * 4
    answers = [calls(*map(shell, "abcdefghijklmnopqrstuv"), *same), calls(*same[:3]), calls(shell("z")), says("done")]
    return LoopHost(scripted(*answers), result=lambda n, arguments: {"ok": True, **arguments, "duration_ms": n})


def many_calls_steered() -> LoopHost:
    """Something else than results came since the checkpoint."""
    host = many_calls()
    host.planned = [(1, LATE, 2), (2, LATER, 0)]
    return host


def hung_after_many_calls() -> LoopHost:
    return told_to_end(many_calls(), 2)


def cut_off() -> LoopHost:
    answers = [calls(shell("a")), says("one, ", "length"), says("two, ", "length"), says("three")]
    return LoopHost(scripted(*answers), steers=[(4, LATE, 0)])


def told_to_end(host: LoopHost, call: int) -> LoopHost:
    """At the soft deadline that call has no answer: it is made anew without tools, and whatever it would have begun is not."""
    model = host.generate
    host.generate = lambda messages, tools: model(messages, tools) if tools or is_summary(messages) else says("so far")
    host.soft_at = call
    return host


def hung() -> LoopHost:
    return told_to_end(plain(), 3)


def hung_at_once() -> LoopHost:
    return told_to_end(plain(), 1)


def hung_and_steered() -> LoopHost:
    answers = [calls(shell("a")), calls(shell("b")), says("done")]
    return told_to_end(LoopHost(scripted(*answers), steers=[(1, LATE, 1), (2, LATER, 0)]), 2)


def hung_in_a_summary() -> LoopHost:
    return told_to_end(compacted(), 2)


def hung_with_a_draft() -> LoopHost:
    return told_to_end(LoopHost(scripted(calls(shell("a")), says("one, ", "length"), says("two"))), 3)


def hung_and_large() -> LoopHost:
    return told_to_end(large(), 3)


CASES: list[Callable[[], LoopHost]] = [
    plain,
    steered,
    steered_in_order,
    compacted,
    compacted_and_steered,
    large,
    large_and_compacted,
    many_calls,
    many_calls_steered,
    hung_after_many_calls,
    cut_off,
    hung,
    hung_at_once,
    hung_and_steered,
    hung_in_a_summary,
    hung_with_a_draft,
    hung_and_large,
]
MOST = 200


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is repeated is repeated at once."""
    monkeypatch.setattr(asking, "RETRY_SECONDS", 0)


def outcome(host: LoopHost) -> dict[str, Any]:
    return {"reply": host.reply, "steps": host.journal, "last": host.shown[-1], "summary": host.summary}


def heard_once(host: LoopHost) -> None:
    """Each steer is in the conversation that was answered, exactly once."""
    texts = [m["text"] for m in host.shown[-1] if m["role"] == "user"]
    for message in host.turn:
        assert texts.count(f"alice: {message['text']}") == 1
    assert len(host.turn) == len(host.planned), "all of them were said"


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("case", CASES)
def test_killed_at_any_ask_a_run_ends_the_same_way(case: Callable[[], LoopHost], done: bool) -> None:
    whole = case()
    assert whole.attempt()
    heard_once(whole)
    steps = [step[:2] for step in whole.journal.values()]
    for n in range(1, MOST):
        host = case()
        if host.attempt((n, done)):
            assert n > len(whole.asks), "it was killed at every ask"
            break
        assert host.attempt()
        heard_once(host)
        assert host.reply == whole.reply
        assert [step[:2] for step in host.journal.values()] == steps
        assert host.summary == whole.summary
        if not whole.planned:  # a steer stands where it was taken up: a call that is made again may know of it
            assert outcome(host) == outcome(whole)
    else:
        raise AssertionError("a run with more asks than the test looks at")


@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again_a_run_comes_to_its_end(case: Callable[[], LoopHost]) -> None:
    """Each loop lives a little longer than the last one, or gets no further than to its next checkpoint."""
    whole = case()
    assert whole.attempt()
    host, n = case(), 0
    while not host.attempt((n := n + 1, bool(n % 2))):
        assert n < MOST
    heard_once(host)
    assert host.reply == whole.reply
    assert host.journal == whole.journal


@pytest.mark.parametrize("case", CASES)
def test_a_call_that_is_made_again_has_the_number_of_the_first(case: Callable[[], LoopHost]) -> None:
    whole = case()
    whole.attempt()
    assert whole.calls == list(range(1, len(whole.calls) + 1))
    for n in range(1, len(whole.asks) + 1):
        host = case()
        host.attempt((n, True))
        before = len(host.calls)
        host.attempt()
        again = host.calls[before:]
        assert again == sorted(set(again)), "no number twice"
        last = host.calls[before - 1] if before else 0
        assert not again or again[0] in (last, last + 1)


def test_the_host_of_these_tests_sees_a_loop_that_forgets() -> None:
    """Control: without its checkpoint a loop hears the same, but has its model called from the start."""
    host = plain()
    host.attempt((8, True))
    host.checkpoint = None
    host.attempt()
    assert host.calls.count(1) == 2
