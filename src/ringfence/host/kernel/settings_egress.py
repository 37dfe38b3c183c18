"""The keys of [egress] in ringfence.toml: rows of settings_file.KEYS, and what they make. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.hidden_values import shown_place, shown_text
from ringfence.host.kernel.outward import worded
from ringfence.host.kernel.settings_key import Key

_MOST = 500
DNS_PORT, PROXY_PORT = 53, 3128
_LISTS = ("nameservers", "pins", "internal", "rules")


@dataclass(frozen=True, slots=True)
class EgressSettings:
    """The table [egress]. Texts as they were written, each checked."""

    enabled: bool = True
    nameservers: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    upstream_proxy: str = ""
    root_ca: str = ""
    rules: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> EgressSettings:
        return cls(**{**raw, **{name: tuple(raw.get(name, ())) for name in _LISTS}})


def loopback_pins(settings: EgressSettings) -> list[str]:
    """Those that lead to this very host: for tests, and no way out of anything."""
    return [each for each in settings.pins if ipaddress.ip_address(worded.pin_of(each)[2]).is_loopback]


def _texts(allowed: str, check: Callable[[str, int], object]) -> Callable[[object], tuple[str, ...]]:
    def checked(value: object) -> tuple[str, ...]:
        if (
            not isinstance(value, list | tuple)
            or len(value) > _MOST
            or not all(isinstance(each, str) for each in value)
        ):
            raise ValueError(f"a list of at most {_MOST} of {allowed}")
        for number, each in enumerate(value, 1):
            _tried(check, each, number, allowed)
        return tuple(value)

    return checked


def _tried(
    check: Callable[[str, int], object],
    text: str,
    number: int,
    allowed: str,
    shown: Callable[[str], str] = shown_text,
) -> None:
    """ValueError. Of a text that may hold a password nothing is said in the check's own words, which quote it."""
    try:
        check(text, number)
    except Invalid as error:
        if shown(text) != text:
            raise ValueError(f"right throughout: {shown(text)!r} is no {allowed}") from None
        raise ValueError(f"right throughout: {error.message}; {error.remedy}") from None


def _yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _proxy(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(_PLACE)
    if value:
        _tried(worded.place_of, value, PROXY_PORT, _PLACE, shown_place)
    return value


def _path(value: object) -> str:
    if not isinstance(value, str) or "\0" in value or (value and not value.startswith("/")):
        raise ValueError("an absolute path, or empty")
    return value


_PLACE = "ADDRESS or ADDRESS:PORT"
_RULES = "allow, deny or ask HOST [METHOD,...] [:PORT] [/PATH]; preset NAME[:HOST]"
_PINS = "HOST[:PORT]=ADDRESS[:PORT]"

EGRESS = (
    Key(
        "egress.enabled",
        "true or false",
        "true, false",
        "whether boxes have a way out at all: through the worker of their user, which lets through what a rule allows",
        _yes,
    ),
    Key(
        "egress.nameservers",
        "list",
        _PLACE,
        "who is asked for the addresses of names that a rule lets through; empty = those of the host",
        _texts(_PLACE, lambda text, _: worded.place_of(text, DNS_PORT)),
    ),
    Key(
        "egress.pins",
        "list",
        _PINS,
        "names that have an address by the operator's word, internal ones included; to loopback not with "
        "`--profile production`",
        _texts(_PINS, lambda text, _: worded.pin_of(text)),
    ),
    Key(
        "egress.internal",
        "list",
        "HOST=RANGE",
        "names that may lead to addresses of a private range, such as *.corp.example=10.1.0.0/16",
        _texts("HOST=RANGE", lambda text, _: worded.internal_of(text)),
    ),
    Key(
        "egress.upstream_proxy",
        "address:port",
        _PLACE,
        "the proxy by which this host reaches the internet, asked by CONNECT; empty = none",
        _proxy,
    ),
    Key(
        "egress.root_ca",
        "path",
        "absolute",
        "PEM of further roots that servers are believed by: by workers, read at start, and in boxes, from a box's next "
        "start on; "
        "empty = the host's alone",
        _path,
    ),
    Key(
        "egress.rules",
        "list",
        _RULES,
        "rules of the installation, above every tenant's and user's: a deny of them is final",
        _texts(_RULES, worded.rules_of),
    ),
)
