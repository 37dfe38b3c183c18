"""What one worker works by, all of it: exchanged as one object, never changed in place. Also its form on the socket."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.outward.secret import Secret


@dataclass(frozen=True, slots=True)
class Pin:
    """A name that the operator has given an address, internal ones included: the only way to one. Never a metadata address."""

    host: str  # canonical, exact
    port: int
    address: str
    address_port: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds, bytes and counts. Source: the attack list, G."""

    hello: float = 5.0
    head: float = 10.0
    idle: float = 120.0
    quiet: float = 900.0  # of event streams and WebSockets
    total: float = 7200.0
    slow_after: float = 30.0  # from then on a body must come at `slow_rate`
    slow_rate: int = 1024  # bytes a second
    head_bytes: int = 32 << 10
    fields: int = 100
    target: int = 8 << 10
    connections: int = 128
    in_flight: int = 32
    upstream_each: int = 8  # of one host
    hold: float = 120.0
    mints_minute: int = 30
    contexts: int = 256
    answers: int = 16  # addresses of one name that are looked at
    requests_second: float = 200.0
    burst: int = 400
    writes_second: float = 20.0  # that are recorded: two rows each that stay
    writes_burst: int = 200
    # A worker with nothing to do ends after so long: values and the CA's key lie in its memory, and the next one takes some 10 ms
    # of processor time. Not less than an answer of the resolver is good for (dns_answers.TTL), and long enough for what requests are
    # allowed to have filled up again, which the next one begins with: 400 requests take 2 s, 200 writes 10.
    idle_ends: float = 30.0


@dataclass(frozen=True, slots=True)
class Configuration:
    user: str
    rules: tuple[EgressRule, ...]
    bindings: tuple[Binding, ...]
    ca_certificate: str  # PEM; "" = it cannot be read, and no TLS can be looked into
    ca_key: Secret  # PEM; of no CA: random text
    roots: str  # PEM: what upstreams are verified against, a corporate root included
    nameservers: tuple[tuple[str, int], ...]  # (address, port) of the host's resolvers
    pins: tuple[Pin, ...] = ()
    own_addresses: tuple[str, ...] = ()  # the host's, and ranges: dialled by a pin alone
    internal: tuple[tuple[str, str], ...] = ()  # (host pattern, CIDR) that the operator opened
    upstream_proxy: tuple[str, int] | None = None  # CONNECT goes through it, and nothing else
    gateway: bool = True  # whether /model/... is answered
    bounds: Bounds = field(default_factory=Bounds)
