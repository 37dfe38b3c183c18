"""Which addresses a name may lead to: pins, what the operator opened inside, and the floor under everything. Pure.

It must never let a metadata service through, whatever is configured, nor an address of this host but by a pin.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from ringfence.host.egress.configuration import Configuration
from ringfence.host.kernel.outward import addresses, authority
from ringfence.host.kernel.outward.addresses import Network
from ringfence.host.kernel.outward.patterns import HostPattern, host_pattern


class Reach:
    """Invalid, ValueError: a pin, a pattern or a CIDR of the configuration is none."""

    def __init__(self, configuration: Configuration) -> None:
        self._pins = {
            (pin.host, pin.port): (str(ip_address(pin.address)), pin.address_port) for pin in configuration.pins
        }
        self._own = tuple(configuration.own_addresses)
        self._internal: tuple[tuple[HostPattern, Network], ...] = tuple(
            (host_pattern(host), ip_network(block)) for host, block in configuration.internal
        )

    def pinned(self, host: str, port: int) -> tuple[str, int] | None:
        """(address, port) that stand for this host and port alone."""
        return self._pins.get((host, port))

    def refused(self, host: str, found: Sequence[str]) -> str | None:
        """Why not; all of them count: a name that leads inside as well is not dialled at all."""
        return next((why for address in found if (why := self._refused(host, address)) is not None), None)

    def _refused(self, host: str, address: str) -> str | None:
        why = addresses.denied(address, self._own)
        if addresses.metadata(address):
            return "a metadata service"
        if why is None or (self._opened(host, address) and addresses.denied(address, ()) == why):
            return None
        return why

    def _opened(self, host: str, address: str) -> bool:
        """By the operator. Only what is denied by kind is opened: an address of this host has another reason."""
        read = ip_address(address)
        return any(_covers(pattern, host) and read in block for pattern, block in self._internal)


def _covers(pattern: HostPattern, host: str) -> bool:
    literal = authority.literal(host)
    if literal is None:
        return pattern.covers(host)
    return pattern.network is not None and literal in pattern.network
