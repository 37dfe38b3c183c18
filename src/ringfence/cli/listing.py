"""What `files ls` prints, a page at a time: rows under titles, or one JSON object that is never held as a whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from ringfence.cli import say_it
from ringfence.client.files import name_of

_ROW = "{:<9}  {:<4}  {:>12}  {}"  # the longest kind is `directory`; 12 digits are a terabyte


class Listing:
    """`as_json`: {"entries": [...], "next": cursor or null}, an entry a line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._count = -1  # entries written; -1: not even the head is

    def add(self, entries: Iterable[dict[str, Any]]) -> None:
        if self._count < 0:
            self._count = 0
            sys.stdout.write('{"entries": [' if self._as_json else _ROW.format("KIND", "MODE", "SIZE", "NAME") + "\n")
        for entry in entries:
            if self._as_json:
                sys.stdout.write(("," if self._count else "") + "\n  " + json.dumps(entry))
            else:
                say_it.line(_ROW.format(entry["kind"], entry["mode"], entry["size"], _shown(entry)))
            self._count += 1

    def end(self, following: str | None) -> None:
        """`following`: the cursor of what is left out."""
        if self._as_json:
            sys.stdout.write(f'], "next": {json.dumps(following)}}}\n')
        elif following is not None:
            say_it.note(f"more: --after {following}")


def _shown(entry: dict[str, Any]) -> str:
    return say_it.plain(name_of(entry).decode("utf-8", "backslashreplace"))
