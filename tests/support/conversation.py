"""A loop's side of a conversation with a model: messages, answers and results, without a loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringfence.host.kernel.ports import Model, ModelReply

TOOLS = tuple(
    {"name": name, "description": name, "parameters": {"type": "object"}} for name in ("shell", "read", "write")
)
OK: Mapping[str, Any] = {"ok": True, "exit_code": 0, "reason": "exit"}


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "text": text, "tool_calls": [], "tool_call_id": None}


def heard(text: str) -> None:
    """Nobody watches."""


class Conversation:
    """Messages that grow as a loop makes them grow. Each answer is asked for twice and must be the same."""

    def __init__(self, model: Model, *said: str, tools: Sequence[Mapping[str, Any]] = TOOLS) -> None:
        self.model, self.tools = model, tools
        self.messages = [message("system", "$ rm -rf /"), *(message("user", text) for text in said)]
        self.calls: list[dict[str, Any]] = []

    def user(self, text: str) -> None:
        self.messages.append(message("user", text))

    def agent(self, text: str) -> None:
        self.messages.append(message("assistant", text))

    async def ask(self, result: Callable[[Mapping[str, Any]], Any] | None = None) -> ModelReply:
        """One answer of the model, its calls answered by `result`."""
        pieces: list[str] = []
        reply = await self.model.generate(self.messages, self.tools, pieces.append)
        assert reply == await self.model.generate(self.messages, self.tools, heard)
        assert "".join(pieces) == reply.text
        self.messages.append({**message("assistant", reply.text), "tool_calls": [dict(c) for c in reply.tool_calls]})
        for call in reply.tool_calls:
            self.calls.append(dict(call))
            answer = result(call) if result is not None else OK
            self.messages.append({**message("tool", json.dumps(answer)), "tool_call_id": call["id"]})
        return reply

    async def to_the_end(self, result: Callable[[Mapping[str, Any]], Any] | None = None) -> str:
        while True:
            reply = await self.ask(result)
            if not reply.tool_calls:
                return reply.text

    @property
    def commands(self) -> list[str]:
        return [str(call["arguments"].get("command")) for call in self.calls]
