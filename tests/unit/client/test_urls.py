"""Names and bytes into URLs, and errors from answers."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.client import errors, urls


@given(st.text(min_size=1, max_size=20))
def test_a_segment_is_one_segment_and_comes_back(name: str) -> None:
    quoted = urls.segment(name) if name.isascii() or name.encode("utf-8", "ignore").decode() == name else "x"
    assert "/" not in quoted and "?" not in quoted and quoted not in (".", "..")
    if quoted != "x":
        assert unquote_to_bytes(quoted) == name.encode()


def test_no_name_is_no_segment() -> None:
    """`users//box` would be another address."""
    with pytest.raises(errors.Invalid, match="empty"):
        urls.user_path("default", "")


def test_bytes_and_gaps_in_a_query() -> None:
    assert urls.query(path=b"a b/\xff+&=", after=None, limit=3) == "?path=a%20b%2F%FF%2B%26%3D&limit=3"
    assert urls.query(after=None) == ""


@pytest.mark.parametrize(
    ("code", "status", "kind", "exit_code"),
    [
        ("not_found", 404, errors.NotFound, 4),
        ("disk_full", 507, errors.Unavailable, 5),
        ("key_reused", 409, errors.Conflict, 1),
        ("lane_busy", 409, errors.Conflict, 1),
        ("brand_new", 403, errors.Refused, 3),
        ("brand_new", 500, errors.Failed, 1),
        ("too_large", 413, errors.Invalid, 2),
    ],
)
def test_errors_by_code_then_by_status(code: str, status: int, kind: type, exit_code: int) -> None:
    error = errors.from_answer({"error": {"code": code, "message": "m", "remedy": "r", "details": {"a": 1}}}, status)
    assert type(error) is kind
    assert (error.code, error.message, error.remedy, error.details, error.exit_code) == (
        code,
        "m",
        "r",
        {"a": 1},
        exit_code,
    )


@pytest.mark.parametrize("answer", [None, [], {}, {"error": "x"}, {"error": {"code": 3}}])
def test_an_answer_that_makes_no_sense(answer: object) -> None:
    assert isinstance(errors.from_answer(answer, 502), errors.Failed)
