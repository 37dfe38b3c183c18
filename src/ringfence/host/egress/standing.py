"""The Site of a server: what its settings say and what its host has. Reads files; for the start."""

from __future__ import annotations

from pathlib import Path

from ringfence.host.egress import roots
from ringfence.host.egress.configuration import Pin
from ringfence.host.egress.site import Site
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import worded
from ringfence.host.kernel.settings_egress import DNS_PORT, PROXY_PORT, EgressSettings

_MAX_BYTES = 4 << 20


def site_of(settings: EgressSettings) -> Site:
    """Invalid: the file of further roots is none."""
    named = tuple(worded.place_of(each, DNS_PORT) for each in settings.nameservers)
    proxy = settings.upstream_proxy
    lines = enumerate(settings.rules, 1)
    return Site(
        roots=_joined(roots.host_roots(), _further(settings.root_ca)),
        nameservers=named or roots.host_resolvers(),
        pins=tuple(Pin(*worded.pin_of(each)) for each in settings.pins),
        own_addresses=roots.own_addresses(),
        internal=tuple(worded.internal_of(each) for each in settings.internal),
        upstream_proxy=worded.place_of(proxy, PROXY_PORT) if proxy else None,
        rules=tuple(rule for number, line in lines for rule in worded.rules_of(line, number)),
    )


def _further(path: str) -> str:
    if not path:
        return ""
    try:
        with Path(path).open(encoding="ascii") as file:
            text = file.read(_MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"egress.root_ca: {path} cannot be read: {error}", remedy='root_ca = ""') from error
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise Invalid(f"egress.root_ca: {path} has no certificate", remedy="give a file of PEM")
    return text


def _joined(first: str, second: str) -> str:
    """The host's come first: workers have those read before they are asked for."""
    return first + ("\n" if first and not first.endswith("\n") else "") + second
