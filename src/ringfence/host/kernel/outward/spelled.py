"""Rules and bindings as JSON and back. Pure.

What is not said has its default. A word that is not known, of a later release, is an error: it may be what makes a rule
narrower. So is a value of another type, or a shape that is not known: whoever works by it would fall over it, with what
was before it still in force. Must never be given input from outside: `checking.py` judges that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from ringfence.host.kernel.canonical import sha256_json
from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.outward.credentials import Binding, Position, Scheme, Use
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Mode, Verdict
from ringfence.host.kernel.outward.shapes import SHAPES

_RULE = frozenset(each.name for each in fields(EgressRule))
_BINDING = frozenset(each.name for each in fields(Binding))
_POSITION = frozenset(each.name for each in fields(Position))
_TEXTS = ("id", "host", "paths", "methods")
_LISTS = frozenset({"ports", "paths", "methods", "environment"})
_RULE_TYPES: Mapping[str, type] = MappingProxyType(
    {
        **dict.fromkeys(("note", *_TEXTS), str),
        **dict.fromkeys(("ports", "up_bytes", "down_bytes"), int),
        **dict.fromkeys(("plain", "websocket", "forward_literal"), bool),
    }
)
_BINDING_TYPES: Mapping[str, type] = MappingProxyType(
    {
        **dict.fromkeys(("credential", "environment", "shape", "recipe", *_TEXTS), str),
        "ports": int,
        "ranges": bool,
    }
)
_POSITION_TYPES: Mapping[str, type] = MappingProxyType(dict.fromkeys(("header", "query"), str))


def rule_to_json(rule: EgressRule) -> dict[str, Any]:
    return _said(rule)


def rule_from_json(raw: Mapping[str, Any]) -> EgressRule:
    """Failed: nothing that `rule_to_json` of this release wrote."""
    try:
        given = _known(raw, _RULE)
        given |= {"answer": Verdict(raw["answer"]), "layer": Layer(raw.get("layer", Layer.USER))}
        given["mode"] = Mode(raw.get("mode", Mode.INTERCEPT))
        _typed(given, _RULE_TYPES)
        _each(given, "ports", "paths")
        if "query" in given:
            given["query"] = tuple((str(name), str(value)) for name, value in given["query"])
        return EgressRule(**_sets(given))
    except (KeyError, TypeError, ValueError) as error:
        raise _strange("rule", raw) from error


def binding_to_json(binding: Binding) -> dict[str, Any]:
    return _said(binding)


def binding_from_json(raw: Mapping[str, Any]) -> Binding:
    """Failed: nothing that `binding_to_json` of this release wrote."""
    try:
        given = _known(raw, _BINDING)
        given["use"] = Use(raw.get("use", Use.PLACEHOLDER))
        _typed(given, _BINDING_TYPES)
        if given.get("shape", "generic") not in SHAPES or type(given.get("uses")) not in (int, type(None)):
            raise ValueError("a shape that is not known, or no number of uses")
        _each(given, "ports", "paths", "environment")
        if "positions" in given:
            given["positions"] = tuple(_position(each) for each in given["positions"])
        return Binding(**_sets(given))
    except (KeyError, TypeError, ValueError) as error:
        raise _strange("binding", raw) from error


def rule_digest(rule: EgressRule) -> str:
    """What makes two rules the same: all but id, note and layer."""
    return _digest(rule_to_json(rule), "id", "note", "layer")


def binding_digest(binding: Binding) -> str:
    """The same of bindings: all but the id, and the recipe it came from."""
    return _digest(binding_to_json(binding), "id", "recipe")


def _digest(body: dict[str, Any], *without: str) -> str:
    return sha256_json({name: value for name, value in body.items() if name not in without})


def _said(noun: EgressRule | Binding | Position) -> dict[str, Any]:
    """Its fields but those that have their default."""
    said: dict[str, Any] = {}
    for each in fields(noun):
        value = getattr(noun, each.name)
        if each.default is MISSING or value != each.default:
            said[each.name] = _plain(value)
    return said


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Position):
        return _said(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _known(raw: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    if raw.keys() - names:
        raise ValueError("a word that is not known")
    return dict(raw)


def _typed(given: Mapping[str, Any], types: Mapping[str, type]) -> None:
    """`types`: of what is there; of a list, of each of its items. No bool is a number here."""
    for name in given.keys() & types.keys():
        value = given[name]
        if isinstance(value, list | tuple) is not (name in _LISTS):
            raise ValueError(f"{name} is of another type")
        if any(type(each) is not types[name] for each in (value if name in _LISTS else (value,))):
            raise ValueError(f"{name} is of another type")


def _each(given: dict[str, Any], *names: str) -> None:
    for name in names:
        if name in given:
            given[name] = tuple(given[name])


def _sets(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "methods": frozenset(given.get("methods", ()))}


def _position(raw: Mapping[str, Any]) -> Position:
    given = _known(raw, _POSITION)
    _typed(given, _POSITION_TYPES)
    return Position(**{**given, "scheme": Scheme(raw.get("scheme", Scheme.BEARER))})


def _strange(what: str, raw: Mapping[str, Any]) -> Failed:
    return Failed(
        f"the {what} {str(raw.get('id', ''))[:64]!r} cannot be read: a later release wrote it, or it was changed",
        remedy="start the release that wrote it, or remove it",
    )
