"""Lines of a box's log: cleaned, cut, read back, and which are shown where there is not room for all."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.logs import (
    MAX_TEXT,
    LogLine,
    Said,
    Source,
    as_json,
    cleaned,
    newest,
    of_audit,
    parsed,
    said_lines,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
BOX = BoxId("a" * 16)


def _line(number: int, source: Source = Source.LIFE) -> LogLine:
    at = START + timedelta(seconds=number)
    return LogLine(at.isoformat(), at, source, f"line {number}")


@pytest.mark.parametrize("text", ["\x1b[2J\x07", "a\nb", "a\u202eb", "\u2028", "\x00", "\ud800"])
def test_nothing_in_a_line_does_something_to_who_shows_it(text: str) -> None:
    assert cleaned(f"x{text}x").isprintable()


def test_a_long_line_is_cut_and_says_so() -> None:
    assert cleaned("x" * MAX_TEXT) == "x" * MAX_TEXT
    cut = cleaned("x" * (MAX_TEXT + 1))
    assert (len(cut), cut[-1]) == (MAX_TEXT, "…")


def test_a_line_reads_back() -> None:
    line = LogLine(START.isoformat(), START, Source.GUEST, "über")
    assert parsed(as_json(line).encode()) == line


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        as_json(_line(1)).encode()[:-3],
        b"[]",
        b"null",
        b'"x"',
        b"[" * 100_000,
        b"\xff",
        json.dumps({"at": "2026-01-01", "source": "life", "text": "no zone"}).encode(),
        json.dumps({"at": 5, "source": "life", "text": ""}).encode(),
        json.dumps({"at": START.isoformat(), "source": "host", "text": ""}).encode(),
    ],
)
def test_what_is_no_line_is_none(raw: bytes) -> None:
    assert parsed(raw) is None


def test_words_of_a_box_with_what_is_left_out() -> None:
    assert said_lines(Said(BOX, "one\ntw", "o\n\n")) == ["one", "two"]
    assert said_lines(Said(BOX, "one\ntw", "ree\n", 7)) == [
        "one",
        "tw",
        "(7 bytes of what it said are left out)",
        "ree",
    ]


def test_a_row_of_the_audit_is_a_line() -> None:
    row = {
        "id": "krn_1:7",
        "at": "2026-01-01T00:00:00Z",
        "actor": {"operator": True},
        "action": "box.stop",
        "details": {},
    }
    assert of_audit(row) == LogLine("krn_1:7", START, Source.AUDIT, "box.stop by an operator")
    ended = {**row, "actor": None, "action": "egress.worker_ended", "details": {"why": "killed\n", "deep": {"x": 1}}}
    assert of_audit(ended) == LogLine("krn_1:7", START, Source.EGRESS, "egress.worker_ended why=killed")
    assert of_audit({**ended, "action": "box.disk_full"}).source is Source.LIMIT


def test_the_newest_are_shown_and_a_box_that_talks_hides_nothing() -> None:
    few = [_line(number) for number in range(3)]
    assert newest(few, 3) == (few, False)
    assert newest(few, 2) == (few[1:], True)
    noise = [_line(number, Source.GUEST) for number in range(100, 1100)]
    shown, more = newest([*noise, *few], 10)
    assert (shown, more) == ([*few, *noise[-7:]], True)
    many = [_line(number) for number in range(50)]
    shown, _ = newest([*noise, *many], 10)
    assert shown == [*many[-5:], *noise[-5:]]
    assert newest([*noise, *many], 1)[0] == many[-1:]
    assert newest(noise, 4)[0] == noise[-4:]
