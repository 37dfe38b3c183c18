"""Rules and bindings as JSON and back: nothing is lost, and nothing that is not known is taken for a wider rule."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.outward import spelled
from ringfence.host.kernel.outward.credentials import Binding, Position, Scheme, Use
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Mode, Verdict
from ringfence.host.kernel.outward.shapes import SHAPES

words = st.text(max_size=8)
ports = st.lists(st.integers(1, 65535), max_size=3).map(tuple)
methods = st.frozensets(st.sampled_from(["GET", "POST"]))
RULES: dict[str, st.SearchStrategy[Any]] = {
    "id": words,
    "answer": st.sampled_from(Verdict),
    "host": words,
    "ports": ports,
    "plain": st.booleans(),
    "methods": methods,
    "paths": st.lists(words, max_size=3).map(tuple),
    "query": st.lists(st.tuples(words, words), max_size=2).map(tuple),
    "mode": st.sampled_from(Mode),
    "websocket": st.booleans(),
    "forward_literal": st.booleans(),
    "up_bytes": st.integers(0, 1 << 40),
    "down_bytes": st.integers(0, 1 << 40),
    "layer": st.sampled_from(Layer),
    "note": words,
}
rules = st.builds(EgressRule, **RULES)
BINDINGS: dict[str, st.SearchStrategy[Any]] = {
    "id": words,
    "credential": words,
    "host": words,
    "ports": ports,
    "methods": methods,
    "paths": st.lists(words, max_size=3).map(tuple),
    "positions": st.lists(st.builds(Position, words, st.sampled_from(Scheme), words), max_size=3).map(tuple),
    "use": st.sampled_from(Use),
    "environment": st.lists(words, max_size=2).map(tuple),
    "shape": st.sampled_from(sorted(SHAPES)),
    "uses": st.none() | st.integers(1, 9),
    "recipe": words,
    "ranges": st.booleans(),
}
bindings = st.builds(Binding, **BINDINGS)


@given(rules)
def test_rules(rule: EgressRule) -> None:
    assert spelled.rule_from_json(json.loads(json.dumps(spelled.rule_to_json(rule)))) == rule


@given(bindings)
def test_bindings(binding: Binding) -> None:
    assert spelled.binding_from_json(json.loads(json.dumps(spelled.binding_to_json(binding)))) == binding


def test_every_field_is_tried() -> None:
    assert set(RULES) == {each.name for each in fields(EgressRule)}
    assert set(BINDINGS) == {each.name for each in fields(Binding)}


@pytest.mark.parametrize(
    "change",
    [
        *({"narrower": True}, {"answer": "maybe"}, {"mode": "tunnel"}, {"layer": "moon"}, {"ports": 5}),
        *({"query": [["a"]]}, {"ports": [443.0]}, {"ports": [True]}, {"host": ["a.test"]}, {"host": 5}, {"note": None}),
        *({"paths": "/a"}, {"paths": [None]}, {"plain": 1}, {"up_bytes": "5"}, {"down_bytes": 1.5}),
    ],
)
def test_a_rule_of_tomorrow_is_no_rule(change: dict[str, Any]) -> None:
    known = {"id": "rul_1", "answer": "allow", "host": "api.test"}
    assert spelled.rule_from_json(known).host == "api.test"
    with pytest.raises(Failed, match="rul_1"):
        spelled.rule_from_json(known | change)


@pytest.mark.parametrize(
    "change",
    [
        *({"narrower": 1}, {"use": "always"}, {"positions": [{"scheme": "x"}]}, {"positions": [{"cookie": "x"}]}),
        *({"shape": "of-a-later-release"}, {"shape": 5}, {"uses": "1"}, {"uses": True}, {"environment": "TOKEN"}),
        *({"host": None}, {"ranges": 1}, {"positions": [{"header": 5}]}),
    ],
)
def test_a_binding_of_tomorrow_is_no_binding(change: dict[str, Any]) -> None:
    known = {"id": "bnd_1", "credential": "crd_1", "host": "api.test"}
    assert spelled.binding_from_json(known).positions == (Position(),)
    with pytest.raises(Failed, match="bnd_1"):
        spelled.binding_from_json(known | change)


def test_what_is_missing_is_no_rule() -> None:
    for raw in ({}, {"id": "x"}, {"id": "x", "host": "h"}):
        with pytest.raises(Failed):
            spelled.rule_from_json(raw)
        with pytest.raises(Failed):
            spelled.binding_from_json(raw)


def test_digests() -> None:
    rule = EgressRule("rul_1", Verdict.ALLOW, "api.test")
    assert spelled.rule_digest(rule) == spelled.rule_digest(replace(rule, id="rul_2", note="x", layer=Layer.TENANT))
    assert spelled.rule_digest(rule) != spelled.rule_digest(replace(rule, methods=frozenset({"GET"})))
    binding = Binding("bnd_1", "crd_1", "api.test")
    assert spelled.binding_digest(binding) == spelled.binding_digest(replace(binding, id="bnd_2", recipe="github"))
    assert spelled.binding_digest(binding) != spelled.binding_digest(replace(binding, credential="crd_2"))
