"""What a JSON text would make of itself is counted right, wherever its strings and chunks begin and end."""

from __future__ import annotations

import itertools
import json
import time

import pytest

from ringfence.host.kernel import json_bounds
from ringfence.host.kernel.json_bounds import CONVERSATION, FRAME, JsonBounds, beyond

MIB = 1 << 20


def counted(text: str) -> tuple[int, int]:
    """(containers, commas) that a parser could come to, character by character."""
    containers = commas = 0
    within, at = False, 0
    while at < len(text):
        if text[at] == "\\":
            if not within:
                break  # an error to every parser
            at += 1
        elif text[at] == '"':
            within = not within
        elif not within:
            containers += text[at] in "[{"
            commas += text[at] == ","
        at += 1
    return containers, commas


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_never_less_is_counted_than_a_parser_would_make(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(json_bounds, "_CHUNK", chunk)
    for letters in itertools.product('[,"\\a', repeat=6):
        text = "".join(letters)
        containers, commas = counted(text)
        if containers:
            assert beyond(text.encode(), JsonBounds(containers - 1, 99)), text
        if commas + containers:
            assert beyond(text.encode(), JsonBounds(99, containers + commas - 1)), text
        if "\\" not in text.split('"')[0]:  # else nobody parses what is behind it, and it may be refused for that
            legal = text.count("\\") == 0
            assert not legal or beyond(text.encode(), JsonBounds(containers, containers + commas)) == "", text


@pytest.mark.parametrize(
    "text",
    ["[,{" * MIB, '\\"[,{' * 9000, "\\" * 65_537, '\\\\"' * 30_000 + "\\", '"' * 65_536, "ü€😀,[" * 9000],
)
def test_what_is_in_a_text_does_not_count(text: str) -> None:
    for ascii_only in (True, False):
        said = json.dumps({"a": text, "b": [text, {}]}, ensure_ascii=ascii_only).encode()
        assert beyond(said, FRAME) == ""
        assert beyond(said, JsonBounds(3, 5)) == ""
        assert beyond(said, JsonBounds(2, 99)) in ("", "more than 2 lists and objects")
        assert beyond(b"[" + b"{}," * 2 + said + b"]", JsonBounds(5, 99)) == "more than 5 lists and objects"


def test_the_bounds_are_exact() -> None:
    assert beyond(b"[" + b"{}," * 19_998 + b"{}]", FRAME) == ""
    assert beyond(b"[" + b"{}," * 19_999 + b"{}]", FRAME) == "more than 20000 lists and objects"
    assert beyond(b"[" + b"1," * 49_999 + b"1]", FRAME) == ""
    assert beyond(b"[" + b"1," * 50_000 + b"1]", FRAME) == "more than 50000 values"


@pytest.mark.parametrize("part", [b"[],", b"{},", b"1,", b'"",', b"[", b'{"a":'])
def test_a_bomb_is_refused_at_once(part: bytes) -> None:
    began = time.process_time()
    assert beyond(b"[" + part * (16 * MIB // len(part)), CONVERSATION)
    assert time.process_time() - began < 0.5  # 0.03 s; to parse it takes 1 to 10 s
