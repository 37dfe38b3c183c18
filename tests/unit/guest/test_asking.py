"""A large conversation in blobs: saved, restored, asked about, and never larger than the wire takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ringfence.guest import asking
from ringfence.guest.asking import restored
from ringfence.guest.asks import RunFailed
from ringfence.guest.conversation import State, fresh
from ringfence.wire import messages as wire
from tests.support.loop_host import Chat, LoopHost, calls, said, says, scripted, shell


def large(answers: int = 4, window: int = 4_000_000) -> LoopHost:
    made = [calls(shell("a"), shell("b"), shell("c")) for _ in range(answers)]
    return LoopHost(
        scripted(*made, says("done")),
        window=window,
        result=lambda n, arguments: {"ok": True, "stdout": f'{n}"' * 100_000},
    )


def saved_with_a_blob(answers: int) -> LoopHost:
    """A loop that was killed after its first such checkpoint."""
    whole = large(answers)
    assert whole.attempt()
    saves = [n for n, (method, p) in enumerate(whole.asks, 1) if method == "checkpoint.save" and p["blobs"]]
    host = large(answers)
    assert not host.attempt((saves[0], True))
    return host


def test_the_bounds_are_those_of_the_wire() -> None:
    assert (asking.CHUNK, asking.MAX_BLOB) == (wire.BLOB_CHUNK, wire.MAX_BLOB)


def test_a_small_conversation_needs_no_blob() -> None:
    host = LoopHost(scripted(calls(shell("a")), says("done")))
    assert host.attempt()
    assert not [method for method, _ in host.asks if method.startswith("blob.")]


def test_a_large_one_is_one_blob_for_each_call_of_the_model() -> None:
    host = large()
    assert host.attempt()
    assert host.reply == "done"
    blobs = [p["blob"] for method, p in host.asks if method == "model.generate" and p["blob"]]
    assert len(set(blobs)) == len(blobs) == 4
    put = {p["blob"] for method, p in host.asks if method == "blob.put"}
    assert put == set(blobs), "what a call adds is put as a tail"
    saved = [p for method, p in host.asks if method == "checkpoint.save" and p["blobs"]]
    assert all(len(p["state"]) < 10_000 for p in saved)
    assert [blob for p in saved for blob in p["blobs"]] == blobs[:-1], "the last call's answer needs no checkpoint"


def test_what_is_saved_is_what_is_restored() -> None:
    host = saved_with_a_blob(2)
    assert host.checkpoint is not None
    state, base = restored(host.checkpoint, host)
    assert base is not None
    assert state.messages[: base[1]] == host.shown[-1]
    assert host.attempt()
    assert host.reply == "done"


def test_each_call_is_made_from_a_checkpoint_and_the_results_of_steps_since() -> None:
    """Also when results that an earlier blob had were dropped meanwhile: then from one that has just what is asked."""
    made = [calls(shell(f"{n}")) for n in range(20)]
    result = {"ok": True, "stdout": "x" * 60_000}
    host = LoopHost(scripted(*made, says("done")), window=300_000, result=lambda n, arguments: result | {"n": n})
    generate = host.generate
    since: list[int] = []

    def compare(messages: list[Chat], tools: list[dict[str, Any]]) -> dict[str, Any]:
        if host.checkpoint is not None:
            kept = restored(host.checkpoint, host)[0].messages
            assert messages[: len(kept)] == kept
            assert all(message["role"] == "tool" for message in messages[len(kept) :])
            since.append(len(messages) - len(kept))
        else:
            assert not since, "what run.start gives needs no checkpoint"
        return generate(messages, tools)

    host.generate = compare
    assert host.attempt()
    assert len(host.calls) == 21 and len(since) == 20
    assert set(since) == {0, 1} and since.count(0) == len(host.events), "saved when room was made, and only then"


def fresh_state() -> State:
    before, own = said(1, "before", "bob"), said(2, "go")
    start = {"actor": "alice", "summary": None, "messages": [before, own]}
    return fresh(start, ["alice", "bob"], [before], False, "SYSTEM")


CHANGES: dict[str, Callable[[State], object]] = {
    "a note": lambda state: state.note("a note"),
    "a message": lambda state: state.take([said(3, "and")], 0),
    "no message up to there": lambda state: state.take([], 9),
    "a piece of an answer": lambda state: state.write("one"),
    "the soft deadline": lambda state: setattr(state, "wound", True),
    "a call of the model": lambda state: setattr(state, "calls", 1),
    "a summary": lambda state: state.summarised(1, "in short"),
    "an empty answer": lambda state: setattr(state, "empty", 1),
}


def a_result(state: State) -> None:
    state.result({"id": "c0"}, "a result")
    state.step, state.last, state.repeats = state.step + 1, "f", state.repeats + 1


@pytest.mark.parametrize("change", CHANGES)
def test_only_what_the_journal_has_leaves_a_state_that_a_new_attempt_comes_to(change: str) -> None:
    state = fresh_state()
    made = asking.Asking(LoopHost(scripted(says("x"))), state, "m", lambda: None)
    assert made.reachable()
    a_result(state)
    assert made.reachable()
    CHANGES[change](state)
    assert not made.reachable()
    a_result(state)
    assert not made.reachable()
    made.save("before_model")
    assert made.reachable()
    made.rewritten()
    assert not made.reachable()


@pytest.mark.parametrize("spoil", ["other bytes", "no json", "not a list", "absent"])
def test_a_blob_that_is_not_what_it_was_fails_the_run(spoil: str) -> None:
    host = saved_with_a_blob(2)
    (blob,) = host.blobs
    data = {"other bytes": b"[]", "no json": b"\xff", "not a list": b"{}", "absent": b""}[spoil]
    host.blobs[blob] = {0: data}
    with pytest.raises(RunFailed) as failure:
        host.attempt()
    assert failure.value.code == "incompatible"


def test_an_answer_that_is_large_itself_is_saved_too() -> None:
    write = ("shell", {"command": "x" * 150_000})
    host = LoopHost(scripted(calls(write, write, write, write), says("done")), window=4_000_000)
    assert host.attempt()
    effects = [p for method, p in host.asks if method == "checkpoint.save" and p["boundary"] == "before_effect"]
    assert effects[0]["blobs"]


def test_many_short_messages_are_too_many_keys_for_a_frame() -> None:
    thread = [said(n, "hi", "bob") for n in range(1, 900)]
    wide = [("shell", {"command": f"{call}", **{f"k{n}": n for n in range(900)}}) for call in range(8)]
    host = LoopHost(scripted(calls(*wide), says("done")), thread=thread, tail=1000, window=1_000_000)
    assert host.attempt()
    assert [bool(p["blob"]) for method, p in host.asks if method == "model.generate"] == [False, True]


def test_a_conversation_above_the_largest_blob_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_BLOB", 1_500_000)
    with pytest.raises(RunFailed) as failure:
        large().attempt()
    assert failure.value.code == "too_large"
    assert "1500000" in failure.value.message


def test_a_state_is_plain_json_and_the_same_each_time() -> None:
    one, two = LoopHost(scripted(calls(shell("a")), says("x"))), LoopHost(scripted(calls(shell("a")), says("x")))
    assert one.attempt() and two.attempt()
    assert one.asks == two.asks
    assert json.loads(one.checkpoint or "")["v"] == 2
