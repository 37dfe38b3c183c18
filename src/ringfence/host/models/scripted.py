"""Provider `scripted`: no model. It turns the lines of a message into tool calls, and says so.

Of the last user message, a line `$ COMMAND` is a shell call, `@read PATH` and `@write PATH TEXT` are file calls, one for
each answer and in their order; other lines are quoted and do nothing. Deterministic: the same conversation gives the same
answer. It must never pretend to have understood anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.ports import ModelReply

SAYS = "This is the scripted provider: it is no model and understands nothing."
HOW = "A line that begins with `$ ` is run as a command; `@read PATH` and `@write PATH TEXT` use the file tools."
MAX_CALLS = 45  # the loop gives up at 50 answers of its model
_TAIL_CHARS = 2000  # of each result's output, in the final text
_QUOTE_CHARS = 1000
_TOTAL_CHARS = 60_000  # 45 results of 2,000 characters would be 90,000; a reply may have 256 KiB, people read less
# A loop says who wrote a message in front of its first line: `alice: $ ls` is alice's call.
_AUTHOR = re.compile(r"[^\s:]{1,64}: (?=\$ |@read |@write )")


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: dict[str, Any]
    line: str


def calls_of(text: str) -> tuple[list[Call], list[str]]:
    """(calls in order, lines that are none and not blank)."""
    calls: list[Call] = []
    others: list[str] = []
    author = _AUTHOR.match(text)
    for line in text[author.end() if author else 0 :].splitlines():
        call = _call(line)
        if call is not None:
            calls.append(call)
        elif line.strip():
            others.append(line)
    return calls, others


def _call(line: str) -> Call | None:
    if line.startswith("$ ") and line[2:].strip():
        return Call("shell", {"command": line[2:]}, line)
    verb, _, rest = line.partition(" ")
    if verb == "@read" and rest.strip():
        return Call("read", {"path": rest.strip()}, line)
    path, _, text = rest.strip().partition(" ")
    if verb == "@write" and path:
        return Call("write", {"path": path, "text": text}, line)
    return None


class Scripted:
    """ports.Model."""

    async def generate(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> ModelReply:
        """Messages {"role", "text", ...}. Invalid: there is no user message."""
        asked = [i for i, message in enumerate(messages) if message.get("role") == "user"]
        if not asked:
            raise Invalid("the conversation has no user message")
        text = str(messages[asked[-1]].get("text", ""))
        results = [str(m.get("text", "")) for m in messages[asked[-1] + 1 :] if m.get("role") == "tool"]
        calls, others = calls_of(text)
        usable = [call for call in calls if call.name in tools][:MAX_CALLS]
        if len(results) < len(usable):
            call = usable[len(results)]
            number = len(results) + 1
            wanted = {"id": f"call_{number}", "name": call.name, "arguments": call.arguments}
            return ModelReply(text="", tool_calls=[wanted], stop="tool_calls")
        return ModelReply(text=_final(usable, results, others, len(calls) - len(usable)), tool_calls=[], stop="end")


def _final(calls: Sequence[Call], results: Sequence[str], others: Sequence[str], unused: int) -> str:
    parts = [SAYS]
    if not calls:
        parts.append(f"It did nothing. {HOW}")
    if others:
        quoted = "\n".join(f"> {line}" for line in others)
        parts.append(f"It did not read:\n{_cut(quoted, _QUOTE_CHARS)}")
    if unused:
        parts.append(f"{unused} calls were left out: their tool is not offered, or they are more than {MAX_CALLS}.")
    left = _TOTAL_CHARS
    for call, result in zip(calls, results, strict=False):
        said = _told(call, result)[: max(left, 200)]
        left -= len(said)
        parts.append(said)
    return "\n\n".join(parts)


def _told(call: Call, result: str) -> str:
    """One call: its line, how it ended, the end of what it said."""
    try:
        fields = json.loads(result)
    except ValueError:
        fields = None
    line = _cut(call.line, 500)
    if not isinstance(fields, dict):
        return f"{line}\n{_tail(result)}"
    if call.name == "shell" and "exit_code" in fields:
        ended = f"exit code {fields['exit_code']}" if fields.get("exit_code") is not None else ""
        if fields.get("reason") not in (None, "exit"):
            ended = " ".join(part for part in (str(fields["reason"]), ended, str(fields.get("message") or "")) if part)
        elif fields.get("signal") is not None:
            ended = f"ended by signal {fields['signal']}"
        said = "".join(str(fields.get(stream) or "") for stream in ("stdout", "stderr"))
        return "\n".join(part for part in (f"{line}", f"[{ended}]", _tail(said)) if part)
    said = next((str(fields[name]) for name in ("text", "content", "error", "message") if fields.get(name)), "")
    return "\n".join(part for part in (line, "[ok]" if fields.get("ok", True) else "[failed]", _tail(said)) if part)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} characters more)"


def _tail(text: str) -> str:
    text = text.rstrip("\n")
    return (
        text
        if len(text) <= _TAIL_CHARS
        else f"... ({len(text) - _TAIL_CHARS} characters before)\n{text[-_TAIL_CHARS:]}"
    )
