"""A list is read as strictly as a frame: what the wire refuses in one, this refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.strict_json import values_of
from ringfence.wire.framing import RemoteProtocolError, decode

REFUSED = [
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9223372036854775808", "-9223372036854775809", "1" * 5000),
    *('{"a":1,"a":1}', '[{"a":{"b":1,"b":2}}]', r'"\ud800"', r'"x\udfff"', r'{"\ud800":1}', r'["ok",{"a":["\udc00"]}]'),
    *(
        "[" * 64 + "]" * 64,
        "[" * 100_000,
        '{"a":' * 70 + "1" + "}" * 70,
        '"\n"',
        '"\x00"',
        "'a'",
        "01",
        "+1",
        ".5",
        "1.",
    ),
    *("tru", "{", "[1,]", '{"a"}', "1 2", "[1 2]", '"'),
]
TAKEN = ['"\\ud83d\\ude00"', "9223372036854775807", "-9223372036854775808", "1e308", "0.1", "null", '{"a":{"a":[]}}']


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_frame_may_not_say(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(b'{"p":%b}' % text.encode())
    for whole in ("[%s]", '["before", %s]', "[[%s]]"):
        with pytest.raises(Invalid):
            list(values_of((whole % text).encode()))


@pytest.mark.parametrize("text", [*TAKEN, "[" * 62 + "]" * 62])
def test_what_a_frame_may_say(text: str) -> None:
    value = decode(b'{"p":%b}' % text.encode())["p"]
    assert list(values_of(f"[{text}]".encode())) == [value]
    assert list(values_of(f" [ {text} , \n{text}\t]\r\n".encode())) == [value, value]


@pytest.mark.parametrize(
    "data",
    [b"", b" ", b"{}", b"1", b"[", b"[]]", b"[1", b"[1,", b"[1;", b"[,1]", b"[1,,1]", b"[] []", b"\xff[]", b'["\xff"]']
    + [codec[0] for codec in (("[]".encode("utf-16"),), ("[]".encode("utf-32"),), (b"\xef\xbb\xbf[]",))],
)
def test_what_is_no_list(data: bytes) -> None:
    with pytest.raises(Invalid):
        list(values_of(data))


def test_values_come_one_by_one() -> None:
    values = values_of(b'[1, {"a": "b"}, oh]')
    assert [next(values), next(values)] == [1, {"a": "b"}]
    with pytest.raises(Invalid, match="no value at character 16"):
        next(values)
    many: list[Any] = [{"n": n} for n in range(50_000)]
    assert list(values_of(json.dumps(many).encode())) == many
    assert list(values_of(b"[]")) == []
