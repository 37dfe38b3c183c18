"""The scripted provider: deterministic, one call for each answer, honest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.models.scripted import MAX_CALLS, Scripted, calls_of

TOOLS = ("shell", "read", "write")


async def talk(
    text: str, results: Mapping[str, Any] | None = None, tools: tuple[str, ...] = TOOLS
) -> tuple[list[dict[str, Any]], str]:
    """(calls made, final text), every call answered by `results` of its line."""
    messages: list[dict[str, Any]] = [{"role": "system", "text": "$ rm -rf /"}, {"role": "user", "text": text}]
    calls: list[dict[str, Any]] = []
    while True:
        reply = await Scripted().generate(messages, tools)
        assert reply == await Scripted().generate(messages, tools)
        if reply.stop == "end":
            return calls, reply.text
        assert len(reply.tool_calls) == 1
        calls.append(dict(reply.tool_calls[0]))
        messages.append({"role": "assistant", "text": "", "tool_calls": reply.tool_calls})
        result = (results or {}).get(str(len(calls)), {"ok": True, "exit_code": 0, "reason": "exit"})
        messages.append({"role": "tool", "text": json.dumps(result), "tool_call_id": calls[-1]["id"]})


async def test_lines_become_calls_one_after_another() -> None:
    results = {
        "1": {"ok": True, "exit_code": 0, "reason": "exit", "stdout": "one\n", "stderr": ""},
        "2": {"ok": False, "exit_code": 3, "reason": "exit", "stdout": "", "stderr": "bad\n"},
    }
    calls, text = await talk("please:\n$ echo one\nthen\n$ exit 3\n@write f hello there\n@read f", results)
    assert [(c["id"], c["name"], c["arguments"]) for c in calls] == [
        ("call_1", "shell", {"command": "echo one"}),
        ("call_2", "shell", {"command": "exit 3"}),
        ("call_3", "write", {"path": "f", "text": "hello there"}),
        ("call_4", "read", {"path": "f"}),
    ]
    assert "no model" in text
    assert "> please:\n> then" in text
    assert "$ echo one\n[exit code 0]\none" in text
    assert "$ exit 3\n[exit code 3]\nbad" in text


async def test_without_calls_it_says_that_it_did_nothing() -> None:
    calls, text = await talk("Write me a poem.")
    assert calls == []
    assert "scripted provider" in text
    assert "did nothing" in text
    assert "> Write me a poem." in text


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (
            {"ok": False, "exit_code": None, "signal": None, "reason": "interrupted", "message": "not run again"},
            "[interrupted not run again]",
        ),
        ({"ok": False, "exit_code": None, "signal": 9, "reason": "exit"}, "[ended by signal 9]"),
        ({"ok": False, "exit_code": None, "signal": 9, "reason": "oom", "message": "limit"}, "[oom limit]"),
        ({"ok": False, "exit_code": 124, "signal": None, "reason": "timeout"}, "[timeout exit code 124]"),
        ({"ok": False, "error": "refused: no"}, "[failed]\nrefused: no"),
        ("not an object", "not an object"),
    ],
)
async def test_ends_are_told(result: Any, said: str) -> None:
    _, text = await talk("$ x", {"1": result})
    assert said in text


async def test_only_the_last_user_message_counts() -> None:
    messages = [
        {"role": "user", "text": "$ old"},
        {"role": "tool", "text": "{}"},
        {"role": "assistant", "text": "$ mine"},
        {"role": "user", "text": "$ new"},
    ]
    reply = await Scripted().generate(messages, TOOLS)
    assert reply.tool_calls[0]["arguments"] == {"command": "new"}
    with pytest.raises(Invalid):
        await Scripted().generate(messages[1:2], TOOLS)


def test_what_is_a_call() -> None:
    assert calls_of("$\n$ \n $ x\n$x\n@read\n@readme x\n@write")[0] == []
    assert calls_of("alice: $ ls\nbob: $ ls")[0] == calls_of("$ ls")[0]
    assert [call.arguments for call in calls_of("@write p")[0]] == [{"path": "p", "text": ""}]
    assert calls_of("alice: hello") == ([], ["alice: hello"])


async def test_it_is_bounded() -> None:
    huge = {
        str(n): {"ok": True, "exit_code": 0, "reason": "exit", "stdout": "y" * 100_000 + f"end{n}"}
        for n in range(1, 99)
    }
    calls, text = await talk("\n".join(f"$ {n}" for n in range(60)), huge)
    assert len(calls) == MAX_CALLS
    assert "15 calls were left out" in text
    assert "end1\n" in text
    assert len(text) < 100_000


async def test_a_tool_that_is_not_offered_is_not_used() -> None:
    calls, text = await talk("$ ls\n@read f", tools=("read",))
    assert [call["name"] for call in calls] == ["read"]
    assert "1 calls were left out" in text
