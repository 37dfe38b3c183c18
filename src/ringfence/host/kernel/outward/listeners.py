"""Where a box's connections arrive: sockets in its own network, held by the server for the life of the box. Noun;
pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["proxy", "transparent", "dns_udp", "dns_tcp"]
FIXED_PORTS: Mapping[Kind, int] = MappingProxyType({"transparent": 1022, "dns_udp": 53, "dns_tcp": 53})
PROXY_PORTS = range(100, 1022)  # one of each invocation; a box can bind none below 1024


@dataclass(frozen=True, slots=True)
class Listener:
    """One socket, of IPv4 or IPv6: the fixed kinds have both where the host has IPv6. `fd`: its descriptor, the
    holder's, non-blocking; all but dns_udp listen."""

    kind: Kind
    port: int
    fd: int
