"""The ends of the native loop: answers, continuations, silence, deadlines, guards, and a model that fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringfence.guest import asking, guard, native
from ringfence.guest.asks import RunFailed
from ringfence.guest.conversation import STEERED
from ringfence.guest.loop import AskError
from tests.support.loop_host import Chat, LoopHost, calls, said, says, scripted, shell


def finished(host: LoopHost) -> str:
    assert host.attempt()
    assert host.reply is not None
    return host.reply


def fails(host: LoopHost) -> RunFailed:
    with pytest.raises(RunFailed) as failure:
        host.attempt()
    return failure.value


def results(host: LoopHost) -> list[dict[str, Any]]:
    return [json.loads(m["text"]) for m in host.shown[-1] if m["role"] == "tool"]


def test_the_model_sees_the_thread_the_posture_and_the_results() -> None:
    thread = [said(1, "who?", "bob"), said(2, "me", "ringfence")]
    host = LoopHost(scripted(calls(shell("a"), ("fly", {})), says("done")), thread=thread)
    assert finished(host) == "done"
    messages = host.shown[-1]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "tool", "tool"]
    assert messages[0]["text"].endswith("POSTURE")
    assert "box of alice" in messages[0]["text"]
    assert [m["text"] for m in messages[1:4]] == ["bob: who?", "me", "alice: go"]
    assert [m["tool_call_id"] for m in messages[5:]] == ["c0", "c1"]
    assert "there is no tool 'fly'" in results(host)[1]["error"]
    assert list(host.journal) == [1]


def test_every_tool_is_offered_with_a_schema() -> None:
    offered: list[list[dict[str, Any]]] = []

    def generate(messages: list[Chat], tools: list[dict[str, Any]]) -> dict[str, Any]:
        offered.append(tools)
        return says("done")

    finished(LoopHost(generate))
    assert [tool["name"] for tool in offered[0]] == ["shell", "read", "write", "edit", "list", "search"]
    assert all(tool["parameters"]["type"] == "object" and tool["description"] for tool in offered[0])


def test_a_thread_that_ends_with_the_agent_is_no_turn() -> None:
    assert fails(LoopHost(scripted(says("x")), own=said(5, "earlier", "ringfence"))).code == "invalid"


BAD = ["", "{}", "[]", "null", '{"v":1,"messages":[],"step":0,"calls":0}', '{"v":2}', '{"v":2,"messages":[1,2]}']


@pytest.mark.parametrize(
    "checkpoint", [*BAD, '{"v":2,"messages":[{"a":1,"b":1,"c":1,"d":1},{"a":1,"b":1,"c":1,"d":1}]}']
)
def test_a_checkpoint_that_is_none_of_ours_fails_the_run(checkpoint: str) -> None:
    host = LoopHost(scripted(says("x")))
    host.checkpoint = checkpoint
    assert fails(host).code == "incompatible"


# --- answers ---------------------------------------------------------------------------------------------------------


def test_an_answer_that_was_cut_off_is_gone_on_with_and_joined() -> None:
    host = LoopHost(scripted(says("one ", "length"), says("two ", "length"), says("three")))
    assert finished(host) == "one two three"
    assert "Go on exactly where you stopped" in host.shown[-1][-1]["text"]


def test_four_continuations_are_the_most() -> None:
    host = LoopHost(scripted(says("x", "length")))
    assert finished(host) == "xxxxx\n[cut: the model came to its limit 5 times]"
    assert len(host.calls) == 5


def test_a_continuation_that_becomes_work_is_not_part_of_the_reply() -> None:
    host = LoopHost(scripted(says("I will ", "length"), calls(shell("a")), says("done")))
    assert finished(host) == "done"
    assert list(host.journal) == [1]


def test_nothing_to_go_on_with_ends_an_answer() -> None:
    assert finished(LoopHost(scripted(says("one", "length"), says("")))) == "one"


def test_silence_is_asked_about_twice() -> None:
    assert finished(LoopHost(scripted(says(""), says(" \n"), says("done")))) == "done"
    host = LoopHost(scripted(says("")))
    assert fails(host).code == "empty_reply"
    assert len(host.calls) == 3
    assert sum("without an answer" in m["text"] for m in host.shown[-1]) == 2


def test_silence_is_counted_in_a_row() -> None:
    answers = [says(""), says(""), calls(shell("a")), says(""), says(""), says("done")]
    assert finished(LoopHost(scripted(*answers))) == "done"


def test_a_reply_is_cut_at_its_limit_on_a_whole_character() -> None:
    text = finished(LoopHost(scripted(says("é" * 200_000))))
    assert len(text.encode()) <= native.MAX_TEXT
    assert text.endswith("[cut at 256 KiB]")
    assert set(text.split("\n")[0]) == {"é"}


def test_a_reply_of_control_characters_fits_into_a_frame() -> None:
    text = finished(LoopHost(scripted(says("\x01" * 250_000))))
    assert 500_000 < len(json.dumps(text)) < 1024 * 1024
    assert text.endswith("[cut at 160 KiB]")


def test_what_was_never_sent_was_never_said() -> None:
    """An answer that its actor overtook is not shown to the model again: it answers all of it."""
    host = LoopHost(scripted(says("4")), steers=[(1, said(1001, "and 3 + 3?"), 0)])
    assert finished(host) == "4"
    assert [m["text"] for m in host.shown[-1][1:]] == ["alice: go", f"[{STEERED}]", "alice: and 3 + 3?"]


def test_a_steer_that_is_told_out_of_order_does_not_hide_the_one_before_it() -> None:
    first, second = said(1001, "first"), said(1002, "second")
    host = LoopHost(scripted(calls(shell("a")), says("done")), steers=[(1, first, 0), (1, second, 1)])
    finished(host)
    assert [m["text"] for m in host.shown[-1] if m["role"] == "user"] == ["alice: go", "alice: second", "alice: first"]
    assert [p["seen"] for method, p in host.asks if method == "run.finish"] == [1000, 1002]


# --- the time is over ------------------------------------------------------------------------------------------------


def wound_down(at: int) -> tuple[LoopHost, list[int]]:
    """A loop that is told before its `at`-th ask; with how many tools each call of the model was made."""
    offered: list[int] = []

    def generate(messages: list[Chat], tools: list[dict[str, Any]]) -> dict[str, Any]:
        offered.append(len(tools))
        return calls(shell("a"), shell("b"), text="so far") if tools else says("that is all")

    host = LoopHost(generate)
    host.wind_down_at = at
    return host, offered


def test_at_the_soft_deadline_the_model_is_asked_once_more_without_tools() -> None:
    host, offered = wound_down(4)  # in the second step
    assert finished(host) == "that is all"
    assert offered == [6, 0]
    assert list(host.journal) == [1, 2]
    assert "Begin nothing new" in host.shown[-1][-1]["text"]


def test_at_the_soft_deadline_no_step_begins() -> None:
    host, _ = wound_down(3)  # in the first step
    finished(host)
    assert list(host.journal) == [1]
    assert [result["ok"] for result in results(host)] == [True, False]


def test_a_deadline_survives_the_loop_that_was_told_of_it() -> None:
    host, offered = wound_down(4)
    assert not host.attempt((6, True))  # in the call without tools
    host.wind_down_at = 0
    assert finished(host) == "that is all"
    assert offered == [6, 0, 0]


def test_a_step_that_was_done_is_told_of_after_the_deadline_too() -> None:
    host, _ = wound_down(0)
    assert not host.attempt((4, True))  # both steps are in the journal, no checkpoint has their results
    host.wind_down_at = 1
    host.errors["step.begin"] = []
    real = host.news

    def early() -> list[tuple[str, dict[str, Any]]]:
        return [*real(), ("wind_down", {"seconds": 60})]

    host.news = early  # type: ignore[method-assign]
    assert finished(host) == "that is all"
    assert [result["n"] for result in results(host)] == [1, 2]


def test_a_model_that_calls_tools_nobody_offered_is_not_obeyed() -> None:
    host = LoopHost(lambda messages, tools: calls(shell("a"), text="so far"))
    host.wind_down_at = 1
    assert finished(host) == "so far"
    assert not host.journal


def hung_until_told(at: int) -> LoopHost:
    """Its model has no answer to call `at` by the soft deadline."""
    host, _ = wound_down(0)
    host.soft_at = at
    return host


@pytest.mark.parametrize("at", [1, 2])
def test_a_call_that_the_soft_deadline_ended_is_made_anew_without_tools(at: int) -> None:
    host = hung_until_told(at)
    assert finished(host) == "that is all"
    asked = [(p["call"], len(p["tools"])) for method, p in host.asks if method == "model.generate"]
    assert asked == [(n, 6) for n in range(1, at + 1)] + [(at, 0)]
    assert "Begin nothing new" in host.shown[-1][-1]["text"]
    before = [method for method, _ in host.asks]
    assert before[before.index("run.finish") - 2] == "checkpoint.save", "the call is made from a checkpoint"


def test_an_unavailable_model_is_not_waited_for_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told between two tries, and even during the last one."""
    monkeypatch.setattr(asking, "RETRY_SECONDS", 0)
    for tries in range(1, asking.MODEL_TRIES + 1):
        host, offered = wound_down(tries)
        host.errors["model.generate"] = [AskError("unavailable", "why")] * tries
        assert finished(host) == "that is all"
        assert offered == [0]
        tools = [len(p["tools"]) for method, p in host.asks if method == "model.generate"]
        assert tools == [6] * tries + [0]


def test_what_is_said_between_two_tries_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "RETRY_SECONDS", 0)
    host = LoopHost(scripted(says("done")))
    host.errors["model.generate"] = [AskError("unavailable", "why")]
    message, real, looks = said(1010, "and this"), host.news, []

    def told() -> list[tuple[str, dict[str, Any]]]:
        looks.append(1)
        return [*real(), ("steer", {"message": message})] if len(looks) == 2 else real()

    host.news = told  # type: ignore[method-assign]
    host.turn = [message]
    host.start = lambda start=host.start: {**start(), "steers": []}  # type: ignore[method-assign,misc]
    assert finished(host) == "done"
    assert [m["text"] for m in host.shown[-1] if m["role"] == "user"] == ["alice: go", "alice: and this"]


def test_a_model_that_refuses_ends_the_run_whatever_the_time_is() -> None:
    host, _ = wound_down(1)
    host.errors["model.generate"] = [AskError("refused", "why")]
    assert fails(host).code == "refused"


# --- guards ----------------------------------------------------------------------------------------------------------


def test_the_same_call_with_the_same_result_is_told_and_then_ended() -> None:
    host = LoopHost(scripted(calls(shell("a"))), result=lambda n, arguments: {"ok": True, "duration_ms": n})
    assert fails(host).code == "loop_guard"
    assert list(host.journal) == list(range(1, guard.ENDED_AT + 1))
    notes = [result.get("note", "") for result in results(host)]
    assert [bool(note) for note in notes] == [False] * 4 + [True] * 3
    assert "5 times in a row" in notes[4]


def test_another_result_begins_the_count_anew() -> None:
    host = LoopHost(
        scripted(*[calls(shell("a"))] * 20, says("done")), result=lambda n, arguments: {"ok": True, "n": n // 7}
    )
    assert finished(host) == "done"


def test_the_guards_count_over_redrives() -> None:
    host = LoopHost(scripted(calls(shell("a"))), result=lambda n, arguments: {"ok": True})
    assert not host.attempt((18, True))
    assert fails(host).code == "loop_guard"
    assert len(host.journal) == guard.ENDED_AT


def test_the_calls_of_the_model_are_bounded() -> None:
    host = LoopHost(scripted(calls(shell("a"))))
    assert fails(host).code == "loop_guard"
    assert host.calls == list(range(1, asking.MAX_MODEL_CALLS + 1))


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "tries"), [("unavailable", 4), ("refused", 1), ("failed", 1), ("invalid", 1)])
def test_only_an_unavailable_model_is_asked_again(monkeypatch: pytest.MonkeyPatch, code: str, tries: int) -> None:
    monkeypatch.setattr(asking, "RETRY_SECONDS", 0)
    host = LoopHost(scripted(says("x")))
    host.errors["model.generate"] = [AskError(code, "why")] * 4
    failure = fails(host)
    asks = [p for method, p in host.asks if method == "model.generate"]
    assert (failure.code, failure.message, len(asks)) == (code, "why", tries)
    assert {p["call"] for p in asks} == {1}


def test_a_model_that_is_there_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "RETRY_SECONDS", 0)
    host = LoopHost(scripted(says("x")))
    host.errors["model.generate"] = [AskError("unavailable", "why")] * 3
    assert finished(host) == "x"


@pytest.mark.parametrize("method", ["model.generate", "checkpoint.save", "step.begin", "run.finish"])
def test_a_spent_budget_ends_the_run_with_that_code(method: str) -> None:
    host = LoopHost(scripted(calls(shell("a")), says("x")))
    host.errors[method] = [AskError("budget_exhausted", "why")]
    with pytest.raises((RunFailed, AskError)) as failure:
        host.attempt()
    assert getattr(failure.value, "code", "") == "budget_exhausted"


@pytest.mark.parametrize(
    "made",
    [
        ("shell", {}),
        ("shell", {"command": 1}),
        ("shell", {"command": "x", "timeout": 0}),
        ("shell", {"command": "x", "cmd": "y"}),
        ("read", {"path": "f", "offset": True}),
        ("write", {"path": "f", "text": "x" * 300_000}),
        ("shell", {"command": {"a": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}}),
        ("shell", {"command": "x", "more": [[]] * 1000}),
        ("", {}),
        ("sh\0ell" * 1000, {}),
    ],
)
def test_a_call_that_makes_no_sense_is_a_result_and_no_step(made: tuple[str, dict[str, Any]]) -> None:
    host = LoopHost(scripted(calls(made), says("done")))
    assert finished(host) == "done"
    assert results(host)[0]["ok"] is False
    assert not host.journal
    assert len(json.dumps(host.shown[-1])) < 10_000


@pytest.mark.parametrize(
    ("arguments", "had"),
    [
        ({"command": "x" * 300_000}, "300014 bytes as JSON, 1 levels and 1 values"),
        ({"command": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}, "45 bytes as JSON, 17 levels and 17 values"),
        ({"command": [1] * 1000}, "2013 bytes as JSON, 2 levels and 1001 values"),
    ],
)
def test_what_was_left_out_of_a_call_is_told_in_words(arguments: dict[str, Any], had: str) -> None:
    host = LoopHost(scripted(calls(("shell", arguments), ("fly", arguments)), says("done")))
    assert finished(host) == "done"
    first, second = (result["error"] for result in results(host))
    assert first == (
        f"the arguments of shell were left out and nothing was carried out: they had {had}; "
        "the limits are 196608, 16 and 1000; do it in smaller pieces"
    )
    assert "there is no tool 'fly'" in second


def test_a_step_that_is_refused_is_told() -> None:
    host = LoopHost(scripted(calls(shell("a")), says("done")))
    host._step_begin = lambda p: {"decision": "refused", "result": None, "reason": "no"}  # type: ignore[method-assign]
    finished(host)
    assert results(host) == [{"ok": False, "error": "refused: no"}]
