"""Addresses of a name, asked of the host's own resolvers: a stub, by messages of dnspython on sockets of ours.

A socket, a port and an id for each question; an answer counts when it comes from the asked server, to the asked question. It
must never be asked before policy has said yes, follow a referral, nor say which addresses are fit to be dialled.

Sources: RFC 1035, RFC 5452 (what makes answers hard to forge), RFC 7766 (TCP), RFC 2181 5.4.1 (nothing but the answer counts).
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype

from ringfence.host.egress.arrivals import exactly
from ringfence.host.kernel.outward import authority

SECONDS = 2.0  # for one question to one server
TRIES = 2  # rounds over the servers
SERVERS = 3  # as many as resolv.conf(5) takes
_KEPT = 1024  # names in the cache: some 300 KiB
_LONGEST, _SHORTEST = 300, 1  # seconds that an answer is kept, whatever its TTL: a long one is for caches of others
_NOTHING = 5.0  # seconds that a "there is none" is kept
_PAYLOAD = 1232  # bytes of a UDP answer that we ask for (dnsflagday.net/2020): no fragments
_LENGTH = struct.Struct("!H")


class ResolveFailed(Exception):
    """No address. The text is for people and names no server."""


@dataclass(frozen=True, slots=True)
class _Found:
    addresses: tuple[str, ...]
    until: float


@dataclass(frozen=True, slots=True)
class _Said:
    """One server's word on one type. `final`: it is the answer, if only that there is none."""

    addresses: tuple[str, ...] = ()
    ttl: float = _NOTHING
    final: bool = False


def routed_v6() -> bool:
    """Whether this host has a way to IPv6: connecting a datagram socket looks up a route and sends nothing."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.connect(("2001:500:2f::f", 53))  # F-root: any global address does
    except OSError:
        return False
    return True


class Resolver:
    """`nameservers`: (address, port). `clock`: monotonic. `v6`: whether AAAA is worth a question."""

    def __init__(
        self,
        nameservers: Sequence[tuple[str, int]],
        clock: Callable[[], float],
        *,
        v6: Callable[[], bool] = routed_v6,
        seconds: float = SECONDS,
    ) -> None:
        self._servers = tuple(nameservers[:SERVERS])
        self._clock = clock
        self._v6 = v6
        self._seconds = seconds
        self._kept: OrderedDict[str, _Found] = OrderedDict()
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def resolve(self, name: str) -> tuple[str, ...]:
        """Of a canonical name, IPv4 first, in the servers' order; at least one. ResolveFailed."""
        lock = self._asking.get(name)
        if lock is None:
            lock = self._asking[name] = asyncio.Lock()
        async with lock:  # many connections to one new name are one question
            found = self._kept.get(name)
            if found is None or found.until <= self._clock():
                found = await self._look_up(name)
                self._keep(name, found)
        if not found.addresses:
            raise ResolveFailed("the name has no address")
        return found.addresses

    def _keep(self, name: str, found: _Found) -> None:
        self._kept[name] = found
        self._kept.move_to_end(name)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    async def _look_up(self, name: str) -> _Found:
        async with asyncio.TaskGroup() as group:
            kinds = [dns.rdatatype.A, *([dns.rdatatype.AAAA] if self._v6() else [])]
            tasks = [group.create_task(self._ask(name, kind)) for kind in kinds]
        said = [task.result() for task in tasks]
        if not any(each.final for each in said):
            raise ResolveFailed("no resolver of this host answered")
        addresses = tuple(address for each in said for address in each.addresses)
        ttl = min((each.ttl for each in said if each.addresses), default=_NOTHING)
        return _Found(addresses, self._clock() + ttl)

    async def _ask(self, name: str, kind: dns.rdatatype.RdataType) -> _Said:
        """The first final word, asking around."""
        for _ in range(TRIES):
            for server in self._servers:
                try:
                    async with asyncio.timeout(self._seconds):
                        said = await _question(server, name, kind)
                except OSError:  # TimeoutError too
                    continue
                if said.final:
                    return said
        return _Said()


async def _question(server: tuple[str, int], name: str, kind: dns.rdatatype.RdataType) -> _Said:
    """OSError."""
    query = dns.message.make_query(
        name + ".", kind, use_edns=0, payload=_PAYLOAD, id=secrets.randbits(16), flags=dns.flags.RD
    )
    wire = query.to_wire()
    answer = await _by_udp(server, query, wire)
    if answer.flags & dns.flags.TC:
        answer = await _by_tcp(server, query, wire)
    return _read(answer, kind)


async def _by_udp(server: tuple[str, int], query: dns.message.Message, wire: bytes) -> dns.message.Message:
    """Connected: the kernel draws the port and drops what comes from elsewhere. Forgeries are waited out, not answered."""
    loop = asyncio.get_running_loop()
    with _socket(server, socket.SOCK_DGRAM) as sock:
        await loop.sock_connect(sock, server)
        await loop.sock_sendall(sock, wire)
        while True:
            answer = _parsed(await loop.sock_recv(sock, 1 << 16), query)
            if answer is not None:
                return answer


async def _by_tcp(server: tuple[str, int], query: dns.message.Message, wire: bytes) -> dns.message.Message:
    loop = asyncio.get_running_loop()
    with _socket(server, socket.SOCK_STREAM) as sock:
        await loop.sock_connect(sock, server)
        await loop.sock_sendall(sock, _LENGTH.pack(len(wire)) + wire)
        (size,) = _LENGTH.unpack(await exactly(sock, _LENGTH.size))
        answer = _parsed(await exactly(sock, size), query)
    if answer is None:
        raise ConnectionError("not an answer to this question")
    return answer


def _socket(server: tuple[str, int], kind: socket.SocketKind) -> socket.socket:
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    return socket.socket(family, kind | socket.SOCK_NONBLOCK)


def _parsed(data: bytes, query: dns.message.Message) -> dns.message.Message | None:
    """None: not the answer to this question."""
    try:
        answer = dns.message.from_wire(data)
        return answer if query.is_response(answer) else None
    except (dns.exception.DNSException, ValueError):
        return None


def _read(answer: dns.message.Message, kind: dns.rdatatype.RdataType) -> _Said:
    """What stands at the end of the chain of aliases that begins at the name; what else the answer holds does not count."""
    code = answer.rcode()
    if code not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        return _Said()
    if code == dns.rcode.NXDOMAIN or not isinstance(answer, dns.message.QueryMessage):
        return _Said(final=True)
    try:
        chain = answer.resolve_chaining()
    except dns.exception.DNSException:  # a loop of aliases, or a question of another kind
        return _Said(final=True)
    if chain.answer is None or chain.answer.rdtype != kind:
        return _Said(final=True)
    addresses = tuple(str(authority.literal(rdata.address)) for rdata in chain.answer)
    return _Said(addresses, float(min(max(chain.minimum_ttl, _SHORTEST), _LONGEST)), final=True)
