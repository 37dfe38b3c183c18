"""What a worker says, read strictly. Pure. It is hostile: it reads what a box sends, and may be the box's by now.

Each reader takes what it names, of its type and within its bounds, or raises Malformed. What is not named may not be
there. Must never take a user or a box from a packet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringfence.host.egress.counting import RING
from ringfence.host.egress.distrust import FINDING
from ringfence.host.egress.needs import Intent, Outcome, Traffic
from ringfence.host.egress.packets import Malformed
from ringfence.host.egress.refusals import FINDINGS
from ringfence.host.egress.synthetic import TOLD
from ringfence.host.kernel.errors import Invalid, RingfenceError
from ringfence.host.kernel.outward import authority
from ringfence.host.kernel.outward.checking import check_rule
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.outward.spelled import rule_from_json
from ringfence.host.kernel.outward.targets import LONGEST

_ID, _HOST, _METHOD, _TEXT = 64, 255, 32, 512
_MOST = 1 << 62
_NAME = re.compile(r"[a-z][a-z_]{0,39}")
# Of findings: what is refused (refusals.FINDINGS), a fault of the worker's, and what it has noticed of a request.
# Closed: the rows of them stand beside rows of acts.
KINDS = frozenset({*map(str, FINDINGS), FINDING, "secret_reflected", "worker_fault"})
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_DETAILS, _MAX_ITEMS = 8, 200


@dataclass(frozen=True, slots=True)
class SecretAsk:
    n: int
    credential: str
    binding: str
    invocation: str
    host: str
    method: str
    path: str
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    kind: str
    invocation: str
    details: Mapping[str, str]


def number(said: Mapping[str, Any], name: str = "n", most: int = _MOST) -> int:
    value = said.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise Malformed(f"{name} is no number that may be")
    return value


def text(said: Mapping[str, Any], name: str, most: int = _ID) -> str:
    value = said.get(name)
    if not isinstance(value, str) or len(value) > most or not _storable(value):
        raise Malformed(f"{name} is no text that may be")
    return value


def only(said: Mapping[str, Any], *names: str) -> None:
    """Besides its kind."""
    if not said.keys() <= {"t", *names}:
        raise Malformed("a packet with more in it than its kind has")


def secret(said: Mapping[str, Any]) -> SecretAsk:
    only(said, "n", "credential", "binding", "invocation", "host", "method", "path", "refused")
    return SecretAsk(
        number(said),
        text(said, "credential"),
        text(said, "binding"),
        text(said, "invocation"),
        text(said, "host", _HOST),
        text(said, "method", _METHOD),
        text(said, "path", LONGEST),
        number(said, "refused") if "refused" in said else 0,
    )


def intent(said: Mapping[str, Any]) -> tuple[int, Intent]:
    only(said, "n", "invocation", "credential", "binding", "host", "port", "method", "path")
    return number(said), Intent(
        text(said, "invocation"),
        text(said, "credential"),
        text(said, "binding"),
        text(said, "host", _HOST),
        number(said, "port", 65535),
        text(said, "method", _METHOD),
        text(said, "path", LONGEST),
    )


def outcome(said: Mapping[str, Any]) -> tuple[str, Outcome]:
    """(row, how it ended)."""
    only(said, "row", "status", "error", "up", "down")
    ended = Outcome(number(said, "status", 999), text(said, "error", _TEXT), number(said, "up"), number(said, "down"))
    return text(said, "row", 128), ended


def hold(said: Mapping[str, Any]) -> tuple[int, str, EgressRule | None, str]:
    """(n, invocation, rule, query): what would be added, checked, None where nobody could add it: no box ends its
    worker by what it asks for. `query`: names of parameters that the rule says nothing of."""
    only(said, "n", "invocation", "rule", "query")
    raw = said.get("rule")
    if not isinstance(raw, Mapping):
        raise Malformed("a rule that is none")
    rule: EgressRule | None
    try:
        rule = check_rule(rule_from_json(raw))
    except Invalid:
        rule = None
    except (RingfenceError, TypeError, AttributeError):
        raise Malformed("a rule that is none") from None
    if rule is not None and not _typed(rule):
        raise Malformed("a rule that is none")
    return number(said), text(said, "invocation"), rule, text(said, "query", _TEXT)


def _typed(rule: EgressRule) -> bool:
    """A yes stores it, and JSON has numbers and truth that Python takes for one another."""
    flags, numbers = (rule.plain, rule.websocket, rule.forward_literal), (*rule.ports, rule.up_bytes, rule.down_bytes)
    return all(type(each) is bool for each in flags) and all(type(each) is int for each in numbers)


def rested(said: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Names and their synthetic addresses, for the next worker, which looks whether that can be (synthetic.Names.recall)."""
    only(said, "names")
    items = said.get("names")
    if not isinstance(items, list) or len(items) > TOLD:
        raise Malformed("names that are none")
    return tuple(map(_stands_for, items))


def _stands_for(raw: object) -> tuple[str, str]:
    if not isinstance(raw, list) or len(raw) != 2:
        raise Malformed("a name that is none")
    said = dict(zip(("name", "address"), raw, strict=True))
    name = text(said, "name", _HOST)
    try:
        canonical = authority.host(name.encode())
    except authority.Malformed:
        raise Malformed("a name that is none") from None
    if canonical != name or authority.literal(name) is not None:
        raise Malformed("a name that is none")
    return name, text(said, "address", 15)


def model(said: Mapping[str, Any]) -> tuple[int, str, str]:
    """(n, invocation, digest of the key)."""
    only(said, "n", "invocation", "digest")
    digest = text(said, "digest")
    if not _DIGEST.fullmatch(digest):
        raise Malformed("a digest that is none")
    return number(said), text(said, "invocation"), digest


def traffic(said: Mapping[str, Any]) -> tuple[list[Traffic], int]:
    """(items, requests that were not counted)."""
    only(said, "items", "dropped")
    items = said.get("items")
    if not isinstance(items, list) or len(items) > min(_MAX_ITEMS, RING):
        raise Malformed("items that are none")
    return [_item(each) for each in items], number(said, "dropped")


def _item(raw: object) -> Traffic:
    if not isinstance(raw, Mapping):
        raise Malformed("an item that is none")
    only(raw, "host", "port", "verdict", "reason", "invocation", "method", "requests", "up", "down")
    return Traffic(
        text(raw, "host", _HOST),
        number(raw, "port", 65535),
        text(raw, "verdict", 16),
        text(raw, "reason"),
        text(raw, "invocation"),
        text(raw, "method", _METHOD),
        number(raw, "requests"),
        number(raw, "up"),
        number(raw, "down"),
    )


def finding(said: Mapping[str, Any]) -> Found:
    only(said, "kind", "invocation", "details")
    kind, details = text(said, "kind"), said.get("details")
    if kind not in KINDS or not isinstance(details, Mapping) or len(details) > _MAX_DETAILS:
        raise Malformed("a finding that is none")
    return Found(kind, text(said, "invocation"), {name: text(details, name, _TEXT) for name in map(_name, details)})


def _name(raw: object) -> str:
    if not isinstance(raw, str) or not _NAME.fullmatch(raw):
        raise Malformed("a name that is none")
    return raw


def _storable(value: str) -> bool:
    """ASCII without line ends and other controls: what is said stands in lines of a log and in an operator's terminal."""
    return value.isascii() and value.isprintable()
