"""Which addresses are never dialled, and which not even by the operator's word. Explicit lists; pure.

Must never ask `ipaddress` whether an address is private or global: it says global of NAT64, 6to4, IPv4-compatible
addresses and two metadata services, and not private of 100.64.0.0/10.

Sources: the IANA special-purpose address registries (RFC 6890 and its updates), the providers' documentation of their
metadata services. What hides an IPv4 address in an IPv6 one is either that IPv4 address (mapped) or denied as a
whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ringfence.host.kernel.outward.authority import Address

Network = IPv4Network | IPv6Network

DENIED_V4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(block), why)
    for block, why in (
        ("0.0.0.0/8", "this network (RFC 791)"),
        ("10.0.0.0/8", "private (RFC 1918)"),
        ("100.64.0.0/10", "shared by carriers (RFC 6598)"),
        ("127.0.0.0/8", "loopback (RFC 1122)"),
        ("168.63.129.16/32", "services of the Azure host"),
        ("169.254.0.0/16", "link-local (RFC 3927)"),
        ("172.16.0.0/12", "private (RFC 1918)"),
        ("192.0.0.0/24", "protocol assignments (RFC 6890)"),
        ("192.0.2.0/24", "documentation (RFC 5737)"),
        ("192.88.99.0/24", "6to4 relays (RFC 7526)"),
        ("192.168.0.0/16", "private (RFC 1918)"),
        ("198.18.0.0/15", "benchmarks (RFC 2544)"),
        ("198.51.100.0/24", "documentation (RFC 5737)"),
        ("203.0.113.0/24", "documentation (RFC 5737)"),
        ("224.0.0.0/4", "multicast (RFC 5771)"),
        ("240.0.0.0/4", "reserved, broadcast (RFC 1112, RFC 919)"),
    )
)

DENIED_V6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(block), why)
    for block, why in (
        ("::/128", "unspecified (RFC 4291)"),
        ("::1/128", "loopback (RFC 4291)"),
        ("::/96", "IPv4-compatible (RFC 4291)"),
        ("::ffff:0:0:0/96", "IPv4-translated (RFC 2765)"),
        ("64:ff9b::/96", "NAT64 (RFC 6052)"),
        ("64:ff9b:1::/48", "NAT64, local (RFC 8215)"),
        ("100::/64", "discard only (RFC 6666)"),
        ("2001::/32", "Teredo (RFC 4380)"),
        ("2001::/23", "protocol assignments (RFC 2928)"),
        ("2001:db8::/32", "documentation (RFC 3849)"),
        ("2002::/16", "6to4 (RFC 3056)"),
        ("3fff::/20", "documentation (RFC 9637)"),
        ("5f00::/16", "segment routing (RFC 9602)"),
        ("fc00::/7", "unique local (RFC 4193)"),
        ("fe80::/10", "link-local (RFC 4291)"),
        ("fec0::/10", "site-local (RFC 3879)"),
        ("ff00::/8", "multicast (RFC 4291)"),
    )
)

GLOBAL_V6 = IPv6Network("2000::/3")  # all of IPv6 that was ever given to anybody on the internet (RFC 4291 2.5.4)

# Whole link-local IPv4: EC2, GCE, Azure, OCI, OpenStack (.169.254), ECS (.170.2), EKS (.170.23), Tencent (.0.23),
# Scaleway (.42.42) chose theirs there, and so will the next one.
METADATA: tuple[Network, ...] = tuple(
    ip_network(block)
    for block in (
        "169.254.0.0/16",
        "168.63.129.16/32",  # Azure
        "100.100.100.200/32",  # Alibaba
        "192.0.0.192/32",  # Oracle
        "fd00:ec2::/32",  # EC2 (::254), EKS (::23), resolver (::253)
        "fd20:ce::254/128",  # GCE
        "fd00:42::42/128",  # Scaleway
        "fe80::a9fe:a9fe/128",  # OpenStack
    )
)
METADATA_NAMES = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.tencentyun.com",
    }
)

HERE = ("0.0.0.0/8", "127.0.0.0/8", "::/127")
"""Addresses of every host itself: of loopback all, and what connects there too (0.0.0.0, ::)."""
# Who may be inside of a company: what an operator's range must lie in. The rest of what is denied is nobody's, or this
# host's.
INSIDE: tuple[Network, ...] = tuple(
    ip_network(block) for block in ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
_NOWHERE = tuple(ip_network(each) for each in ("0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4", "::/128", "ff00::/8"))
MAPPED = IPv6Network("::ffff:0:0/96")
_LOW32 = tuple(IPv6Network(each) for each in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"))
_6TO4, _TEREDO = IPv6Network("2002::/16"), IPv6Network("2001::/32")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_ISATAP = (0x00005EFE, 0x02005EFE)  # the upper half of the interface id, whatever network it is in (RFC 5214 6.1)
_WORD = 0xFFFFFFFF


def denied(address: str | Address, own: Collection[str]) -> str | None:
    """Why it is not dialled, or None. `own`: the host's own addresses, and ranges of them. What is no address is
    denied."""
    plain = _plain(address)
    if plain is None:
        return "no address"
    if any(_own(plain, each) for each in own):
        return "an address of this host"
    if isinstance(plain, IPv4Address):
        return next((why for block, why in DENIED_V4 if plain in block), None)
    if _isatap(plain):
        return "ISATAP (RFC 5214)"
    otherwise = None if plain in GLOBAL_V6 else "outside of 2000::/3 (RFC 4291)"
    return next((why for block, why in DENIED_V6 if plain in block), otherwise)


def nowhere(address: str | Address) -> bool:
    """Whether no server has it for an address of its own: unspecified, of multicast or reserved. What is no address is
    so too."""
    plain = _plain(address)
    return plain is None or any(plain in block for block in _NOWHERE)


def unopenable(network: Network) -> str | None:
    """Why no operator opens it, or None."""
    if not any(_lies(network, block) for block in INSIDE):
        return "not within the private ranges"
    return "of a metadata service" if any(_lies(network, block) for block in METADATA) else None


def _lies(network: Network, block: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(block, IPv4Network) and network.subnet_of(block)
    return isinstance(block, IPv6Network) and network.subnet_of(block)


def _own(plain: Address, own: str) -> bool:
    return plain in ip_network(own) if "/" in own else _plain(own) == plain


def metadata(address: str | Address) -> bool:
    """Whether it is a cloud's metadata service, in any form, an IPv4 address that is hidden in it too. No rule, pin
    or internal range opens one. What is no address counts as one.
    """
    plain = _plain(address)
    return plain is None or any(each in block for each in _readings(plain) for block in METADATA)


def metadata_name(canonical: str) -> bool:
    """Whether a canonical name is one by which clouds serve metadata."""
    return canonical in METADATA_NAMES


def _plain(address: str | Address) -> Address | None:
    """The address, IPv4 where it is mapped; None: no address, or one with a zone."""
    try:
        read = ip_address(address)
    except ValueError:
        return None
    if isinstance(read, IPv6Address):
        return None if read.scope_id is not None else read.ipv4_mapped or read
    return read


def _readings(address: Address) -> Iterator[Address]:
    """It, and each IPv4 address that some translator would take out of it."""
    yield address
    if isinstance(address, IPv4Address):
        return
    number = int(address)
    if _isatap(address) or any(address in block for block in _LOW32):
        yield IPv4Address(number & _WORD)
    if address in _6TO4:
        yield IPv4Address(number >> 80 & _WORD)
    if address in _TEREDO:
        yield IPv4Address(number >> 64 & _WORD)  # the server
        yield IPv4Address(~number & _WORD)  # the client
    if address in _LOCAL_NAT64:  # RFC 6052 2.2, /48: 16 bits, the empty octet, 16 bits
        yield IPv4Address((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF)


def _isatap(address: IPv6Address) -> bool:
    return int(address) >> 32 & _WORD in _ISATAP
