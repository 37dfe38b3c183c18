"""Frames: what is cut, wrapped, read and refused, whatever arrives."""

from __future__ import annotations

import contextlib
import itertools
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.wire.framing import (
    INT_MAX,
    INT_MIN,
    MAX_DEPTH,
    MAX_FRAME,
    MAX_KEYS,
    MAX_LOOP_FRAME,
    LineBuffer,
    LocalProtocolError,
    RemoteProtocolError,
    decode,
    encode,
    unwrap_run,
    wrap_run,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAF = st.none() | st.booleans() | st.integers(INT_MIN, INT_MAX) | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(LEAF | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)
OBJECT = st.dictionaries(TEXT, VALUE)
RUN_ID = st.text(string.ascii_lowercase + string.digits + "_", min_size=1, max_size=40)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


# --- lines


@given(st.lists(st.binary(max_size=50).filter(lambda line: b"\n" not in line)), st.lists(st.integers(0, 10_000)))
def test_lines_do_not_depend_on_how_the_bytes_arrive(lines: list[bytes], places: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    buffer = LineBuffer()
    assert [line for part in cut(data, places) for line in buffer.feed(part)] == lines
    assert buffer.pending == 0
    buffer.at_eof()


@given(st.binary(max_size=300), st.lists(st.integers(0, 1000)))
def test_any_bytes_are_cut_or_refused_and_nothing_gets_lost(data: bytes, places: list[int]) -> None:
    buffer = LineBuffer(limit=20)
    got = b""
    try:
        for part in cut(data, places):
            for line in buffer.feed(part):
                got += line + b"\n"
    except RemoteProtocolError:
        assert max(map(len, data.split(b"\n"))) > 20
        return
    assert len(got) + buffer.pending == len(data)
    assert data.startswith(got)


def test_half_a_frame_at_the_end_is_refused() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"{}\n{") == [b"{}"]
    assert buffer.pending == 1
    with pytest.raises(RemoteProtocolError, match="after 1 bytes"):
        buffer.at_eof()


def test_a_line_of_the_limit_passes_and_one_byte_more_does_not() -> None:
    line = b"x" * MAX_FRAME
    assert LineBuffer().feed(line + b"\n") == [line]
    with pytest.raises(RemoteProtocolError, match=str(MAX_FRAME)):
        LineBuffer().feed(line + b"x\n")
    with pytest.raises(RemoteProtocolError, match=str(MAX_FRAME)):
        LineBuffer().feed(line + b"x")  # before its newline comes: it may never come


def test_a_frame_that_comes_byte_by_byte_does_not_cost_an_object_for_each() -> None:
    buffer = LineBuffer()
    for _ in range(10_000):
        assert buffer.feed(b"x") == []
    assert len(buffer._parts) <= 1025
    assert buffer.feed(b"\n") == [b"x" * 10_000]


# --- the wrapper of loops


@given(RUN_ID, st.binary().filter(lambda frame: b"\n" not in frame))
def test_what_is_wrapped_comes_out_as_it_was_whatever_it_holds(run: str, frame: bytes) -> None:
    assert unwrap_run(wrap_run(run, frame)[:-1]) == (run, frame)


@pytest.mark.parametrize("run", ["", "x" * 41, "A", "a b", 'a"', "é", "a\n"])
def test_no_run_id(run: str) -> None:
    with pytest.raises(LocalProtocolError):
        wrap_run(run, b"{}")
    with pytest.raises(RemoteProtocolError):
        unwrap_run(b'{"run":"' + run.encode() + b'","f":{}}')


def test_what_is_not_wrapped_is_not_unwrapped() -> None:
    assert unwrap_run(b'{"id":1}') is None
    assert unwrap_run(b'{ "run":"a","f":{}}') is None
    with pytest.raises(RemoteProtocolError):
        unwrap_run(b'{"run":"a","x":{}}')
    with pytest.raises(RemoteProtocolError):
        unwrap_run(b'{"run":"a","f":1')


def test_a_loop_cannot_break_out_of_its_wrapper() -> None:
    """Its frame is read alone: what it appends to look like another run's is trailing rubbish."""
    wrapped = wrap_run("mine", b'{"m":"x"},"run":"other","f":{"m":"y"}')
    unwrapped = unwrap_run(wrapped[:-1])
    assert unwrapped is not None
    assert unwrapped[0] == "mine"
    with pytest.raises(RemoteProtocolError):
        decode(unwrapped[1])


def test_the_largest_frame_of_a_loop_fits_into_the_wire_when_wrapped() -> None:
    assert len(wrap_run("r" * 40, b"x" * MAX_LOOP_FRAME)) - 1 <= MAX_FRAME


# --- decode


@given(st.binary())
def test_decode_never_raises_anything_else_on_bytes(line: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(decode(line), dict)


@given(st.text('{}[]",:\\ue0123456789-+.EnaNIfty tru'))
def test_decode_never_raises_anything_else_on_what_looks_like_json(text: str) -> None:
    try:
        decode(text.encode("utf-8"))
    except RemoteProtocolError:
        return
    json.loads(text)  # what we take, everybody takes


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
        (b"[]", "not an object"),
        (b"1", "not an object"),
        (b"{}{}", "more than one"),
        (b"{} ", "more than one"),
        (b" {}", "not JSON"),
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":{"b":1,"b":1}}', "twice"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":Infinity}', "Infinity"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1e999}', "finite"),
        (b'{"a":-1e999}', "finite"),
        (b'{"a":9223372036854775808}', "64 bits"),
        (b'{"a":-9223372036854775809}', "64 bits"),
        (b'{"a":' + b"9" * 5000 + b"}", "64 bits"),
        (b'{"a":' + b"[" * 100_000, "JSON|deeper"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deeper"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "deeper"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "deeper"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"\\uDfff":1}', "surrogate"),
        (b'{"a":"\n"}', "not JSON"),
        (b"{" + b",".join(b'"%d":1' % n for n in range(MAX_KEYS + 1)) + b"}", "keys"),
        (b'{"a":[' + b",".join([b'{"b":1}'] * MAX_KEYS) + b"]}", "keys"),
    ],
)
def test_what_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        decode(line)


def test_what_is_just_allowed() -> None:
    decode(b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH)
    decode(b"{" + b",".join(b'"%d":1' % n for n in range(MAX_KEYS)) + b"}")
    assert decode(b'{"a":9223372036854775807}') == {"a": INT_MAX}
    assert decode(b'{"a":"\\ud83d\\ude00:{[\\\\ud800"}') == {"a": "\U0001f600:{[\\ud800"}


# --- encode


@given(OBJECT)
def test_what_is_said_is_heard(value: dict[str, object]) -> None:
    frame = encode(value)
    assert frame.isascii()
    assert frame.count(b"\n") == 1
    assert decode(frame[:-1]) == value


@pytest.mark.parametrize(
    "value",
    [
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": 2**63},
        {"a": "\ud800"},
        {"\udfff": 1},
        {"a": b"bytes"},
        {"a": {1, 2}},
        {"a": "x" * MAX_FRAME},
        {str(n): n for n in range(MAX_KEYS + 1)},
    ],
)
def test_what_the_far_end_would_refuse_is_not_said(value: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        encode(value)


def test_too_deep_or_endless_is_not_said() -> None:
    deep: dict[str, object] = {}
    for _ in range(MAX_DEPTH):
        deep = {"a": deep}
    with pytest.raises(LocalProtocolError, match="deeper"):
        encode(deep)
    endless: dict[str, object] = {}
    endless["a"] = endless
    with pytest.raises(LocalProtocolError, match="deeper"):
        encode(endless)


def test_an_error_in_one_frame_does_not_spoil_the_next() -> None:
    value = {"a": [1, 2, {"b": object()}]}
    for _ in range(3):
        with pytest.raises(LocalProtocolError, match="object"):
            encode(value)
    assert encode({"a": [1]}) == b'{"a":[1]}\n'
