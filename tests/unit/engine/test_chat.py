"""Pure parts of the engine: conversations from a blob."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from ringfence.host.engine.chat import chat_of, spelled
from ringfence.host.kernel.errors import Invalid
from ringfence.wire.messages import ChatMessage, ToolCall, ToolSpec

CALL = {"id": "c", "name": "shell", "arguments": {"command": "ls"}}


def test_a_conversation() -> None:
    chat: list[dict[str, Any]] = [
        {"role": "system", "text": "s"},
        {"role": "user", "text": "u", "tool_calls": [], "tool_call_id": None},
        {"role": "assistant", "text": "", "tool_calls": [CALL]},
        {"role": "tool", "text": "{}", "tool_call_id": "c"},
    ]
    defaults: dict[str, Any] = {"tool_calls": [], "tool_call_id": None}
    assert chat_of(json.dumps(chat).encode()) == [{**defaults, **message} for message in chat]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 100_000,
        b"null",
        b"{}",
        b"[]",
        b"[1]",
        b"[[]]",
        b'[{"role": "user"}]',
        b'[{"text": "x"}]',
        b'[{"role": "user", "text": 1}]',
        b'[{"role": "root", "text": "x"}]',
        b'[{"role": ["user"], "text": "x"}]',
        b'[{"role": "user", "text": "x", "name": "y"}]',
        b'[{"role": "tool", "text": "x", "tool_call_id": 1}]',
        b'[{"role": "assistant", "text": "x", "tool_calls": {}}]',
        b'[{"role": "assistant", "text": "x", "tool_calls": null}]',
        b'[{"role": "assistant", "text": "x", "tool_calls": [{"id": "c", "name": "n"}]}]',
        b'[{"role": "assistant", "text": "x", "tool_calls": [{"id": "c", "name": "n", "arguments": "{}"}]}]',
        b'[{"role": "user", "text": "x"}] trailing',
    ],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(Invalid):
        chat_of(data)


def test_an_ask_is_spelled_with_every_field_of_the_wire() -> None:
    call = ToolCall("c", "shell", {"command": "ls", "deep": [{"x": 1}]})
    chat = [ChatMessage("system", "s"), ChatMessage("assistant", "", [call]), ChatMessage("tool", "t", [], "c")]
    tools = [ToolSpec("shell", "d", {"type": "object"})]
    assert spelled(chat, tools) == ([asdict(one) for one in chat], [asdict(one) for one in tools])
    assert spelled(chat, tools)[0] == chat_of(json.dumps([asdict(one) for one in chat]).encode())
