"""Placeholders: look, randomness, and that each is found; the attack list E1, E16, F2, F4, F6, case 11, D59."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.outward.placeholders import RANDOM_BYTES, digest, find, make
from ringfence.host.kernel.outward.shapes import SHAPES

SHAPE = st.sampled_from(sorted(SHAPES))
RANDOMNESS = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)
TOKEN = re.compile(rb"[A-Za-z0-9._~-]*EXAMPLE[a-z2-7]{26}[A-Za-z0-9._~-]*")


@pytest.mark.parametrize(
    ("shape", "looks"),
    [
        ("github", r"ghp_[A-Za-z0-9]{36}"),
        ("github-fine", r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
        ("npm", r"npm_[A-Za-z0-9]{36}"),
        ("pypi", r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{70,}"),
        ("openai", r"sk-proj-[A-Za-z0-9_-]{156}"),
        ("openai-old", r"sk-[A-Za-z0-9]{48}"),
        ("anthropic", r"sk-ant-api03-[A-Za-z0-9_-]{93}AA"),
        ("slack-bot", r"xoxb-[0-9]{10,13}-[0-9]{10,13}-[A-Za-z0-9]{24,}"),
        ("gitlab", r"glpat-[A-Za-z0-9_-]{20,}"),
        ("huggingface", r"hf_[A-Za-z0-9]{34}"),
        ("generic", r"[A-Za-z0-9]{40}"),
    ],
)
def test_clients_that_look_at_the_shape_take_it(shape: str, looks: str) -> None:
    assert re.fullmatch(looks, make(SHAPES[shape], bytes(range(17))))


def test_a_jwt_is_parsed_and_does_not_expire() -> None:
    head, claims, signature = make(SHAPES["jwt"], bytes(17)).split(".")
    assert json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))["alg"] == "none"
    assert json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"] > 4_000_000_000
    assert len(base64.urlsafe_b64decode(signature + "=")) == 32


@given(SHAPE, RANDOMNESS)
def test_what_every_one_has(shape: str, randomness: bytes) -> None:
    text = make(SHAPES[shape], randomness)
    given = SHAPES[shape]
    assert len(text) == given.length
    assert text.startswith(given.prefix) and text.endswith(given.suffix)
    assert set(text[len(given.prefix) :]) <= set(given.alphabet)
    assert re.search(r"EXAMPLE[a-z2-7]{26}", text)


@given(SHAPE, RANDOMNESS, st.integers(0, 129))
def test_each_of_130_bits_counts(shape: str, randomness: bytes, bit: int) -> None:
    other = bytearray(randomness)
    other[bit // 8] ^= 0x80 >> bit % 8
    assert make(SHAPES[shape], bytes(other)) != make(SHAPES[shape], randomness)


def test_too_little_randomness_is_refused() -> None:
    with pytest.raises(ValueError, match="17 random bytes"):
        make(SHAPES["generic"], bytes(16))


def test_the_digest() -> None:
    assert digest("ghp_x") == digest(b"ghp_x") == hashlib.sha256(b"ghp_x").hexdigest()


PH = make(SHAPES["github"], b"0123456789abcdefg").encode()


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (b"Authorization: Bearer " + PH + b"\r\n", [PH]),
        (b"token " + PH, [PH]),
        (b"x-access-token:" + PH, [PH]),
        (b"/x?key=" + PH + b"&a=b", [PH]),
        (b"/" + PH + b"/x", [PH]),
        (b'{"a":"' + PH + b'"}', [PH]),
        (b"a=" + PH + b"; b=" + PH, [PH, PH]),
        (PH + b"," + PH, [PH, PH]),
        (PH + b"x", [PH + b"x"]),  # case 11: another token, and a placeholder still
        (b"x" + PH, [b"x" + PH]),
        (PH + b"." + PH, [PH + b"." + PH]),
        (PH + PH, [PH + PH]),
        (PH[4:37], [PH[4:37]]),
        (PH[:36], []),  # a character short
        (b"EXAMPLE", []),
        (b"EXAMPLEEXAMPLE" + b"a" * 26, [b"EXAMPLEEXAMPLE" + b"a" * 26]),
        (b"EXAMPLEXAMPLE" + b"a" * 26, [b"EXAMPLEXAMPLE" + b"a" * 26]),  # the second begins in the first
        (b"EXAMPLE" + b"A" * 26, []),
        (b"EXAMPLE" + b"a" * 25 + b"1", []),
        (b"", []),
        (b"\xff" + PH + b"\x00", [PH]),
    ],
)
def test_what_is_found(data: bytes, tokens: list[bytes]) -> None:
    assert [data[start:end] for start, end in find(data)] == tokens


PIECES = st.sampled_from(
    [b"EXAMPLE", b"EXAMPL", b"E", b"a" * 26, b"2b" * 13, b"A", b" ", b":", b".", b"-", b"\xff", PH, b"a" * 25]
)


@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_it_finds_what_a_regular_expression_finds(data: bytes) -> None:
    assert find(data) == [match.span() for match in TOKEN.finditer(data)]


@given(SHAPE, RANDOMNESS, st.binary(max_size=40), st.binary(max_size=40))
def test_none_gets_by(shape: str, randomness: bytes, before: bytes, after: bytes) -> None:
    text = make(SHAPES[shape], randomness).encode()
    data = before + text + after
    assert any(start <= data.index(text) and data.index(text) + len(text) <= end for start, end in find(data))


class Looked(bytes):
    """Counts the bytes that are looked at."""

    looks = 0

    def find(self, *asked: Any) -> int:
        found = super().find(*asked)
        start = asked[1] if len(asked) > 1 else 0
        self.looks += (found if found >= 0 else len(self)) - start + 1
        return found

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.looks += len(found) if isinstance(index, slice) else 1
        return found


NEAR = b"EXAMPLE" + b"a" * 25 + b" "


@pytest.mark.parametrize(
    ("piece", "found"),
    [(b"EXAMPLE", 0), (NEAR, 0), (NEAR.replace(b" ", b"a "), 1), (NEAR.replace(b" ", b"a"), None), (b"E", 0)],
)
def test_many_markers_take_linear_time(piece: bytes, found: int | None) -> None:
    """64 KiB of a body that only looks like placeholders: little more is looked at than 26 characters behind each marker."""
    data = Looked(piece * (65536 // len(piece)))
    assert len(find(data)) == (1 if found is None else found * (65536 // len(piece)))
    assert 65536 // 2 <= data.looks <= 6 * 65536  # EXAMPLE alone: 26 behind each 7, and 7 themselves
