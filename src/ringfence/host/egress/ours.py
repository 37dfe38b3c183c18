"""Whether an address is this host's, now: as the kernel has it, not as it was when the server read it. No packet goes out.

Addresses come and go (leases, failover, temporary ones of IPv6), and what listens on all of them is on the new one at once. It
must never say that an address is another's because it could not ask.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address

_PORT = 9  # any: a datagram socket is connected without a word to the other end


def ours(address: str) -> bool:
    """For a canonical address. What there is no way to is nobody's: the connection will fail too. Loopback is judged by its
    kind (reach.py), and is not meant here."""
    read = ip_address(address)
    if read.is_loopback:
        return False
    family = socket.AF_INET6 if read.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as asked:
        try:
            asked.connect((address, _PORT))
        except OSError:
            return False
        return ip_address(asked.getsockname()[0].partition("%")[0]) == read
