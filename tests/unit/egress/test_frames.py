"""Frames of a server, looked through: nothing is late, nothing is lost, and no secret passes, however it was cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.egress.frames import Frames
from ringfence.host.egress.scrub import Forms, Scrubber, needles

SECRET = b"s3cret/Value+9876543210"
FORMS = Forms.of(needles(SECRET))
TEXT, BINARY, MORE, PING = 1, 2, 0, 9


def frame(kind: int, payload: bytes, *, final: bool = True) -> bytes:
    size = len(payload)
    head = bytes([kind | (0x80 if final else 0)])
    if size <= 125:
        return head + bytes([size]) + payload
    if size < 1 << 16:
        return head + b"\x7e" + size.to_bytes(2, "big") + payload
    return head + b"\x7f" + size.to_bytes(8, "big") + payload


def message(pieces: list[bytes], pings: list[bytes]) -> bytes:
    """In so many frames, with a ping behind each but the last."""
    said = b""
    for at, piece in enumerate(pieces):
        said += frame(TEXT if at == 0 else MORE, piece, final=at + 1 == len(pieces))
        if at < len(pings) and at + 1 < len(pieces):
            said += frame(PING, pings[at])
    return said


def cut(said: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(said) + 1) for place in places} | {len(said)})
    return [said[start:end] for start, end in zip([0, *ends], ends, strict=False)]


beginnings = st.sampled_from([form[:n] for form in FORMS.all for n in (1, 2, len(form) - 1)])
payloads = st.one_of(st.binary(max_size=200), beginnings, st.just(bytes(70_000)), st.just(b""))
# A beginning and the byte behind it, by chance, are the whole.
harmless = st.lists(payloads, min_size=1, max_size=4).filter(
    lambda pieces: not any(form in b"".join(pieces) for form in FORMS.all)
)
messages = st.builds(message, harmless, st.lists(st.binary(max_size=125), max_size=3))


@given(st.lists(messages, max_size=4), st.lists(st.integers(0, 1 << 20), max_size=6))
def test_whole_messages_go_on_at_once_and_as_they_are(said: list[bytes], places: list[int]) -> None:
    """Also those that end in what a secret begins with."""
    frames, got = Frames(Scrubber(FORMS)), b""
    for piece in said:
        for part in cut(piece, places):
            got += frames.feed(part)
        assert got.endswith(piece[-1:]) and not frames._behind
    assert got == b"".join(said) and frames.end() == b""


@given(
    st.sampled_from(FORMS.all), st.lists(st.integers(0, 1000), max_size=4), st.lists(st.integers(0, 1000), max_size=6)
)
def test_a_secret_passes_by_no_cut(form: bytes, fragments: list[int], places: list[int]) -> None:
    said = message(cut(b"before " + form + b" after", fragments), [b"ping"] * 5)
    scrubber = Scrubber(FORMS)
    frames = Frames(scrubber)
    got = b"".join(frames.feed(part) for part in cut(said, places)) + frames.end()
    masked = cut(b"before " + b"*" * len(form) + b" after", fragments)
    assert got == message(masked, [b"ping"] * 5) and scrubber.hits == 1


def test_a_control_frame_is_looked_through() -> None:
    frames = Frames(Scrubber(FORMS))
    assert frames.feed(frame(PING, b"x" + SECRET)) == frame(PING, b"x" + b"*" * len(SECRET))


def test_what_ends_in_the_midst_is_not_lost() -> None:
    frames = Frames(Scrubber(FORMS))
    said = frame(TEXT, b"x" + SECRET[:5], final=False) + frame(MORE, bytes(300))[:3]
    assert frames.feed(said) + frames.end() == said


@pytest.mark.parametrize(
    "said",
    [
        b"\x81\x85\x00\x00\x00\x00hello",
        b"\xc1\x01a",
        b"\x09\x01a",
        b"\x89\x7e\x00\x7f" + bytes(127),
        frame(TEXT, SECRET[:5], final=False) + frame(MORE, b"", final=False) * 40_000,
    ],
    ids=["masked", "compressed", "cut control", "long control", "empty without end"],
)
def test_what_no_client_would_take_ends_it(said: bytes) -> None:
    with pytest.raises(ConnectionError):
        Frames(Scrubber(FORMS)).feed(said)
