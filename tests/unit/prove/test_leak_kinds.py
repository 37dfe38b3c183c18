"""The leak scan finds a secret in every form that it names, wherever in a text it stands, and nothing where there is none."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest

from ringfence.prove.leak_kinds import KINDS, found, needles

TEXT = b"rf_0123456789abcdefghijklmnopqrstuvwxyz"
BINARY = bytes(range(200, 232))  # as the vault key: 32 bytes that are no text


@pytest.mark.parametrize("secret", [TEXT, BINARY], ids=["text", "binary"])
@pytest.mark.parametrize("before", range(6))
def test_every_alignment_of_base64(secret: bytes, before: int) -> None:
    text = b"x" * before + secret + b"and more"
    wanted = needles("s", secret)
    assert found(b64encode(text), wanted)
    assert found(urlsafe_b64encode(text), wanted)


@pytest.mark.parametrize("secret", [TEXT, BINARY], ids=["text", "binary"])
def test_plain_hex_and_url(secret: bytes) -> None:
    wanted = needles("s", secret)
    everything = "".join(f"%{each:02x}" for each in secret)
    for text in (secret, secret.hex().encode(), secret.hex().upper().encode(), everything.encode()):
        assert found(b"{" + text + b"}", wanted), text
    assert found(quote(BINARY).encode(), needles("s", BINARY))


def test_split_over_lines_and_strings() -> None:
    half = len(TEXT) // 2
    first, second = TEXT[:half], TEXT[half:]
    wanted = needles("s", TEXT)
    assert found(first + b"\n" + second, wanted)
    assert found(json.dumps([first.decode(), second.decode()]).encode(), wanted)
    assert found(b"only the end: " + second, wanted)


def test_nothing_is_found_where_nothing_is() -> None:
    wanted = needles("s", TEXT)
    assert not found(b64encode(bytes(range(256)) * 20) + TEXT[: len(TEXT) // 2 - 1], wanted)


def test_forms_are_told_apart() -> None:
    assert {each.form for each in found(TEXT.hex().encode(), needles("s", TEXT))} == {"hex"}
    assert len({each.data for each in needles("s", TEXT)}) == len(needles("s", TEXT))


def test_the_table_has_each_kind_once() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 4
