"""A loop's conversation in each provider's spelling."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.guest.toolset import LEFT_OUT
from ringfence.host.models import anthropic_messages, openai_chat, openai_responses
from ringfence.host.models.turns_out import NO_RESULT, UNREADABLE, ToolNames, call_of, in_order


def said(role: str, text: str, *calls: str, of: str | None = None) -> dict[str, Any]:
    made = [{"id": each, "name": "shell", "arguments": {"command": each}} for each in calls]
    return {"role": role, "text": text, "tool_calls": made, "tool_call_id": of}


SYSTEM, USER = said("system", "You are."), said("user", "alice: do it")


def test_results_stand_behind_their_calls_and_nothing_between() -> None:
    given = [
        USER,
        said("assistant", "", "a", "b"),
        said("system", "[n]"),
        said("tool", "2", of="b"),
        said("tool", "x", of="z"),
    ]
    found = [(each["role"], each["text"]) for each in in_order(given)]
    assert found[2:] == [("tool", NO_RESULT), ("tool", "2"), ("system", "[n]")]
    assert list(in_order([said("tool", "old", of="gone"), USER])) == [USER], "a result whose call was dropped"


def test_names_that_providers_do_not_take() -> None:
    names = ToolNames(["http.webhook", "http_webhook", "x" * 70, "x" * 71])
    out = [names.out(each) for each in ("http.webhook", "http_webhook", "x" * 70, "x" * 71)]
    assert len(set(out)) == 4 and all(len(each) <= 64 and "." not in each for each in out)
    assert [names.back(each) for each in out] == ["http.webhook", "http_webhook", "x" * 70, "x" * 71]
    assert names.back("made_up") == "made_up"


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', "[" * 100_000])
def test_arguments_that_are_none_tell_the_loop_so(text: str) -> None:
    assert UNREADABLE == LEFT_OUT
    assert list(call_of(ToolNames([]), "i", "f", text)["arguments"]) == [LEFT_OUT]
    assert call_of(ToolNames([]), "i", "f", "")["arguments"] == {}


def test_anthropic_has_two_sides_in_turns_and_the_user_begins() -> None:
    given = [
        SYSTEM,
        said("assistant", "summary"),
        USER,
        said("assistant", "", "call:1"),
        said("tool", "out", of="call:1"),
        said("system", "[note]"),
        said("user", "alice: and"),
        said("assistant", ""),
    ]
    asked = anthropic_messages.request("m", given, [], ToolNames([]))
    assert [each["text"] for each in asked["system"]] == ["You are."] and "tools" not in asked
    assert [each["role"] for each in asked["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    last = asked["messages"][-1]["content"]
    assert [each["type"] for each in last] == ["tool_result", "text", "text"]
    assert last[0]["tool_use_id"] == asked["messages"][3]["content"][0]["id"] == "call_1"
    assert [each["text"] for each in last[1:]] == ["[note]", "alice: and"], "apart: a note is no person's word"
    assert "cache_control" in last[-1]


def test_the_two_of_openai() -> None:
    given = [SYSTEM, USER, said("assistant", "I do", "c"), said("tool", "out", of="c"), said("system", "[note]")]
    tools = [{"name": "shell", "description": "d", "parameters": {}}]
    chat = openai_chat.request("m", given, tools, ToolNames([]))
    assert [each["role"] for each in chat["messages"]] == ["system", "user", "assistant", "tool", "system"]
    assert chat["messages"][2]["tool_calls"][0]["function"] == {"name": "shell", "arguments": '{"command": "c"}'}
    responses = openai_responses.request("m", given, tools, ToolNames([]))
    kinds = [each.get("type", each.get("role")) for each in responses["input"]]
    assert kinds == ["system", "user", "assistant", "function_call", "function_call_output", "system"]
    assert responses["store"] is False


@pytest.mark.parametrize(
    ("reading", "events"),
    [
        (
            openai_chat.Reading(ToolNames([])),
            [
                {"choices": [{"delta": {"content": "a"}}]},
                {
                    "choices": [
                        {
                            "delta": {
                                "tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": "{"}}]
                            }
                        }
                    ]
                },
                {"choices": [{"delta": {}, "finish_reason": "length"}]},
            ],
        ),
        (
            anthropic_messages.Reading(ToolNames([])),
            [
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
                {
                    "type": "content_block_start",
                    "index": 1,
                    "content_block": {"type": "tool_use", "id": "1", "name": "f"},
                },
                {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{"}},
                {"type": "content_block_stop", "index": 1},
                {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
                {"type": "message_stop"},
            ],
        ),
    ],
)
def test_whoever_is_cut_off_in_a_call_has_made_none(reading: Any, events: list[dict[str, Any]]) -> None:
    for each in events:
        reading.take(each)
    reply = reading.reply()
    assert reading.ended and (reply.text, list(reply.tool_calls), reply.stop) == ("a", [], "length")


@pytest.mark.parametrize(
    "event", [{}, {"choices": 1}, {"choices": [1]}, {"choices": [{"delta": 1}]}, {"type": 1}, {"delta": {}}]
)
def test_an_odd_event_says_nothing(event: dict[str, Any]) -> None:
    for spelling in (openai_chat, openai_responses, anthropic_messages):
        reading = spelling.Reading(ToolNames([]))
        assert reading.take(event) == "" and not reading.ended
