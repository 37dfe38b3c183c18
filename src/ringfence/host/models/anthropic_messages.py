"""Anthropic's messages, for the native loop. Pure: what is asked, and how the answer is read.

System messages in the middle are the host's notes. They have no place of their own there: they go into a user
message, as a block of their own, and cannot be mistaken for a person's words, which begin with an author's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ringfence.host.kernel.errors import Refused
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.models.reading import FILTERED, Stop, Text, error_in, words_of
from ringfence.host.models.turns_out import ToolNames, call_of, in_order

PATH = "/v1/messages"
LIMIT = "max_tokens"  # the field that bounds the answer
_FIRST = "[what was said before is not shown]"  # a conversation begins with the user's side
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_LENGTH = frozenset({"max_tokens", "model_context_window_exceeded", "pause_turn"})
_MAX_INDEX = 4096


def request(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    names: ToolNames,
) -> dict[str, Any]:
    """All but `LIMIT`."""
    ordered = list(in_order(messages))
    head = 0
    while head < len(ordered) and ordered[head]["role"] == "system":
        head += 1
    asked: dict[str, Any] = {
        "model": model,
        "messages": _sides(ordered[head:], names),
        "stream": True,
    }
    system = "\n\n".join(str(each["text"]) for each in ordered[:head] if each["text"])
    if system:
        asked["system"] = [{"type": "text", "text": system, "cache_control": _cached()}]
    if tools:
        asked["tools"] = [
            {"name": names.out(each["name"]), "description": each["description"], "input_schema": each["parameters"]}
            for each in tools
        ]
    return asked


def _cached() -> dict[str, str]:
    """The beginning of each call is that of the call before: read from the cache it costs a tenth."""
    return {"type": "ephemeral"}


def _sides(messages: Sequence[Mapping[str, Any]], names: ToolNames) -> list[dict[str, Any]]:
    """User and assistant in turns, each with all blocks that it has in a row."""
    sides: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _blocks(message, names)
        if not sides and role == "assistant":
            sides.append({"role": "user", "content": [{"type": "text", "text": _FIRST}]})
        if sides and sides[-1]["role"] == role:
            sides[-1]["content"] += blocks
        elif blocks:
            sides.append({"role": role, "content": blocks})
    if sides:
        sides[-1]["content"][-1]["cache_control"] = _cached()
    return sides


def _blocks(message: Mapping[str, Any], names: ToolNames) -> list[dict[str, Any]]:
    text = str(message.get("text", ""))
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": _plain(message["tool_call_id"]), "content": text}]
    said = [{"type": "text", "text": text}] if text.strip() else []  # an empty block is refused
    return said + [
        {"type": "tool_use", "id": _plain(call["id"]), "name": names.out(call["name"]), "input": call["arguments"]}
        for call in message.get("tool_calls") or ()
    ]


def _plain(id_: object) -> str:
    return _ODD.sub("_", str(id_)) or "_"


class Reading:
    """reading.Reading."""

    def __init__(self, names: ToolNames) -> None:
        self._names, self._text, self._spent = names, Text(), Text()
        self._calls: dict[int, tuple[object, object, list[str]]] = {}
        self._whole: set[int] = set()  # blocks that have ended
        self._stop = ""
        self.ended = False

    def take(self, said: Mapping[str, Any]) -> str:
        kind, at = said.get("type"), said.get("index")
        if kind == "error":
            raise error_in(said.get("error"), words_of(said.get("error")))
        if kind == "content_block_start":
            self._begin(at, said.get("content_block"))
        elif kind == "content_block_delta" and isinstance(said.get("delta"), dict):
            return self._delta(at, said["delta"])
        elif kind == "content_block_stop" and isinstance(at, int):
            self._whole.add(at)
        elif kind == "message_delta" and isinstance(said.get("delta"), dict):
            self._stop = str(said["delta"].get("stop_reason") or self._stop)
        elif kind == "message_stop":
            self.ended = True
        return ""

    def _begin(self, at: object, block: Any) -> None:
        if isinstance(block, dict) and block.get("type") == "tool_use" and isinstance(at, int) and at < _MAX_INDEX:
            self._calls[at] = (block.get("id"), block.get("name"), [])

    def _delta(self, at: object, delta: Mapping[str, Any]) -> str:
        if delta.get("type") == "text_delta":
            return self._text.add(delta.get("text"))
        if delta.get("type") == "input_json_delta" and isinstance(at, int) and at in self._calls:
            self._calls[at][2].append(self._spent.add(delta.get("partial_json")))
        return ""

    def reply(self) -> ModelReply:
        if self._stop == "refusal":
            raise Refused(FILTERED)
        calls = [
            call_of(self._names, id_, name, "".join(arguments))
            for at, (id_, name, arguments) in sorted(self._calls.items())
            if at in self._whole
        ]
        stop: Stop = "length" if self._stop in _LENGTH else "end"
        if stop == "length":  # whoever is cut off in a call has a block that ended in the middle of its arguments
            calls = [call for call in calls if "left_out" not in call["arguments"]]
        return ModelReply(self._text.whole, calls, "tool_calls" if calls else stop)
