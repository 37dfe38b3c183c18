"""OpenAI's chat completions, for the native loop. Pure: what is asked, and how the answer is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ringfence.host.kernel.errors import Refused
from ringfence.host.kernel.models.upstreams import Bound
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.models.reading import FILTERED, Stop, Text, error_in, words_of
from ringfence.host.models.turns_out import ToolNames, call_of, in_order

PATH = "/chat/completions"
LIMITS = (Bound.NEWER.value, Bound.OLDER.value)  # fields that bound the answer
_MAX_INDEX = 256  # of calls in one answer


def request(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    names: ToolNames,
) -> dict[str, Any]:
    """All but one of `LIMITS`."""
    asked: dict[str, Any] = {
        "model": model,
        "messages": [_message(each, names) for each in in_order(messages)],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        asked["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": names.out(each["name"]),
                    "description": each["description"],
                    "parameters": each["parameters"],
                },
            }
            for each in tools
        ]
    return asked


def _message(message: Mapping[str, Any], names: ToolNames) -> dict[str, Any]:
    text, calls = str(message.get("text", "")), message.get("tool_calls") or ()
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": text}
    if not calls:
        return {"role": message["role"], "content": text}
    made = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": names.out(call["name"]), "arguments": json.dumps(call["arguments"])},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": made}


class Reading:
    """reading.Reading."""

    def __init__(self, names: ToolNames) -> None:
        self._names, self._text = names, Text()
        self._calls: dict[int, dict[str, Any]] = {}
        self._spent = Text()  # of arguments
        self._finish = ""

    @property
    def ended(self) -> bool:
        return bool(self._finish)

    def take(self, said: Mapping[str, Any]) -> str:
        if said.get("error"):
            raise error_in(said["error"], words_of(said["error"]))
        choices = said.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        self._finish = str(choice.get("finish_reason") or self._finish)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return ""
        for part in delta.get("tool_calls") or ():
            self._call(part)
        return self._text.add(delta.get("content"))

    def _call(self, part: Any) -> None:
        """Its first piece has id and name, later ones more of the arguments."""
        if not isinstance(part, dict) or not 0 <= (at := part.get("index") or 0) < _MAX_INDEX:
            return
        call = self._calls.setdefault(at, {"id": f"call_{at}", "name": "", "arguments": []})
        function = part.get("function") or {}
        call["id"], call["name"] = part.get("id") or call["id"], function.get("name") or call["name"]
        call["arguments"].append(self._spent.add(function.get("arguments")))

    def reply(self) -> ModelReply:
        if self._finish == "content_filter":
            raise Refused(FILTERED)
        calls = [
            call_of(self._names, call["id"], call["name"], "".join(call["arguments"]))
            for _, call in sorted(self._calls.items())
        ]
        stop: Stop = "tool_calls" if calls else "end"
        if self._finish == "length":
            calls, stop = calls[:-1], "length"  # the last one may lack its end
        return ModelReply(self._text.whole, calls, "tool_calls" if calls else stop)
