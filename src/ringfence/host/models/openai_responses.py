"""OpenAI's responses, for the native loop. Pure: what is asked, and how the answer is read.

Nothing is stored at the provider: the whole conversation goes out with each call, as the loop has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ringfence.host.kernel.errors import Refused
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.models.reading import FILTERED, Stop, Text, error_in, words_of
from ringfence.host.models.turns_out import ToolNames, call_of, in_order

PATH = "/responses"
LIMIT = "max_output_tokens"  # the field that bounds the answer


def request(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    names: ToolNames,
) -> dict[str, Any]:
    """All but `LIMIT`."""
    asked: dict[str, Any] = {
        "model": model,
        "input": [item for each in in_order(messages) for item in _items(each, names)],
        "stream": True,
        "store": False,
    }
    if tools:
        asked["tools"] = [
            {
                "type": "function",
                "name": names.out(each["name"]),
                "description": each["description"],
                "parameters": each["parameters"],
                "strict": False,
            }
            for each in tools
        ]
    return asked


def _items(message: Mapping[str, Any], names: ToolNames) -> list[dict[str, Any]]:
    text = str(message.get("text", ""))
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": text}]
    calls = message.get("tool_calls") or ()
    said = [] if calls and not text else [{"role": message["role"], "content": text}]
    return said + [
        {
            "type": "function_call",
            "call_id": call["id"],
            "name": names.out(call["name"]),
            "arguments": json.dumps(call["arguments"]),
        }
        for call in calls
    ]


class Reading:
    """reading.Reading."""

    def __init__(self, names: ToolNames) -> None:
        self._names, self._text, self._spent = names, Text(), Text()
        self._calls: list[dict[str, Any]] = []
        self._finish = ""
        self._refused = False

    @property
    def ended(self) -> bool:
        return bool(self._finish)

    def take(self, said: Mapping[str, Any]) -> str:
        kind = said.get("type")
        if kind == "error" or said.get("error"):
            error = said.get("error") if isinstance(said.get("error"), dict) else said
            raise error_in(error, words_of(error))
        if kind == "response.output_text.delta":
            return self._text.add(said.get("delta"))
        if kind == "response.output_item.done":
            self._item(said.get("item"))
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._end(kind, said.get("response"))
        return ""

    def _item(self, item: Any) -> None:
        if isinstance(item, dict) and item.get("type") == "function_call":
            arguments = self._spent.add(item.get("arguments"))
            self._calls.append(call_of(self._names, item.get("call_id"), item.get("name"), arguments))

    def _end(self, kind: str, response: Any) -> None:
        inner = response if isinstance(response, dict) else {}
        if kind == "response.failed":
            raise error_in(inner.get("error"), words_of(inner.get("error")))
        why = inner.get("incomplete_details")
        self._refused = isinstance(why, dict) and why.get("reason") == "content_filter"
        self._finish = kind.rpartition(".")[2]

    def reply(self) -> ModelReply:
        if self._refused:
            raise Refused(FILTERED)
        stop: Stop = "length" if self._finish == "incomplete" else "end"
        return ModelReply(self._text.whole, self._calls, "tool_calls" if self._calls else stop)
