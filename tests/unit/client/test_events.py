"""Server-sent events from bytes that arrive in any pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfence.client.events import EventParser

STREAM = (
    b': alive\n\nid: 1\nevent: reply\ndata: {"cursor": 1, "text": "\xc3\xa9"}\n\n: alive\r\n\r\n'
    b'id: 2\r\nevent: run.ended\r\ndata: {"cursor":\r\ndata: 2}\r\n\r\ndata: {"half": '
)
WANTED = [("reply", {"cursor": 1, "text": "é"}), ("run.ended", {"cursor": 2})]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_gives_the_same_events(cuts: list[int]) -> None:
    parser, found, last = EventParser(), [], 0
    for cut in [*sorted(cuts), len(STREAM)]:
        found += parser.feed(STREAM[last:cut])
        last = cut
    assert found == WANTED
