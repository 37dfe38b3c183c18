"""A call as a person is shown it who has to answer for it: all of it, and nothing that could be taken for something else.

The canonical JSON, laid out in lines, ASCII only: a control character, an override of the reading direction and a letter of
another script stand there as their escapes. What was escaped is named beside it. Pure; never cuts anything off.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

_NAMED = 32  # different characters that are named; of the others the count is


def call_text(tool: str, arguments: Mapping[str, Any]) -> str:
    """`tool` and a space, then the arguments as JSON of several lines. Reads back as the very same value."""
    text = json.dumps(arguments, ensure_ascii=True, allow_nan=False, sort_keys=True, indent=2)
    return f"{_ascii(tool)} {text}".replace("\x7f", "\\u007f")


def _ascii(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)[1:-1]


def oddities(tool: str, arguments: Mapping[str, Any]) -> list[str]:
    """Of what was escaped: "3 x U+202E RIGHT-TO-LEFT OVERRIDE". Nothing for plain ASCII text."""
    text = tool + json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    found = Counter(character for character in text if not " " <= character <= "~")
    # json.dumps writes control characters as escapes by itself: they are counted in the values.
    found.update(_controls(arguments))
    named = [f"{count} x {_named(character)}" for character, count in found.most_common(_NAMED)]
    rest = len(found) - _NAMED
    return [*named, f"and {rest} more characters beyond ASCII"] if rest > 0 else named


def _controls(arguments: Mapping[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    waiting: list[object] = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.update(character for character in value if character < " " and character != "\n")
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value
    return found


def _named(character: str) -> str:
    return f"U+{ord(character):04X} {unicodedata.name(character, 'without a name')}"
