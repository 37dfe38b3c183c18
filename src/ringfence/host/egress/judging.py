"""Which request this is, and whether it may leave: the first two steps of everything. Pure.

Canonicalise, then policy; nothing outside is asked before both are done. One authority: what the connection was opened for, by
CONNECT, by SNI or by a synthetic address, is what Host must say. It must never choose a host from a header alone but for plain
requests to a proxy, where the target names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.head import RequestHead
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.kernel.outward import authority, targets
from ringfence.host.kernel.outward.authority import HTTP, HTTPS, Malformed
from ringfence.host.kernel.outward.credentials import Binding, Use
from ringfence.host.kernel.outward.matching import Matcher, compile_binding, compile_rules, unopened
from ringfence.host.kernel.outward.patterns import HostPattern, host_pattern
from ringfence.host.kernel.outward.rules import Decision, Request, Verdict

Key = TypeVar("Key")
Answer = TypeVar("Answer")
_KEPT = 128  # answers of a policy that are kept, of requests of _SHORT characters at most: 64 KiB of text
_SHORT = 512


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a connection leads; canonical. `port` is of the destination."""

    host: str
    port: int
    tls: bool

    @property
    def literal(self) -> bool:
        return authority.literal(self.host) is not None

    @property
    def header(self) -> bytes:
        """The Host that is sent."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (host if self.port == (HTTPS if self.tls else HTTP) else f"{host}:{self.port}").encode()


@dataclass(frozen=True, slots=True)
class Judged:
    """A request that policy lets through, or holds for an answer. `target`: what is forwarded, checked bytes."""

    origin: Origin
    request: Request
    decision: Decision
    target: bytes


class Policy:
    """What a configuration says about requests, made ready to be asked. Never changed, so that what it has said of a request once
    it says of the same again: that is kept. Who is asked, what is spent and how often is no part of it. Invalid: a rule or a
    binding is not well-formed; none of it is in force then."""

    def __init__(self, configuration: Configuration) -> None:
        self.matcher: Matcher = compile_rules(configuration.rules)
        self._own = configuration.own_addresses
        self._bindings = {binding.id: binding for binding in configuration.bindings}
        self._covers = {binding.id: compile_binding(binding) for binding in configuration.bindings}
        self._injecting = tuple(each for each in configuration.bindings if each.use is Use.INJECT)
        self._patterns: tuple[HostPattern, ...] = tuple(
            dict.fromkeys(host_pattern(each.host) for each in configuration.bindings if each.use is not Use.MOUNTED)
        )
        self._judged: dict[tuple[Origin, str, bytes, bool], Judged] = {}
        self._covered: dict[tuple[str, Request], bool] = {}
        self._strict: dict[str, bool] = {}

    def binding(self, identifier: str) -> Binding | None:
        return self._bindings.get(identifier)

    def strict(self, host: str) -> bool:
        """Whether a credential may go there, or a rule of it reads more than the host: then no field may say otherwise."""
        known = self._strict.get(host)
        if known is None:
            known = any(pattern.covers(host) for pattern in self._patterns) or self.matcher.narrow(host)
            _keep(self._strict, host, known, len(host))
        return known

    def injected(self, request: Request) -> tuple[Binding, ...]:
        return tuple(each for each in self._injecting if self.covers(each, request)) if self._injecting else ()

    def covers(self, binding: Binding, request: Request) -> bool:
        """But for the position in it."""
        key = binding.id, request
        known = self._covered.get(key)
        if known is None:
            known = self._covers[binding.id].covers(request)
            _keep(self._covered, key, known, len(request.path) + len(request.query))
        return known

    def judged(self, origin: Origin, method: str, target: bytes, *, websocket: bool) -> Judged:
        """Refusal: malformed, or it says no."""
        key = origin, method, target, websocket
        known = self._judged.get(key)
        if known is None:
            known = self._judge(origin, method, target, websocket=websocket)
            _keep(self._judged, key, known, len(target))
        return known

    def _judge(self, origin: Origin, method: str, target: bytes, *, websocket: bool) -> Judged:
        try:
            read = targets.target(target, encoded_slash=self.matcher.encoded_slash(origin.host))
        except targets.TooLong as error:
            raise Refusal(Code.TOO_LARGE, error.reason, status=414, close=True) from None
        except Malformed as error:
            raise Refusal(Code.MALFORMED, error.reason, close=True, remedy=error.remedy) from None
        request = Request(origin.host, origin.port, origin.tls, method, read.path, read.query, websocket)
        decision = self._told(origin.host, self.matcher.request(request))
        if decision.answer is Verdict.DENY:
            raise refused(decision)
        return Judged(origin, request, decision, target)

    def connection(self, origin: Origin) -> Decision:
        return self._told(origin.host, self.matcher.connection(origin.host, origin.port, origin.tls))

    def _told(self, host: str, decision: Decision) -> Decision:
        """Without the rule that would be of no use: this host's own addresses are in no table of kinds."""
        if decision.missing is None or (why := unopened(host, self._own)) is None:
            return decision
        return replace(decision, why=why, missing=None)


def _keep(kept: dict[Key, Answer], key: Key, answer: Answer, size: int) -> None:
    if size <= _SHORT:
        if len(kept) >= _KEPT:
            kept.clear()
        kept[key] = answer


def refused(decision: Decision) -> Refusal:
    return Refusal(Code.DENIED, decision.why, rule=decision.missing)


def destination(raw: bytes) -> tuple[str, int]:
    """Of a CONNECT: host:port, both there. Refusal."""
    try:
        return authority.authority(raw, None)
    except Malformed as error:
        raise Refusal(Code.MALFORMED, f"the target of CONNECT: {error.reason}", close=True) from None


def absolute(head: RequestHead) -> tuple[Origin, bytes]:
    """A request to a proxy: (origin, target in origin-form). Host must agree. Refusal."""
    scheme, found, rest = head.target.partition(b"://")
    if not found or scheme.lower() != b"http":
        raise Refusal(
            Code.MALFORMED, "a proxy is asked by CONNECT for https, and with http://HOST/ for http", close=True
        )
    ends = [at for at in (rest.find(mark) for mark in (b"/", b"?", b"#")) if at >= 0]
    cut = min(ends, default=len(rest))
    host, port = _authority(rest[:cut], HTTP)
    target = rest[cut:]
    if not target.startswith(b"/"):
        target = b"/" + target
    origin = Origin(host, port, tls=False)
    agree(origin, head)
    return origin, target


def agree(origin: Origin, head: RequestHead) -> None:
    """Refusal `authority_mismatch`: Host names another place than the connection."""
    named = head.one(b"host")
    if named is None:
        return  # HTTP/1.0: the connection says it
    if _authority(named, HTTPS if origin.tls else HTTP) != (origin.host, origin.port):
        raise Refusal(Code.AUTHORITY, "Host names another host or port than the connection is for", close=True)


def agree_connect(host: str, port: int, head: RequestHead) -> None:
    """Refusal `authority_mismatch`. A Host without a port is for that of the target."""
    named = head.one(b"host")
    if named is not None and _authority(named, port) != (host, port):
        raise Refusal(Code.AUTHORITY, "Host and the target of CONNECT differ", close=True)


def judge(policy: Policy, origin: Origin, head: RequestHead, target: bytes, *, websocket: bool) -> Judged:
    """Refusal: malformed, or policy says no."""
    if head.method == "CONNECT":
        raise Refusal(Code.MALFORMED, "CONNECT inside of a connection to a host", status=405, close=True)
    return policy.judged(origin, head.method, target, websocket=websocket)


def still(policy: Policy, judged: Judged) -> bool:
    """Whether the request would be let through by `policy` too. One that was held and allowed may stay."""
    return policy.matcher.request(judged.request).answer is not Verdict.DENY


def _authority(raw: bytes, port: int) -> tuple[str, int]:
    try:
        return authority.authority(raw, port)
    except Malformed as error:
        raise Refusal(Code.MALFORMED, f"the host: {error.reason}", close=True) from None
