"""One spelling for each JSON value."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.canonical import canonical_json, digest, digest_of, sha256_json
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.runs import Effect

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_a_known_spelling_and_digest() -> None:
    assert canonical_json({"b": [1, 1.0, None], "a": "é"}) == b'{"a":"\\u00e9","b":[1,1.0,null]}'
    expected = hashlib.sha256(b'["shell",{"command":"ls"},"local"]').hexdigest()
    assert digest("shell", {"command": "ls"}, Effect.LOCAL) == expected


def test_the_digest_covers_each_part() -> None:
    base = digest("shell", {"command": "ls"}, Effect.LOCAL)
    assert base != digest("write", {"command": "ls"}, Effect.LOCAL)
    assert base != digest("shell", {"command": "ls "}, Effect.LOCAL)
    assert base != digest("shell", {"command": "ls"}, Effect.ONCE)


@given(JSON)
def test_order_of_keys_is_no_difference_and_it_reads_back(value: Any) -> None:
    spelled = canonical_json(value)
    assert spelled.isascii()
    again = json.loads(spelled)
    assert again == value
    assert canonical_json(_reversed(again)) == spelled


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(list(value))}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


def _bomb() -> Any:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def _circle() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {1: "a"}, {"a": {None: 1}}, b"bytes", {"a": object()}, _bomb(), _circle()]
)
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(Invalid):
        sha256_json(value)


def test_lone_surrogates_have_a_spelling() -> None:
    assert sha256_json("\udc80") != sha256_json("\udc81")


def test_a_digest_of_what_is_spelled_already_is_the_same() -> None:
    for tool, arguments in (("shell", {"b": 1, "a": ["ü", 1.0]}), ('q"\\', {}), ("\ud800", {"x": None})):
        assert digest_of(tool, canonical_json(arguments), Effect.PURE) == digest(tool, arguments, Effect.PURE)
        assert digest(tool, arguments, Effect.PURE) == sha256_json([tool, arguments, "pure"])
