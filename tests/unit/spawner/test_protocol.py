"""parse_request raises BadRequest or returns a request, whatever the bytes; nothing but the listed fields gets through."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.spawner import protocol
from ringfence.spawner.packets import BadRequest, parse_request
from ringfence.spawner.protocol import BOUNDS, Limits, Request, encode_request
from tests.support.spawner_rig import CERTIFICATE

BOX = "abcdefghij234567"
REQUESTS: list[Request] = [
    protocol.Greet(1),
    protocol.Provision(BOX, "home"),
    protocol.Start(BOX, Limits()),
    protocol.Start(BOX, Limits(), f"tree:{'0' * 32}"),
    protocol.FindImage("debian"),
    protocol.FindImage(f"tree:{'a' * 32}"),
    protocol.Stop(BOX),
    protocol.Freeze(BOX),
    protocol.Thaw(BOX),
    protocol.Observe(BOX),
    protocol.SetLimits(BOX, Limits(memory=1 << 28)),
    protocol.Files(BOX),
    protocol.Remove(BOX),
    protocol.ListBoxes(),
    protocol.Listen(BOX, 0),
    protocol.Listen(BOX, 1021),
    protocol.Worker(BOX),
    protocol.EndWorker(BOX),
    protocol.Trust(BOX, CERTIFICATE),
    protocol.Debris(),
    protocol.Debris(BOX),
    protocol.Clear(BOX, "cgroup"),
    protocol.Clear("", "processes"),
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: str(r.op))
def test_round_trip(request_: Request) -> None:
    assert parse_request(encode_request(7, request_)) == (7, request_)


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_request(data)


@given(
    st.sampled_from(REQUESTS),
    st.sampled_from(
        ["id", "op", "box", "limits", "kind", "version", "uid", "port", "certificate", "debris", "after", "image"]
    ),
    values,
)
@settings(max_examples=1000)
def test_any_value_in_any_field(request_: Request, field: str, value: Any) -> None:
    raw = {"id": 1, "op": request_.op, **asdict(request_), field: value}
    try:
        number, parsed = parse_request(json.dumps(raw).encode())
    except BadRequest:
        return
    assert {"id": number, "op": parsed.op, **asdict(parsed)} == raw
    if isinstance(parsed, protocol.Listen):
        assert parsed.port == 0 or 100 <= parsed.port <= 1021
    if hasattr(parsed, "limits"):
        assert all(low <= getattr(parsed.limits, n) <= high for n, (low, high) in BOUNDS.items())


@pytest.mark.parametrize(
    "box",
    [
        "",
        "/",
        "..",
        "a" * 15,
        "a" * 17,
        "ABCDEFGHIJ234567",
        "abcdefghij23456\n",
        "abcdefghij23456/",
        "../../etc/passwd",
    ],
)
def test_no_box_id_is_a_path(box: str) -> None:
    with pytest.raises(BadRequest):
        parse_request(json.dumps({"id": 1, "op": "stop", "box": box}).encode())


@pytest.mark.parametrize("name", BOUNDS)
def test_limits_outside_the_bounds(name: str) -> None:
    low, high = BOUNDS[name]
    for wrong in (low - 1, high + 1, float(low), True, None, str(low)):
        limits = asdict(Limits()) | {name: wrong}
        with pytest.raises(BadRequest, match=name):
            parse_request(json.dumps({"id": 1, "op": "start", "box": BOX, "limits": limits, "image": "host"}).encode())


@pytest.mark.parametrize("data", [b"[" * 60_000, b'{"a":' * 12_000, b"9" * 60_000, b" " * 70_000], ids=len)
def test_bombs(data: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_request(data)
