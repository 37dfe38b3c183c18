"""What happens in a turn, on stderr as it happens. Shows nothing as it came: text of people, models and boxes is escaped."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ringfence.cli import event_words, say_it

INDENT = "  "


class Watching:
    """`shown`: whether to say anything. Keeps in any case what was accepted."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._open: object = None  # the model call whose text is being written; its line has no end yet
        self.accepted: Mapping[str, Any] | None = None  # what the server has taken

    def see(self, item: Mapping[str, Any]) -> None:
        kind = item["kind"]
        if kind == "accepted":
            self.accepted = item
        if self._shown:
            self._show(kind, item)

    def _show(self, kind: str, item: Mapping[str, Any]) -> None:
        if kind == "delta":
            self._write(item)
        elif kind == "progress":
            self.line(str(item.get("text", "")))
        elif kind == "accepted":
            self.line("added to the turn under way" if item.get("steered") else "accepted")
        elif kind not in ("reply", "run.ended"):  # which stdout has, and what the exit says
            self.line(event_words.words(item))

    def line(self, text: str) -> None:
        self.close()
        say_it.note(f"- {say_it.plain(text)}")

    def _write(self, item: Mapping[str, Any]) -> None:
        """A piece of a model's text; the rows of one call are one paragraph."""
        call = (item.get("run"), item.get("call"))
        if self._open != call:
            self.close()
            sys.stderr.write(INDENT)
            self._open = call
        rows = (say_it.plain(row) for row in str(item.get("text", "")).expandtabs().split("\n"))
        sys.stderr.write(f"\n{INDENT}".join(rows))
        sys.stderr.flush()

    def close(self) -> None:
        """Ends the line of a text that is being written."""
        if self._open is not None:
            self._open = None
            say_it.note("")
