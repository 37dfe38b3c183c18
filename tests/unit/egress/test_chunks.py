"""Size lines of chunked bodies, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.egress.chunks import Sizes
from ringfence.host.egress.refusals import Refusal

GOOD = b'5\r\nab\r\nc\r\n10;x="y"\r\n' + b"0\n" * 8 + b"\r\nF \r\n" + b"z" * 15 + b"\r\n0\r\nX: anything\r\n\r\nGET\n"


@given(st.lists(st.integers(0, len(GOOD)), max_size=12))
def test_a_good_body_however_it_is_cut(cuts: list[int]) -> None:
    sizes = Sizes()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(GOOD)], strict=True):
        sizes.feed(GOOD[start:end])


@pytest.mark.parametrize(
    "body",
    [
        b"f" * 17 + b"\r\n",
        b"\r\n",
        b"5\nab",
        b"-5\r\n",
        b"0x5\r\n",
        b" 5\r\n",
        b"5\r\nabcde\r\n\r\n",
        b"5\r\nabcdeXX\r\n",
        b"5;" + b"a" * 1100,
    ],
)
def test_sizes_that_are_none(body: bytes) -> None:
    for cut in range(len(body)):
        with pytest.raises(Refusal):
            sizes = Sizes()
            sizes.feed(body[:cut])
            sizes.feed(body[cut:])


@pytest.mark.parametrize("end", [b"\n", b"X: a\n\r\n", b"X: a\rb\r\n\r\n", b"X: a\r\n\n", b"X: " + b"a" * 8200])
def test_behind_the_last_chunk_lines_end_in_crlf_too(end: bytes) -> None:
    """h11 takes a bare line feed there for the end of the message, or of a line."""
    for cut in range(min(len(end), 20)):
        sizes = Sizes()
        with pytest.raises(Refusal):
            sizes.feed(b"3\r\nabc\r\n0\r\n" + end[:cut])
            sizes.feed(end[cut:])


def test_all_of_64_bits_are_a_size() -> None:
    Sizes().feed(b"f" * 16 + b"\r\nab")
