"""A configuration crosses the socket whole, in parts that fit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ringfence.host.egress import configured
from ringfence.host.egress.configuration import Bounds, Configuration, Pin
from ringfence.host.egress.control import MAX_PACKET
from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.outward.credentials import Binding, Position
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Verdict
from ringfence.host.kernel.outward.secret import Secret

WHOLE = Configuration(
    user="usr_1",
    rules=(EgressRule("rul_1", Verdict.ALLOW, "api.test", methods=frozenset({"GET"}), layer=Layer.TENANT),),
    bindings=(Binding("bnd_1", "crd_1", "api.test", positions=(Position(query="key"),), uses=3),),
    ca_certificate="CERT",
    ca_key=Secret(b"KEY"),
    roots="ROOTS\n",
    nameservers=(("192.0.2.1", 53),),
    pins=(Pin("api.test", 443, "127.0.0.1", 8443),),
    own_addresses=("192.0.2.9",),
    internal=(("*.corp.test", "10.0.0.0/8"),),
    upstream_proxy=("192.0.2.3", 3128),
    gateway=False,
    bounds=Bounds(hold=3.0),
)


@pytest.mark.parametrize("configuration", [WHOLE, replace(WHOLE, upstream_proxy=None, rules=(), bindings=())])
def test_what_goes_in_comes_out(configuration: Configuration) -> None:
    text = configured.as_text(configuration)
    assert text.isascii() and configured.from_text(text) == configuration


def test_each_part_is_a_packet_that_fits() -> None:
    text = configured.as_text(replace(WHOLE, roots='"\\\n' * 100_000))  # the worst to escape
    parts = configured.parts(text)
    assert len(parts) > 1 and "".join(parts) == text
    assert max(len(json.dumps({"text": each})) for each in parts) < MAX_PACKET - 200
    assert configured.parts("") == [""]


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", '{"user": 1}'])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(Failed):
        configured.from_text(text)
