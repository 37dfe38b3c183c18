"""Event streams, read beside their relaying: which bytes are whole events, and what they say. Pure.

Source: the event stream format of the HTML standard, section 9.2. Never changes a byte: whoever relays has sent them
already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_EVENT = 2 << 20  # bytes; OpenAI's last event of a response has the whole answer in it. A longer one is passed over
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: Mapping[str, Any] | None  # None: no JSON object, such as [DONE]
    raw: bytes  # with its blank line


class Events:
    """`within`: bytes of an event that has not ended yet were taken."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    @property
    def within(self) -> bool:
        return bool(self._rest) or self._skipping

    @property
    def rest(self) -> bytes:
        """Of the event under way, what was in no `raw` yet."""
        return self._rest

    def take(self, data: bytes) -> list[Event]:
        """The events that end in `data`; their `raw` together is what was taken, but for `rest`."""
        found, rest, at = [], self._rest + data, 0
        for end in _END.finditer(rest):
            raw, at = rest[at : end.end()], end.end()
            found.append(Event("", None, raw) if self._skipping else _event(raw))
            self._skipping = False
        self._rest = rest[at:]
        if len(self._rest) > MAX_EVENT:
            # The end is kept: a blank line may be cut in two.
            found.append(Event("", None, self._rest[:-3]))
            self._rest, self._skipping = self._rest[-3:], True
        return found


def first_end(data: bytes) -> int:
    """Length of what belongs to the event under way; 0: it does not end in `data`."""
    found = _END.search(data)
    return found.end() if found else 0


def _event(raw: bytes) -> Event:
    name, data = "", []
    for line in _LINE.split(raw):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].strip().decode("utf-8", "replace")
    return Event(name, _object(b"\n".join(data)), raw)


def _object(data: bytes) -> Mapping[str, Any] | None:
    if not data.startswith(b"{"):
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
