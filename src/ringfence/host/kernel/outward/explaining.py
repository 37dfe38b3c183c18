"""What would become of a request, and why: for people, before they try it. Pure.

It looks nothing up and asks nobody. It must never show a query, which may hold what is nobody's business, and it
decides by `matching.py` alone: what it says is what the worker would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import authority
from ringfence.host.kernel.outward.authority import HTTP, HTTPS
from ringfence.host.kernel.outward.checking import METHODS
from ringfence.host.kernel.outward.credentials import Binding, Use
from ringfence.host.kernel.outward.matching import Matcher, compile_rules, covers, unopened
from ringfence.host.kernel.outward.rules import Decision, EgressRule, Layer, Mode, Request, Verdict
from ringfence.host.kernel.outward.targets import target

_PORTS: Mapping[str, int] = MappingProxyType({"http": HTTP, "https": HTTPS, "ws": HTTP, "wss": HTTPS})


@dataclass(frozen=True, slots=True)
class OfLayer:
    """What one layer says by itself. `answer` None: nothing."""

    layer: Layer
    answer: Verdict | None
    rule: EgressRule | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """`asked`: the request in canonical form. `connection`: what is known before it, from host and port alone.
    `decision`: what becomes of it. `layers`: each that has rules. `bindings`: of credentials that may be used in it."""

    asked: Request
    connection: Decision
    decision: Decision
    layers: tuple[OfLayer, ...]
    bindings: tuple[Binding, ...]
    notes: tuple[str, ...]


def read(method: str, url: str, matcher: Matcher) -> Request:
    """The request that a client would make for it. Invalid: no such method or scheme, or what a worker refuses too."""
    method = method.upper()
    if method != "CONNECT" and method not in METHODS:
        raise Invalid(f"no method {method[:40]!a}", remedy=f"take of CONNECT {' '.join(sorted(METHODS))}")
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    if not found or scheme not in _PORTS:
        raise Invalid(f"{url[:200]!a} is no URL of {', '.join(_PORTS)}", remedy="write it as https://HOST/PATH")
    try:
        return _canonical(method, scheme, rest, matcher)
    except authority.Malformed as error:
        remedy = error.remedy or "write it as a client sends it: https://HOST/PATH, other characters as %XX"
        raise Invalid(f"refused whatever the rules say: {error.reason}", remedy=remedy) from None


def _canonical(method: str, scheme: str, rest: str, matcher: Matcher) -> Request:
    """`rest`: behind the `://`. Malformed."""
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    host, port = authority.authority(rest[:end], _PORTS[scheme])
    tls, websocket = scheme in ("https", "wss"), scheme in ("ws", "wss")
    if method == "CONNECT":
        return Request(host, port, tls)
    raw = rest[end:].partition("#")[0]  # no client sends a fragment
    raw = raw if raw.startswith("/") else "/" + raw
    wanted = target(raw.encode("utf-8", "surrogatepass"), encoded_slash=matcher.encoded_slash(host))
    return Request(host, port, tls, method, wanted.path, wanted.query, websocket)


def explain(rules: Sequence[EgressRule], bindings: Iterable[Binding], method: str, url: str) -> Explanation:
    """Invalid: `read`; or a rule that does not compile."""
    return explained(compile_rules(rules), bindings, method, url)


def explained(matcher: Matcher, bindings: Iterable[Binding], method: str, url: str) -> Explanation:
    """Invalid: `read`."""
    asked = read(method, url, matcher)
    connection = matcher.connection(asked.host, asked.port, asked.tls)
    unread = connection.mode is Mode.PASSTHROUGH and connection.answer is not Verdict.DENY
    decision = connection if unread else matcher.request(asked)
    usable = () if unread else tuple(each for each in bindings if each.use is not Use.MOUNTED and covers(each, asked))
    return Explanation(
        asked, connection, decision, _layers(matcher, asked, unread), usable, tuple(_notes(asked, decision, usable))
    )


def _layers(matcher: Matcher, asked: Request, unread: bool) -> tuple[OfLayer, ...]:
    found = []
    for layer in Layer:
        alone = matcher.alone(layer)
        if alone is None:
            continue
        said = alone.connection(asked.host, asked.port, asked.tls) if unread else alone.request(asked)
        found.append(OfLayer(layer, said.answer if said.rule is not None else None, said.rule))
    return tuple(found)


def _notes(asked: Request, decision: Decision, usable: tuple[Binding, ...]) -> Iterable[str]:
    address = authority.literal(asked.host)
    if (why := unopened(asked.host)) is not None:
        yield why
    elif address is None and decision.answer is not Verdict.DENY:
        yield "its addresses are looked up after this, and internal ones are refused but for what the operator opened"
    if decision.answer is not Verdict.DENY and decision.mode is Mode.PASSTHROUGH:
        yield "its bytes go by unread: no method, no path, and no credential"
    if not asked.tls:
        yield "it goes without TLS: no credential is ever used"
    if any(each.use is Use.INJECT for each in usable):
        yield "a credential is injected: any process of the box that asks this host spends it"
    if warning := (authority.unicode_warning(asked.host) if address is None else None):
        yield warning
