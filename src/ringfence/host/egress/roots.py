"""The host's public roots and what else of the host a worker is told. Reads files; for the server's start and the template.

Must never be called by a worker, which can open no file.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from pathlib import Path

from ringfence.host.kernel.outward.addresses import HERE

_ROOTS = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_MAX_BYTES = 4 << 20
_RESOLVERS = "/etc/resolv.conf"  # resolv.conf(5)
_MOST_RESOLVERS = 3  # MAXNS of resolv.h
_V4, _V6 = "/proc/net/fib_trie", "/proc/net/if_inet6"
_LOCAL = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")


def host_roots() -> str:
    """PEM; "" on a host without any."""
    return next((text for path in _ROOTS if (text := _text(path))), "")


def host_resolvers() -> tuple[tuple[str, int], ...]:
    """(address, port); those of this host, at most three."""
    found = []
    for line in _text(_RESOLVERS).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            with suppress(ValueError):  # a zone (fe80::1%eth0) is of no use to a worker
                found.append((str(ipaddress.ip_address(words[1])), 53))
    return tuple(found[:_MOST_RESOLVERS])


def own_addresses() -> tuple[str, ...]:
    """Of this host, loopback included, and the ranges that are every host's own."""
    found = {*HERE, *_LOCAL.findall(_text(_V4))}
    for line in _text(_V6).splitlines():
        found.add(str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))))
    return tuple(sorted(found))


def _text(path: str) -> str:
    with suppress(OSError, UnicodeDecodeError), Path(path).open(encoding="utf-8") as file:
        return file.read(_MAX_BYTES)
    return ""
