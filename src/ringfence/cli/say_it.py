"""Prints: lines, tables, JSON, errors. What came from a box never reaches a terminal as control characters."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def line(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """Progress and remarks: stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def as_json(answer: object) -> None:
    sys.stdout.write(json.dumps(answer, ensure_ascii=True, indent=2) + "\n")


def error(code: str, message: str, remedy: str, details: Mapping[str, Any], json_wanted: bool, exit_code: int) -> int:
    """One line that says what, one that says the remedy; with --json the error object, on one line of stdout. Returns exit_code."""
    if json_wanted:
        body = {"code": code, "message": message, "remedy": remedy, "details": dict(details)}
        line(json.dumps({"error": body}))  # one line: it may be the last of a stream of objects, one a line
    else:
        note(f"ringfence: {plain(message)}")
        note(f"  {plain(remedy) or 'ringfence --help lists the commands'}")
    return exit_code


def plain(text: str) -> str:
    """On one line, without control characters and other tricks: as escapes instead."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def on_one_line(text: str) -> str:
    """Lines of a program's output as one, for a message."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def prose(text: str) -> str:
    """Text of several lines; on a terminal without control characters but newline and tab."""
    if not sys.stdout.isatty():
        return text
    return "\n".join("\t".join(plain(part) for part in row.split("\t")) for row in text.split("\n"))


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns under titles, for reading; programs take --json."""
    cells = [[plain("-" if cell is None else str(cell)) for cell in row] for row in [titles, *rows]]
    widths = [max(len(row[at]) for row in cells) for at in range(len(titles))]
    for row in cells:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def facts(answer: Mapping[str, object]) -> None:
    """name: value, one a line."""
    width = max((len(name) for name in answer), default=0)
    for name, value in answer.items():
        shown = json.dumps(value) if isinstance(value, dict | list) else "-" if value is None else str(value)
        line(f"{name.ljust(width)}  {plain(shown)}")


def size(number: object) -> str:
    """1536 -> 1.5KiB."""
    if not isinstance(number, int):
        return "-"
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f}{unit}" if unit == "B" else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}TiB"
