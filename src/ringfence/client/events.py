"""Server-sent events (HTML standard, section 9.2.6) from bytes. Sans-IO."""

from __future__ import annotations

import json
from typing import Any


class EventParser:
    """Feed it chunks; it gives (kind, data as JSON) of each whole event. Comments are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        blocks = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        self._rest = blocks.pop()
        found = [_event(block) for block in blocks]
        return [event for event in found if event is not None]


def _event(block: bytes) -> tuple[str, Any] | None:
    kind, lines = "message", []
    for line in block.decode("utf-8", "replace").split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            lines.append(value)
    return (kind, json.loads("\n".join(lines))) if lines else None
