"""Where the present piece of work begins in a conversation, and which of its messages are asked for. Pure, no memory.

    history   user and assistant messages of earlier turns: no assistant message of it has tool calls
    own       the message of this turn
    work      assistant messages with tool calls, their results, notes of the loop (`system`), and what the author says
              meanwhile (steers)

An assistant message without tool calls ends a piece of work: what came before is done with. A user message directly
in front of another one had no answer: its turn failed, was cancelled, or is worked on in somebody else's box, so it
is not asked for. It belongs to the same turn only when a note of the loop stands between the two, or calls were made
since.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ID = re.compile(r"call_([0-9a-f]{8})_(\d+)\Z")


@dataclass(frozen=True, slots=True)
class Work:
    asked: tuple[str, ...]  # texts whose calls are to be made, in order: the turn's own, then steers
    done: int  # calls of `asked` that were made
    results: Mapping[int, str]  # of the n-th call, from 1; those that the conversation still has


def work_of(messages: Sequence[Mapping[str, Any]]) -> Work:
    rest = messages[_begin(messages) :]
    asked = tuple(_text(m) for m in rest if m.get("role") == "user")
    made = [found for m in rest for call in m.get("tool_calls") or () if (found := _read(call.get("id")))]
    results = {found[1]: _text(m) for m in rest if m.get("role") == "tool" and (found := _read(m.get("tool_call_id")))}
    return Work(asked, max((n for _, n in made), default=0), results)


def call_id(work: Work, n: int) -> str:
    """Of the n-th call, counted from the beginning of the first message that is asked for: says both, so that the
    count is right even when a loop had to drop calls."""
    return f"call_{_mark(work.asked[0])}_{n}"


def same_turn(messages: Sequence[Mapping[str, Any]], at: int) -> bool:
    """Whether the user message `at` may be of the turn that the message before it belongs to."""
    for before in range(at - 1, 0, -1):
        role = messages[before].get("role")
        if role != "user":
            return role == "system" or before == at - 1
    return False


def _begin(messages: Sequence[Mapping[str, Any]]) -> int:
    """Index of the first message that is asked for."""
    users = [at for at, m in enumerate(messages) if m.get("role") == "user"]
    ended = [at for at, m in enumerate(messages) if m.get("role") == "assistant" and not m.get("tool_calls")]
    asked = [at for at in users if at > (ended[-1] if ended else -1)]
    if not asked:
        return users[-1] if users else 0
    first = next((at for at, m in enumerate(messages) if at > asked[0] and m.get("tool_calls")), len(messages))
    known = _read(messages[first]["tool_calls"][0].get("id")) if first < len(messages) else None
    spoken = [at for at in asked if at < first]
    marked = [at for at in spoken if known is not None and _mark(_text(messages[at])) == known[0]]
    if marked:
        return marked[-1]
    notes = [at for at in range(asked[0], first) if messages[at].get("role") == "system"]
    return max(at for at in spoken if not notes or at < notes[0])


def _text(message: Mapping[str, Any]) -> str:
    return str(message.get("text", ""))


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def _read(call_id: object) -> tuple[str, int] | None:
    """(mark of the first message, number of the call)."""
    found = _ID.match(str(call_id))
    return (found[1], int(found[2])) if found else None
