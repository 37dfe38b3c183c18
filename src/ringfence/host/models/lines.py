"""The scripted provider's lines: which of them are calls, and what is said about calls that were made. Pure.

A line `$ COMMAND` is a shell call, `@read PATH` and `@write PATH TEXT` are file calls; other lines are quoted and do
nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

TOTAL_CHARS = 60_000  # of all results in a reply, which may have 256 KiB; people read less
_TAIL_CHARS = 2000  # of each result's output
_LEAST_CHARS = 200  # of each result, however many there are: 180 of them are 36,000
# A loop says who wrote a message in front of its first line: `alice: $ ls` is alice's call.
_AUTHOR = re.compile(r"([^\s:]{1,64}): ")
_CALL_STARTS = ("$ ", "@read ", "@write ")


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: dict[str, Any]
    line: str


def author_of(text: str) -> str | None:
    found = _AUTHOR.match(text)
    return found[1] if found else None


def calls_of(text: str) -> tuple[list[Call], list[str]]:
    """(calls in order, lines that are none and not blank)."""
    calls: list[Call] = []
    others: list[str] = []
    author = _AUTHOR.match(text)
    if author is not None and text.startswith(_CALL_STARTS, author.end()):
        text = text[author.end() :]
    for line in text.splitlines():
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


def told_all(done: Iterable[tuple[Call, str | None]]) -> list[str]:
    """A paragraph for each call with its result (None: the conversation does not have it any more)."""
    said, left = [], TOTAL_CHARS
    for call, result in done:
        one = _told(call, result)[: max(left, _LEAST_CHARS)]
        left -= len(one)
        said.append(one)
    return said


def _told(call: Call, result: str | None) -> str:
    """One call: its line, how it ended, the end of what it said."""
    line = cut(call.line, 500)
    if result is None:
        return f"{line}\n[its result was dropped to make room]"
    try:
        fields = json.loads(result)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        return f"{line}\n{_tail(result)}"
    if call.name == "shell" and "exit_code" in fields:
        said = "".join(str(fields.get(stream) or "") for stream in ("stdout", "stderr"))
        return "\n".join(part for part in (line, f"[{_ended(fields)}]", _tail(said)) if part)
    said = next((str(fields[name]) for name in ("text", "content", "error", "message") if fields.get(name)), "")
    return "\n".join(part for part in (line, "[ok]" if fields.get("ok", True) else "[failed]", _tail(said)) if part)


def _ended(fields: dict[str, Any]) -> str:
    ended = f"exit code {fields['exit_code']}" if fields.get("exit_code") is not None else ""
    if fields.get("reason") not in (None, "exit"):
        return " ".join(part for part in (str(fields["reason"]), ended, str(fields.get("message") or "")) if part)
    return f"ended by signal {fields['signal']}" if fields.get("signal") is not None else ended


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} characters more)"


def _tail(text: str) -> str:
    text = text.rstrip("\n")
    if len(text) <= _TAIL_CHARS:
        return text
    return f"... ({len(text) - _TAIL_CHARS} characters before)\n{text[-_TAIL_CHARS:]}"
