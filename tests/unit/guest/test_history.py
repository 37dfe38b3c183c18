"""How much of the thread a run is shown, and what becomes of it and of the run's results when the room ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringfence.guest import compaction, history
from ringfence.guest.asks import RunFailed
from ringfence.guest.conversation import SUMMARY, State, fresh
from ringfence.guest.loop import AskError
from tests.support.loop_host import Chat, LoopHost, calls, is_summary, pairs, said, says, scripted, shell


def long_thread(count: int, size: int, author: str = "bob") -> list[dict[str, Any]]:
    return [said(n, f"message {n} " + "x" * size, author) for n in range(1, count + 1)]


def shown(host: LoopHost) -> list[str]:
    """The thread before the turn's own message, in the last call of the model."""
    texts = [m["text"] for m in host.shown[-1]]
    return texts[1 : texts.index("alice: go")]


def finished(host: LoopHost) -> LoopHost:
    assert host.attempt()
    return host


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_are_a_quarter_of_the_bytes_rounded_up() -> None:
    assert [compaction.text_tokens(text) for text in ("", "a", "aaaa", "aaaaa", "éé", "日本")] == [0, 1, 1, 2, 1, 2]


def test_an_estimate_is_corrected_upward_only_and_within_reason() -> None:
    counted = [None, *({"input_tokens": n, "output_tokens": 0} for n in (0, 100, 150, 10**9))]
    assert [compaction.corrected(100, usage) for usage in counted] == [1000, 1000, 1000, 1500, 4000]


def test_what_the_provider_counts_brings_compaction_forward() -> None:
    def run(usage: int) -> LoopHost:
        answer = {**calls(shell("a")), "usage": {"input_tokens": usage, "output_tokens": 1}}
        return finished(LoopHost(scripted(answer, says("done")), thread=long_thread(10, 4000), window=25_000))

    assert run(10_000).events == []
    assert run(30_000).events == [history.EVENT]


def test_a_text_is_shortened_in_its_middle_on_whole_characters() -> None:
    text = compaction.shortened("é" * 1000, 200)
    assert len(text.encode()) <= 200
    assert text.startswith("éé") and text.endswith("éé")
    assert "bytes left out" in text
    assert compaction.shortened("abc", 3) == "abc"


# --- the beginning ---------------------------------------------------------------------------------------------------


def test_older_messages_are_paged_in_while_half_of_the_window_has_room() -> None:
    host = finished(LoopHost(scripted(says("x")), thread=long_thread(300, 200), tail=10, window=20_000))
    found = shown(host)
    used = sum(compaction.text_tokens(text) + compaction.OVERHEAD for text in found)
    assert 9_000 < used <= 10_000
    assert [text.split()[2] for text in found] == [str(n) for n in range(301 - len(found), 301)]
    assert "Older messages of this thread are not shown" in host.shown[-1][0]["text"]


def test_a_whole_thread_in_several_pages_leaves_nothing_out() -> None:
    host = finished(LoopHost(scripted(says("x")), thread=long_thread(450, 20), tail=10, window=100_000))
    assert [text.split()[2] for text in shown(host)] == [str(n) for n in range(1, 451)]
    assert [p["before"] for method, p in host.asks if method == "thread.read"] == [441, 241, 41]
    assert "Older messages" not in host.shown[-1][0]["text"]


def test_a_summary_stands_in_front_and_is_not_paged_behind() -> None:
    host = LoopHost(scripted(says("x")), thread=long_thread(30, 20), tail=5)
    host.summary = {"cursor": 20, "text": "all was well"}
    found = shown(finished(host))
    assert found[0] == f"{SUMMARY}all was well"
    assert [text.split()[2] for text in found[1:]] == [str(n) for n in range(21, 31)]
    assert host.shown[-1][1]["role"] == "assistant"


# --- the room ends: the thread ---------------------------------------------------------------------------------------


def test_a_thread_beyond_70_percent_becomes_a_summary_in_pieces() -> None:
    host = finished(LoopHost(scripted(says("done")), thread=long_thread(40, 1000), window=5_000))
    summaries = [messages for messages in host.shown if is_summary(messages)]
    assert len(summaries) > 2
    assert all(compaction.total(messages) < 5_000 for messages in summaries)
    assert all(m["text"].startswith(SUMMARY) for m in [messages[1] for messages in summaries[1:]])
    assert host.summary is not None
    assert host.summary["text"] == shown(host)[0].removeprefix(SUMMARY)
    assert host.reply == "done"
    assert len(shown(host)) < 10
    assert host.events == [history.EVENT]


def test_a_summary_is_made_of_messages_and_never_of_steps() -> None:
    secret = "the result that is alice's own"
    host = finished(
        LoopHost(
            scripted(calls(shell("a")), says("done")),
            thread=long_thread(20, 2000),
            window=15_000,
            result=lambda n, arguments: {"ok": True, "stdout": secret + "y" * 20_000},
        )
    )
    summaries = [json.dumps(messages) for messages in host.shown if is_summary(messages)]
    assert summaries
    assert not any(secret in text or 'tool_call_id": "' in text for text in summaries)
    assert secret in json.dumps(host.shown[-1]), "control: the model that works has seen it"
    assert shown(host)[0].startswith(f"{SUMMARY}SUMMARY of ")


def test_a_reply_that_came_after_the_turns_own_message_is_not_counted_as_summarised() -> None:
    """In a parallel thread a reply to an earlier turn may have a later cursor; the summary's must be before the own."""
    thread = [*long_thread(15, 2000), said(1500, "late reply " + "x" * 2000, "ringfence"), said(16, "hi", "bob")]
    host = finished(LoopHost(scripted(says("done")), thread=thread, window=8_000))
    assert host.summary is not None
    assert 1 < host.summary["cursor"] < host.own["cursor"]
    start = {"actor": "alice", "messages": [said(1000, "go")], "summary": {"cursor": 7, "text": "S"}}
    late = [said(8, "x", "bob"), said(1500, "late", "ringfence"), said(9, "y", "bob")]
    state = fresh(start, ["alice"], late, False, "SYSTEM")
    assert state.summarised(2, "T") == 8
    assert state.cursors == [9]
    assert state.summarised(1, "U") == 9
    late = [said(1500, "late", "ringfence")]
    state = fresh(start | {"summary": None}, ["alice"], late, False, "SYSTEM")
    assert state.summarised(1, "T") == 0, "no summary to be kept"
    assert [m["text"] for m in state.messages] == ["SYSTEM", f"{SUMMARY}T", "alice: go"]
    assert state.messages[state.head]["text"] == "alice: go"


def test_a_summary_says_that_older_messages_are_not_in_it() -> None:
    answers = [calls(shell("a")), says("done")]
    result = {"ok": True, "stdout": "x" * 20_000}
    host = LoopHost(scripted(*answers), thread=long_thread(300, 200), window=12_000, result=lambda n, arguments: result)
    assert host.attempt()
    assert host.summary is not None
    assert host.summary["text"].startswith(history.NOT_ALL)


def test_a_model_without_a_summary_and_a_host_that_keeps_none_do_not_end_the_run() -> None:
    def silent(messages: list[Chat], tools: list[dict[str, Any]]) -> dict[str, Any]:
        return says("" if is_summary(messages) else "done")

    host = finished(LoopHost(silent, thread=long_thread(20, 2000), window=10_000))
    assert "of which there is no summary" in shown(host)[0]
    assert host.summary is None
    host = LoopHost(scripted(says("done")), thread=long_thread(20, 2000), window=10_000)
    host.errors = {"thread.summarise": [AskError("conflict", "no")], "run.event": [AskError("too_many", "no")]}
    assert finished(host).reply == "done"


def test_a_summary_is_at_most_64_kib() -> None:
    def generate(messages: list[Chat], tools: list[dict[str, Any]]) -> dict[str, Any]:
        return says("é" * 200_000 if is_summary(messages) else "done")

    host = finished(LoopHost(generate, thread=long_thread(30, 40_000), window=400_000))
    assert host.summary is not None
    assert len(host.summary["text"].encode()) <= 64 * 1024


# --- the room ends: results ------------------------------------------------------------------------------------------


def test_the_oldest_results_go_and_the_newest_stay() -> None:
    host = finished(
        LoopHost(
            scripted(*[calls(shell(f"{n}"), shell(f"{n}b")) for n in range(6)], says("done")),
            window=30_000,
            result=lambda n, arguments: {"ok": True, "stdout": f"<{n}>" * 3000},
        )
    )
    results = [m["text"] for m in host.shown[-1] if m["role"] == "tool"]
    assert len(results) == 12
    assert results[0] == compaction.DROPPED
    assert compaction.DROPPED not in results[-4:]
    kept = [text for text in results if text != compaction.DROPPED]
    assert kept == results[-len(kept) :]


def test_a_newest_result_that_is_too_large_is_cut() -> None:
    host = finished(
        LoopHost(
            scripted(calls(shell("a")), says("done")),
            window=10_000,
            result=lambda n, arguments: {"ok": True, "stdout": "x" * 100_000},
        )
    )
    assert "left out to make room" in host.shown[-1][-1]["text"]
    assert compaction.total(host.shown[-1]) < 7_000


def test_long_arguments_of_older_calls_are_cut_and_stay_with_their_results() -> None:
    write = ("shell", {"command": "x" * 20_000})
    host = finished(LoopHost(scripted(calls(write), calls(write), calls(shell("a")), says("done")), window=15_000))
    made = [m["tool_calls"][0]["arguments"]["command"] for m in host.shown[-1] if m["tool_calls"]]
    assert len(made[0]) <= compaction.SHORT
    assert host.journal[1][1] == write[1], "what was done is in the journal as it was"


def test_a_message_that_is_larger_than_the_model_fails_the_run() -> None:
    host = LoopHost(scripted(says("x")), own=said(1000, "x" * 50_000), window=10_000)
    with pytest.raises(RunFailed) as failure:
        host.attempt()
    assert failure.value.code == "too_large"
    assert "the model takes 10000" in failure.value.message


# --- pure ------------------------------------------------------------------------------------------------------------


def state_of(results: int) -> State:
    start = {"actor": "alice", "messages": [said(9, "go")], "summary": None}
    state = fresh(start, ["alice", "bob"], long_thread(4, 100), False, "SYSTEM")
    for n in range(results):
        state.messages.append({**calls(shell("c" * 900)), "role": "assistant", "tool_call_id": None})
        call = state.waiting()
        assert call is not None
        state.result(call, f"{n}" * 1000)
    return state


@pytest.mark.parametrize("room", range(0, 6000, 250))
def test_pairs_stay_whole_however_much_is_dropped(room: int) -> None:
    state = state_of(8)
    before = [(m["role"], [c["id"] for c in m["tool_calls"]], m["tool_call_id"]) for m in state.messages]
    used = compaction.drop_results(state, room, compaction.total(state.messages))
    assert [(m["role"], [c["id"] for c in m["tool_calls"]], m["tool_call_id"]) for m in state.messages] == before
    pairs(state.messages)
    assert used == compaction.total(state.messages)
    assert state.messages[-1]["text"] == "7" * 1000


def test_a_summary_takes_the_place_of_what_it_is_of() -> None:
    state = state_of(1)
    own = state.messages[state.head]
    assert state.summarised(3, "S") == 3
    assert [m["text"][:20] for m in state.messages[:3]] == ["SYSTEM", SUMMARY[:20], "bob: message 4 xxxxx"]
    assert state.messages[state.head] is own
    assert state.summarised(1, "T") == 4
    assert state.messages[1]["text"] == f"{SUMMARY}T"
    assert state.messages[state.head] is own
    assert (state.begin, state.cursors) == (2, [])


def test_an_unsent_answer_is_found_after_a_summary() -> None:
    state = state_of(0)
    state.write("part")
    state.summarised(4, "S")
    assert state.pieces == ["part"]
    state.drop_draft()
    assert [m["text"] for m in state.messages] == ["SYSTEM", f"{SUMMARY}S", "alice: go"]
