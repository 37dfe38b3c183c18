"""A configuration as the text that crosses the control socket, and back. Pure.

The text holds the key of the user's CA: it goes to that user's worker only. Must never be logged or stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ringfence.host.egress.configuration import Bounds, Configuration, Pin
from ringfence.host.egress.control import PART
from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.spelled import binding_from_json, binding_to_json, rule_from_json, rule_to_json


def as_text(configuration: Configuration) -> str:
    """ASCII."""
    proxy = configuration.upstream_proxy
    said = {
        "user": configuration.user,
        "rules": [rule_to_json(each) for each in configuration.rules],
        "bindings": [binding_to_json(each) for each in configuration.bindings],
        "ca_certificate": configuration.ca_certificate,
        "ca_key": configuration.ca_key.reveal().decode(),
        "roots": configuration.roots,
        "nameservers": [list(each) for each in configuration.nameservers],
        "pins": [asdict(each) for each in configuration.pins],
        "own_addresses": list(configuration.own_addresses),
        "internal": [list(each) for each in configuration.internal],
        "upstream_proxy": list(proxy) if proxy is not None else None,
        "gateway": configuration.gateway,
        "bounds": asdict(configuration.bounds),
    }
    return json.dumps(said)


def from_text(text: str) -> Configuration:
    """Failed: nothing that `as_text` of this release made."""
    try:
        return _read(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Failed("this is no configuration of this release") from None


def parts(text: str) -> list[str]:
    """In order; one at least."""
    return [text[at : at + PART] for at in range(0, max(len(text), 1), PART)]


def _read(said: Mapping[str, Any]) -> Configuration:
    proxy = said["upstream_proxy"]
    return Configuration(
        user=str(said["user"]),
        rules=tuple(rule_from_json(each) for each in said["rules"]),
        bindings=tuple(binding_from_json(each) for each in said["bindings"]),
        ca_certificate=str(said["ca_certificate"]),
        ca_key=Secret(said["ca_key"].encode()),
        roots=str(said["roots"]),
        nameservers=_pairs(said["nameservers"]),
        pins=tuple(Pin(**each) for each in said["pins"]),
        own_addresses=tuple(map(str, said["own_addresses"])),
        internal=tuple((str(pattern), str(network)) for pattern, network in said["internal"]),
        upstream_proxy=_pairs([proxy])[0] if proxy is not None else None,
        gateway=bool(said["gateway"]),
        bounds=Bounds(**said["bounds"]),
    )


def _pairs(raw: Iterable[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((str(host), int(port)) for host, port in raw)
