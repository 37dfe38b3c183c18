"""Pure parts of the engine: results."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.engine.results import STREAM_JSON_BYTES, bounded, interrupted, shell_result
from ringfence.host.kernel.ports import Kept, Outcome

JOURNAL_BYTES = 256 * 1024  # what the journal takes for a result


def outcome(**fields: object) -> Outcome:
    base: dict[str, object] = {
        "code": 0, "signal": None, "reason": "exit", "message": "", "left": (), "duration_ms": 5,
        "stdout": Kept(b"out", b"", 3, 0), "stderr": Kept(b"", b"", 0, 0),
    }  # fmt: skip
    return Outcome(**{**base, **fields})  # type: ignore[arg-type]


def test_short_output_is_whole() -> None:
    assert bounded(Kept(b"a\xc3", b"\xa9b", 4, 0)) == ("a\u00e9b", 0)  # a character across the seam
    assert bounded(Kept(b"\xff", b"", 1, 0)) == ("\ufffd", 0)
    assert bounded(None) == ("", 0)


@given(st.binary(max_size=3000), st.binary(max_size=3000), st.integers(0, 10**9), st.integers(100, 4000))
def test_it_fits_and_counts(head: bytes, tail: bytes, more: int, limit: int) -> None:
    total = len(head) + len(tail) + more
    text, dropped = bounded(Kept(head, tail, total, more), limit)
    assert len(json.dumps(text)) <= limit
    assert more <= dropped <= total


def test_the_end_is_kept() -> None:
    text, dropped = bounded(Kept(b"\x01" * 65536, b"\x01" * (196608 - 4) + b"END\n", 262144, 0))
    assert text.endswith("END\n")
    assert text.startswith("\x01")
    assert dropped > 200_000
    # Nothing had been dropped before, and the tail was empty: what is cut lies in the middle all the same.
    text, _ = bounded(Kept(b"start" + b"\x01" * 60_000 + b"END\n", b"", 60_009, 0))
    assert (text[:5], text[-4:]) == ("start", "END\n")


def test_a_result_fits_into_the_journal_whatever_was_written() -> None:
    worst = Kept(b"\x01" * 65536, b"\x01" * 196608, 1 << 40, (1 << 40) - 262144)
    result = shell_result(outcome(stdout=worst, stderr=worst, message="m" * 100_000, left=tuple(range(10_000))))
    assert len(json.dumps(result)) <= JOURNAL_BYTES
    assert 2 * STREAM_JSON_BYTES < JOURNAL_BYTES


def test_ok_is_exit_0_and_nothing_else() -> None:
    assert shell_result(outcome())["ok"]
    for fields in ({"code": 1}, {"code": None, "signal": 9}, {"reason": "timeout"}, {"reason": "oom"}):
        assert not shell_result(outcome(**fields))["ok"]


def test_a_lost_box_is_interrupted_with_the_same_fields() -> None:
    lost = shell_result(outcome(code=None, reason="box_lost", message="gone", stdout=None, stderr=None))
    assert (lost["reason"], lost["ok"], lost["message"]) == ("interrupted", False, "gone")
    assert set(interrupted("x")) == set(lost)
