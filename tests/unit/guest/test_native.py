"""The native loop against a host that is a script: deterministic, bounded, and the same again from any checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringfence.guest import native
from ringfence.guest.loop import AskError
from ringfence.guest.native import DROPPED, MAX_STATE, RunFailed, carry_out


class Script:
    """Answers like a host with a journal. Stops the loop before its `stop`-th ask."""

    def __init__(
        self, replies: list[dict[str, Any]], journal: dict[int, Any] | None = None, stop: int = 10_000
    ) -> None:
        self.replies = replies
        self.journal: dict[int, Any] = {} if journal is None else journal
        self.stop = stop
        self.asks: list[tuple[str, dict[str, Any]]] = []
        self.checkpoint: str | None = None

    def ask(self, method: str, **p: Any) -> dict[str, Any]:
        if len(self.asks) == self.stop:
            raise KeyboardInterrupt
        self.asks.append((method, json.loads(json.dumps(p))))
        if method == "model.generate":
            answer: dict[str, Any] = self.replies[sum(m["role"] == "assistant" for m in p["messages"])]
            return answer
        if method == "step.begin":
            assert p["n"] <= len(self.journal) + 1, "steps have no gaps"
            known = self.journal.setdefault(p["n"], (p["tool"], p["arguments"]))
            assert known == (p["tool"], p["arguments"]), "diverged"
            if p["tool"] == "refuse":
                return {"decision": "refused", "result": None, "reason": "no"}
            return {"decision": "done", "result": {"ok": True, "n": p["n"]}, "reason": ""}
        if method == "checkpoint.save":
            self.checkpoint = p["state"]
        return {}


def start(checkpoint: str | None = None, messages: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    user = {"role": "user", "author": "alice", "text": "go", "cursor": 1}
    return {"messages": messages or [user], "checkpoint": checkpoint, "model": "m", "posture": "POSTURE"}


def calls(*names: str) -> dict[str, Any]:
    made = [{"id": f"{name}{n}", "name": name, "arguments": {"n": n}} for n, name in enumerate(names)]
    return {"text": "", "tool_calls": made, "stop": "tool_calls"}


DONE = {"text": "done", "tool_calls": [], "stop": "end"}
REPLIES = [calls("shell", "shell"), calls("nonesuch"), calls("read"), DONE]


def test_from_any_point_the_loop_ends_the_same_way_and_asks_the_same_steps() -> None:
    whole = Script(REPLIES)
    assert carry_out(start(), whole) == "done"
    assert [p["n"] for m, p in whole.asks if m == "step.begin"] == [1, 2, 3]
    for stop in range(1, len(whole.asks)):
        journal: dict[int, Any] = {}
        first = Script(REPLIES, journal, stop)
        with pytest.raises(KeyboardInterrupt):
            carry_out(start(), first)
        second = Script(REPLIES, journal)
        assert carry_out(start(first.checkpoint), second) == "done"
        assert journal == whole.journal
        assert second.checkpoint == whole.checkpoint


def test_the_model_sees_the_thread_the_posture_and_the_results() -> None:
    script = Script([DONE, *REPLIES])  # the first one was said in an earlier turn
    agent = {"role": "agent", "author": "ringfence", "text": "earlier", "cursor": 1}
    user = {"role": "user", "author": "bob", "text": "again", "cursor": 2}
    carry_out(start(messages=[agent, user]), script)
    messages = [p["messages"] for m, p in script.asks if m == "model.generate"][-1]
    assert [m["role"] for m in messages][:3] == ["system", "assistant", "user"]
    assert messages[0]["text"].endswith("POSTURE")
    assert messages[2]["text"] == "bob: again"
    tools = [m for m in messages if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in tools] == ["shell0", "shell1", "nonesuch0", "read0"]
    assert "there is no tool 'nonesuch'" in json.loads(tools[2]["text"])["error"]


def test_a_thread_that_ends_with_the_agent_is_no_turn() -> None:
    agent = {"role": "agent", "author": "ringfence", "text": "earlier", "cursor": 1}
    with pytest.raises(RunFailed, match="user"):
        carry_out(start(messages=[agent]), Script([]))


@pytest.mark.parametrize("checkpoint", ["", "{}", "[]", '{"v":2}', "null", '{"v":1,"messages":[],"step":0,"calls":0}'])
def test_a_checkpoint_that_is_none_of_ours_fails_the_run(checkpoint: str) -> None:
    with pytest.raises(RunFailed) as failure:
        carry_out(start(checkpoint), Script([]))
    assert failure.value.code == "incompatible"


def test_the_guard_counts_over_redrives() -> None:
    script = Script([calls("shell")] * 60, stop=100)
    with pytest.raises(KeyboardInterrupt):
        carry_out(start(), script)
    again = Script([calls("shell")] * 60, script.journal)
    with pytest.raises(RunFailed) as failure:
        carry_out(start(script.checkpoint), again)
    assert failure.value.code == "loop_guard"
    assert len(again.journal) == native.MAX_MODEL_CALLS


@pytest.mark.parametrize(("code", "tries"), [("unavailable", 4), ("refused", 1), ("not_found", 1)])
def test_only_an_unavailable_model_is_asked_again(monkeypatch: pytest.MonkeyPatch, code: str, tries: int) -> None:
    monkeypatch.setattr(native, "RETRY_SECONDS", 0)

    class Broken(Script):
        count = 0

        def ask(self, method: str, **p: Any) -> dict[str, Any]:
            if method == "model.generate":
                self.count += 1
                raise AskError(code, "why")
            return super().ask(method, **p)

    script = Broken([])
    with pytest.raises(RunFailed) as failure:
        carry_out(start(), script)
    assert (failure.value.code, failure.value.message, script.count) == (code, "why", tries)


def test_a_long_conversation_drops_its_oldest_results_and_stays_saveable() -> None:
    class Chatty(Script):
        def ask(self, method: str, **p: Any) -> dict[str, Any]:
            result = super().ask(method, **p)
            if method == "step.begin":
                result["result"] = {"ok": True, "stdout": "x" * 100_000}
            return result

    script = Chatty([calls("shell")] * 8 + [DONE])
    assert carry_out(start(), script) == "done"
    before_model = [p for m, p in script.asks if m == "checkpoint.save" and p["boundary"] == "before_model"]
    assert all(len(p["state"]) <= MAX_STATE for p in before_model)
    last = [p["messages"] for m, p in script.asks if m == "model.generate"][-1]
    texts = [m["text"] for m in last if m["role"] == "tool"]
    assert texts[0] == DROPPED
    assert "x" * 100_000 in texts[-1]


def test_a_reply_is_cut_at_its_limit_on_a_whole_character() -> None:
    text = carry_out(start(), Script([{**DONE, "text": "é" * 200_000}]))
    assert len(text.encode()) <= native.MAX_TEXT
    assert text.endswith("[cut at 256 KiB]")
    assert set(text.split("\n")[0]) == {"é"}
