"""Events out of bytes, however they are cut; keys out of answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models.hiding import Hiding, hidden
from ringfence.host.models.sse import MAX_EVENT, Events, first_end

STREAM = b'event: a\ndata: {"n": 1}\n\n: comment\n\ndata: {"n":\ndata: 2}\r\n\r\ndata: [DONE]\n\ndata: {"n"\n\ndata:{"n": 3}\n\nhalf'


def cut(data: bytes, at: list[int]) -> list[bytes]:
    ends = sorted(each % (len(data) + 1) for each in at)
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(st.lists(st.integers(0, 200), max_size=8))
def test_however_it_is_cut_the_events_are_the_same(at: list[int]) -> None:
    events = Events()
    found = [each for piece in cut(STREAM, at) for each in events.take(piece)]
    assert b"".join(each.raw for each in found) + events.rest == STREAM and events.rest == b"half"
    data = [(each.name, each.data) for each in found if each.data is not None]
    assert data == [("a", {"n": 1}), ("", {"n": 2}), ("", {"n": 3})]


def test_an_event_beyond_all_bounds_goes_by_and_is_not_kept() -> None:
    events, sent, found = Events(), b"", []
    for piece in (b"data: ", *[b"x" * 65_536] * (MAX_EVENT // 65_536 + 20), b"\n", b'\ndata: {"n": 1}\n\n'):
        sent += piece
        found += events.take(piece)
        assert len(events.rest) <= MAX_EVENT
    assert b"".join(each.raw for each in found) == sent
    assert [each.data for each in found if each.data is not None] == [{"n": 1}]


def test_where_an_event_ends() -> None:
    assert [first_end(each) for each in (b"ab\n\ncd", b"ab", b"\r\n\r\n")] == [4, 0, 4]


KEY = b"sk-abcabcabd-12345"


@given(
    st.lists(st.sampled_from([KEY, b"sk-abcabc", b"sk-", b"hello ", b"s", KEY[:-1], b"\x00\xff"]), max_size=12),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_a_key_is_masked_however_it_is_cut(parts: list[bytes], at: list[int]) -> None:
    data = b"".join(parts)
    hiding = Hiding(Secret(KEY))
    found = b"".join(hiding.take(piece) for piece in cut(data, at)) + hiding.rest()
    assert found == data.replace(KEY, b"*" * len(KEY)) == hidden(data, Secret(KEY))
    assert hiding.hits == data.count(KEY)


def test_nothing_waits_that_cannot_begin_the_key() -> None:
    hiding = Hiding(Secret(KEY))
    assert [hiding.take(each) for each in (b"data: hello\n\n", b"sk-abx", b"sk-ab", b"x")] == [
        b"data: hello\n\n",
        b"sk-abx",
        b"",
        b"sk-abx",
    ]
    assert Hiding(None).take(KEY) == KEY and Hiding(Secret(b"short")).take(b"short") == b"short"
