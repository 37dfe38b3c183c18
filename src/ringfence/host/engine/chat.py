"""The conversation that a loop puts to a model, as a provider gets it: from the ask itself, which the broker has checked, or
as JSON from a blob, bounded and checked like a frame's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringfence.host.kernel.errors import Invalid, TooLarge
from ringfence.host.kernel.json_bounds import CONVERSATION, beyond
from ringfence.host.kernel.strict_json import values_of

# 2 million tokens, more than any model takes, have at most 12 MiB as ASCII JSON, six bytes for a character that is one
# token. It is read in 0.3 s, on a thread.
MAX_CONVERSATION = 16 << 20

_ROLES = frozenset({"system", "user", "assistant", "tool"})


def spelled(messages: Sequence[Any], tools: Sequence[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(messages as of `chat_of`, tools {"name", "description", "parameters"}), from the fields of wire.ModelGenerate. By
    name and without copying what is in them: a conversation of a thousand messages took 30 ms to be copied in depth."""
    chat = [
        {
            "role": one.role,
            "text": one.text,
            "tool_calls": [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in one.tool_calls],
            "tool_call_id": one.tool_call_id,
        }
        for one in messages
    ]
    return chat, [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools]


def check_size(size: int) -> None:
    """Of a blob that is to be a conversation, before it is read. TooLarge."""
    if size > MAX_CONVERSATION:
        raise TooLarge(f"a conversation of {size} bytes as JSON; the limit is {MAX_CONVERSATION}")


def chat_of(data: bytes) -> list[dict[str, Any]]:
    """A list of {"role", "text", "tool_calls", "tool_call_id"}, the two last ones optional. Invalid, TooLarge. For a
    thread: 16 MiB take 0.3 s, in steps that let others have their turn."""
    check_size(len(data))
    much = beyond(data, CONVERSATION)
    if much:
        raise Invalid(f"the conversation has {much}")
    try:
        found = [_message(n, one) for n, one in enumerate(values_of(data))]
    except Invalid as error:
        raise Invalid(f"the blob is no conversation: {error.message}") from None
    if not found:
        raise Invalid("the blob is no conversation: it has no message")
    return found


def _message(n: int, one: Any) -> dict[str, Any]:
    if not isinstance(one, dict) or not {"role", "text"} <= one.keys() <= {
        "role",
        "text",
        "tool_calls",
        "tool_call_id",
    }:
        raise Invalid(f"message {n} has not the fields of a message")
    role, text, calls, call_id = one["role"], one["text"], one.get("tool_calls", []), one.get("tool_call_id")
    if not isinstance(role, str) or role not in _ROLES or not isinstance(text, str):
        raise Invalid(f"message {n} has no role or no text")
    if (
        not (call_id is None or isinstance(call_id, str))
        or not isinstance(calls, list)
        or not all(map(_is_call, calls))
    ):
        raise Invalid(f"message {n} has calls that are none")
    return {"role": role, "text": text, "tool_calls": calls, "tool_call_id": call_id}


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and call.keys() == {"id", "name", "arguments"}
        and isinstance(call["id"], str)
        and isinstance(call["name"], str)
        and isinstance(call["arguments"], dict)
    )
