"""Addresses that stand for names inside a box: given out by the box's resolver, read back when a connection comes.

An address is derived from the name under a key that stays with the user, so a new worker gives a name the address that it had
before. One that ends because it is idle tells its names to the next (`given`, `recall`): what a client of the box remembers leads to
the same host. After any other end, until the name is asked for again, it leads to none. Where two names meet in one IPv4 address, the
later one takes its next; should a worker of later give the place to the other, Host and SNI still have to name the host that the
address stands for now, and another one's request is refused.

It must never give out an address that is a real host's, nor for a name that no rule could let through: nothing is asked
outside, so that no label of a name ever leaves (docs/threats.md, L05).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address

from ringfence.host.kernel.outward.matching import Matcher
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret

# Benchmarks (RFC 2544): routed nowhere, no private network of a company, denied as a destination by addresses.py. 131,072
# addresses for 4,096 names: one in 32 at most finds its first place taken.
BLOCK_V4 = IPv4Network("198.18.0.0/15")
# Unique local (RFC 4193), the 40 bits drawn once; 80 bits of hash behind it never meet.
BLOCK_V6 = IPv6Network("fd5e:7c1d:9a42::/48")
NAMES = 4096
# That the next worker is told: one packet (hearing.py). At 253 characters of a name, 15 of an address and 8 of JSON 110 KB.
TOLD = 400
_PLACES = 16  # places that a name tries: all taken by chance is one in 32**16
_V4_MASK = int(BLOCK_V4.hostmask)


class Names:
    """One for the life of a worker: reloading forgets nothing. A name's addresses stay until 4,096 others were used after."""

    def __init__(self, key: bytes, most: int = NAMES) -> None:
        self._key = key
        self._most = most
        self._given: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._names: dict[str, str] = {}

    def addresses(self, name: str) -> tuple[str, str]:
        """(IPv4, IPv6) of a canonical name."""
        given = self._given.get(name)
        if given is None:
            given = self._give(name)
        self._given.move_to_end(name)
        return given

    def name_of(self, address: str) -> str | None:
        name = self._names.get(str(ip_address(address)))
        if name is not None:
            self._given.move_to_end(name)
        return name

    def given(self) -> list[tuple[str, str]]:
        """(name, IPv4) of the TOLD that were used last, the oldest first."""
        return [(name, given[0]) for name, given in list(self._given.items())[-TOLD:]]

    def recall(self, items: Iterable[tuple[str, str]]) -> None:
        """What `given` said under the same key. One that cannot have been said is passed over: no name has a place that is not its."""
        for name, address in items:
            if name not in self._given and address not in self._names and address in self._places(name):
                self._give(name, address)

    def _give(self, name: str, address: str = "") -> tuple[str, str]:
        """`address`: free, and one of its places; "": the first of those that is."""
        while len(self._given) >= self._most:
            self._forget(next(iter(self._given)))
        given = (address or self._free(name), self._v6(name))
        self._given[name] = given
        self._names.update((address, name) for address in given)
        return given

    def _free(self, name: str) -> str:
        """A box that asks long enough can have all places of a name taken. Then who is on the first of them has to go: that
        is a name of the same box."""
        free = next((address for address in self._places(name) if address not in self._names), None)
        if free is None:
            free = next(self._places(name))
            self._forget(self._names[free])
        return free

    def _places(self, name: str) -> Iterator[str]:
        for place in range(_PLACES):
            host = int.from_bytes(self._hash(b"4", bytes([place]), name)[:4], "big") & _V4_MASK
            if 0 < host < _V4_MASK:  # the first and the last look like a network's own
                yield str(BLOCK_V4[host])

    def _forget(self, name: str) -> None:
        for address in self._given.pop(name):
            del self._names[address]

    def _v6(self, name: str) -> str:
        return str(BLOCK_V6[int.from_bytes(self._hash(b"6", b"", name)[:10], "big")])

    def _hash(self, family: bytes, place: bytes, name: str) -> bytes:
        return hmac.digest(self._key, family + place + b"\0" + name.encode(), "sha256")


def key(ca_key: Secret) -> bytes:
    """Of `Names`: the user's own and lasting, and nothing that a box could compute addresses by."""
    return hmac.digest(hashlib.sha256(ca_key.reveal()).digest(), b"ringfence synthetic addresses", "sha256")


class Reachable:
    """Which names a resolver may know: those that a connection could be let through to, by some port that a rule has."""

    def __init__(self, matcher: Matcher, rules: Iterable[EgressRule]) -> None:
        self._matcher = matcher
        self._ways = sorted(
            {
                (port, tls)
                for rule in rules
                if rule.answer is not Verdict.DENY
                for port in rule.ports
                for tls in ((True, False) if rule.plain else (True,))
            }
        )

    def __call__(self, name: str) -> bool:
        """A canonical name, no literal."""
        decisions = (self._matcher.connection(name, port, tls) for port, tls in self._ways)
        return any(decision.answer is not Verdict.DENY for decision in decisions)
