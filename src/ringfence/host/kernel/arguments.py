"""What a loop of ours keeps of the arguments of a tool call: larger or deeper ones it leaves out, and tells its model so.

For who writes calls by hand (a script): a value that would not arrive is a slip, to be told before anything runs. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_BYTES = 192 * 1024  # as JSON; the journal takes 256 KiB
MAX_LEVELS = 16  # of objects and lists, the arguments themselves being the first; a frame has 64
MAX_VALUES = 1000  # in all of them; a frame has 10,000 keys
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1  # of the wire


def fault(arguments: Mapping[str, Any]) -> str:
    """What is wrong with them and where, like `arguments.a.b[2]: an integer beyond 64 bits`; empty when nothing is."""
    level: list[tuple[str, Any]] = [("arguments", arguments)]
    levels = values = 0
    while containers := [(place, value) for place, value in level if isinstance(value, dict | list)]:
        levels += 1
        if levels > MAX_LEVELS:
            return f"{containers[0][0]}: deeper than {MAX_LEVELS} levels"
        level = [below for place, value in containers for below in _below(place, value)]
        values += len(level)
        if values > MAX_VALUES:
            return f"arguments: more than {MAX_VALUES} values"
        for place, value in level:
            if wrong := _wrong(value):
                return f"{place}: {wrong}"
    size = len(json.dumps(arguments, separators=(",", ":")))
    return f"arguments: {size} bytes as JSON; the limit is {MAX_BYTES}" if size > MAX_BYTES else ""


def _below(place: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [(f"{place}[{n}]", item) for n, item in enumerate(value)]
    names = [(f"{place}, a name", name) for name in value if not _sayable(name)]
    return names or [(f"{place}.{name[:40]}", item) for name, item in value.items()]


def _wrong(value: object) -> str:
    if isinstance(value, bool):
        return ""
    if isinstance(value, int):
        return "" if INT_MIN <= value <= INT_MAX else "an integer beyond 64 bits"
    if isinstance(value, float):
        return "" if value - value == 0.0 else "a number that is not finite"  # 1e999 is read as infinity
    if isinstance(value, str) and not _sayable(value):
        return "half of a surrogate pair, which no UTF-8 can say"
    return ""


def _sayable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
