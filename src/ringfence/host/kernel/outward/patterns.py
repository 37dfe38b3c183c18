"""Patterns of hosts, by labels, and the exact values of a query that a rule asks for. Pure.

Must never match by the end of a text: a suffix begins at a dot.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import unquote_plus

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import authority
from ringfence.host.kernel.outward.addresses import MAPPED, Network

ANY, ONE, MANY = "*", "*.", "**."
_BLANK = string.whitespace + "\0"


@dataclass(frozen=True, slots=True)
class HostPattern:
    """`kind`: "" exact, `*.`, `**.`, `*`, or "cidr" with `network`. `name`: canonical, without the wildcard."""

    kind: str
    name: str = ""
    network: Network | None = None

    def __str__(self) -> str:
        return self.kind if self.kind == ANY else str(self.network) if self.network else self.kind + self.name

    @property
    def names(self) -> bool:
        """Whether a credential may be bound to it: a name, or wildcards below one."""
        return self.network is None and self.kind != ANY

    def only(self, host: str) -> bool:
        """Whether it is this canonical host and no other."""
        if self.network is not None:
            return self.network.num_addresses == 1 and str(self.network.network_address) == host
        return self.kind == "" and self.name == host

    def covers(self, name: str) -> bool:
        """A canonical name, no literal."""
        if self.kind in ("", ANY):
            return self.kind == ANY or name == self.name
        if self.kind == ONE:
            return name.partition(".")[2] == self.name
        return self.kind == MANY and name.endswith("." + self.name)

    def within(self, wider: HostPattern) -> bool:
        """Whether every host of this one is one of `wider`."""
        if self.network is not None or wider.network is not None:
            return _subnet(self.network, wider.network)
        if wider.kind == ANY or self == wider:
            return True
        if self.kind == "":
            return wider.covers(self.name)
        inside = self.name == wider.name or self.name.endswith("." + wider.name)
        return wider.kind == MANY and self.kind in (ONE, MANY) and inside

    def meets(self, other: HostPattern) -> bool:
        """Whether some host is one of both. Wildcards of names nest, but for `*.a.b` and `**.b`, which do too."""
        return self.within(other) or other.within(self)


def host_pattern(text: str) -> HostPattern:
    """Invalid: not a host, `*.NAME`, `**.NAME`, `*` or a CIDR."""
    if text == ANY:
        return HostPattern(ANY)
    if "/" in text:
        return HostPattern("cidr", network=_network(text))
    kind = next((each for each in (MANY, ONE) if text.startswith(each)), "")
    name = text.removeprefix(kind)
    if "*" in name:
        raise Invalid(
            f"{text[:300]!a}: a star is a whole leftmost label",
            remedy="write *.example.com (one label), **.example.com (one or more) or * (every name)",
        )
    try:
        host = authority.host(name)
    except authority.Malformed as error:
        raise Invalid(f"{text[:300]!a}: {error.reason}", remedy="write it as api.example.com") from None
    address = authority.literal(host)
    if address is not None:
        bits = f"/{address.max_prefixlen}"
        raise Invalid(f"{host} is an address, not a name", remedy=f"write it as the range {host}{bits}")
    return HostPattern(kind, host)


def query_matches(wanted: Iterable[tuple[str, str]], query: str, *, widely: bool) -> bool:
    """Strictly: each name is there once, however it may be read, and as exactly `name=value`. Widely: some reading of
    some part has the value, whatever the case and with blanks or NULs around name and value."""
    wanted = tuple(wanted)
    if not wanted:
        return True
    plain = query.split("&")
    read = [_read(each) for part in plain for each in part.split(";")]
    for name, value in wanted:
        values = [found for named, found in read if named == _folded(name)]
        if widely and _folded(value) not in values:
            return False
        if not widely and (len(values) != 1 or f"{name}={value}" not in plain):
            return False
    return True


def _read(part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    return _folded(unquote_plus(name)), _folded(unquote_plus(value))


def _folded(text: str) -> str:
    """As servers that are careless of case, blanks and the ends of strings in C compare it."""
    return text.strip(_BLANK).casefold()


def _network(text: str) -> Network:
    try:
        network = ip_network(text)
    except ValueError:
        raise Invalid(
            f"{text[:80]!a} is no range of addresses, or has bits behind its prefix",
            remedy="write it as 10.1.0.0/16 or 2001:db8::/32",
        ) from None
    if isinstance(network, IPv6Network) and (network.network_address.scope_id or network.subnet_of(MAPPED)):
        raise Invalid(f"{network} holds IPv4 addresses in IPv6, or a zone", remedy="write the range of IPv4 addresses")
    return network


def _subnet(one: Network | None, other: Network | None) -> bool:
    if isinstance(one, IPv4Network) and isinstance(other, IPv4Network):
        return one.subnet_of(other)
    return isinstance(one, IPv6Network) and isinstance(other, IPv6Network) and one.subnet_of(other)
