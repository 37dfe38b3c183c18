"""Whether a rule or a binding makes sense, before it is stored. Pure.

The decision itself is `matching.py`'s. Must never accept what that does not compile.
"""

from __future__ import annotations

from dataclasses import replace

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import addresses, variables
from ringfence.host.kernel.outward.authority import PORTS
from ringfence.host.kernel.outward.credentials import Binding, Position, Scheme, Use
from ringfence.host.kernel.outward.paths import path_pattern
from ringfence.host.kernel.outward.patterns import host_pattern
from ringfence.host.kernel.outward.rules import EgressRule, Mode, Verdict
from ringfence.host.kernel.outward.shapes import SHAPES

# What a request may ask for (RFC 9110 9, RFC 5789, RFC 4918, RFC 3253). CONNECT, TRACE, TRACK and DEBUG are never let
# through.
METHODS = frozenset(
    [
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "PATCH",
        "DELETE",
        "OPTIONS",
        "PROPFIND",
        "PROPPATCH",
        "MKCOL",
        "COPY",
        "MOVE",
        "LOCK",
        "UNLOCK",
        "REPORT",
        "SEARCH",
    ]
)
READING = frozenset({"GET", "HEAD", "OPTIONS", "PROPFIND", "REPORT", "SEARCH"})
MAX_PORTS, MAX_PATHS, MAX_QUERY, MAX_NOTE = 16, 64, 8, 500
MAX_BYTES = 1 << 40
MAX_NAME = 64  # of headers and parameters
_TOKEN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
# Heads whose meaning is the proxy's own: framing, routing, the connection.
_RESERVED = frozenset(
    [
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "accept-encoding",
        "forwarded",
        "origin",
        "referer",
        "range",
        "date",
    ]
)
# Below which everybody gets a name for the asking: registries of countries, hosts of pages, apps and buckets. Those
# that are met most, of the Public Suffix List, which is too long to have here: who reads it looks for others of its
# kind.
_SHARED = frozenset(
    [
        *(
            "co.uk",
            "org.uk",
            "com.au",
            "net.au",
            "co.nz",
            "co.jp",
            "com.br",
            "co.in",
            "com.cn",
            "com.tr",
            "co.za",
            "co.kr",
        ),
        *("github.io", "gitlab.io", "githubusercontent.com", "pages.dev", "workers.dev", "vercel.app", "netlify.app"),
        *("herokuapp.com", "fly.dev", "onrender.com", "web.app", "firebaseapp.com", "appspot.com", "run.app"),
        *("amazonaws.com", "s3.amazonaws.com", "cloudfront.net", "azurewebsites.net", "blob.core.windows.net"),
        *("cloudapp.net", "azurefd.net", "ngrok.io", "ngrok.app", "ngrok-free.app", "trycloudflare.com", "duckdns.org"),
        *("nip.io", "sslip.io", "blogspot.com", "repl.co", "replit.app", "glitch.me", "surge.sh", "deno.dev"),
    ]
)
_RESERVED_PREFIXES = ("proxy-", "sec-", "x-forwarded-")


def anybodys(name: str) -> bool:
    """Whether names below it are other people's: a top-level domain, or one that is known to be shared."""
    return "." not in name or name in _SHARED


def check_rule(rule: EgressRule) -> EgressRule:
    """The rule in canonical form: host, paths, order of ports. Invalid, with a remedy."""
    host = host_pattern(rule.host)
    if rule.answer is not Verdict.DENY and addresses.metadata_name(host.name):
        raise Invalid(f"{host} is a metadata service", remedy="no rule opens one; give the tool a credential instead")
    _ports(rule.ports, empty=rule.answer is Verdict.DENY)
    _methods(rule.methods)
    _query(rule.query)
    for name, size in (("up_bytes", rule.up_bytes), ("down_bytes", rule.down_bytes)):
        if not 0 <= size <= MAX_BYTES:
            raise Invalid(f"{name} is {size}; the limit is {MAX_BYTES}", remedy="give bytes")
    if len(rule.note) > MAX_NOTE or not rule.note.isprintable():
        raise Invalid(f"the note is no printable line of {MAX_NOTE} characters", remedy="shorten it")
    if rule.answer is Verdict.DENY:
        _check_deny(rule)
    if rule.mode is Mode.PASSTHROUGH:
        _check_passthrough(rule)
    return replace(rule, host=str(host), ports=tuple(sorted(rule.ports)), paths=_paths(rule.paths))


def check_binding(binding: Binding) -> Binding:
    """The binding in canonical form. Invalid, with a remedy."""
    host = host_pattern(binding.host)
    if not host.names:
        raise Invalid(
            f"a credential is not bound to {host}",
            remedy="bind it to a name, *.NAME or **.NAME: addresses have no certificate",
        )
    if addresses.metadata_name(host.name):
        raise Invalid(f"{host} is a metadata service", remedy="bind the credential to the service itself")
    if host.kind and anybodys(host.name):
        raise Invalid(
            f"anybody can have a name within {host}, and would be sent the credential",
            remedy=f"name the host itself, or a wildcard below a name of your own: {host.kind}example.{host.name}",
        )
    _ports(binding.ports, empty=False)
    _methods(binding.methods)
    if not 1 <= len(binding.positions) <= 8:
        raise Invalid(f"{len(binding.positions)} positions; 1 to 8 are possible", remedy="name one, such as a header")
    positions = tuple(_position(each) for each in binding.positions)
    if binding.use is Use.INJECT and any(each.query for each in positions):
        raise Invalid("nothing is injected into a query", remedy="bind it with a placeholder, or to a header")
    for name in binding.environment:
        _variable(name)
    if binding.shape not in SHAPES:
        raise Invalid(f"no shape {binding.shape[:80]!a}", remedy=f"take one of {', '.join(SHAPES)}")
    if binding.use is Use.INJECT and binding.uses is not None:
        raise Invalid(
            "uses of what is injected are not counted: there is no stand-in to count",
            remedy="bind it with a placeholder",
        )
    if binding.uses is not None and binding.uses < 1:
        raise Invalid(f"{binding.uses} uses", remedy="give 1 or more, or none for any number")
    return replace(
        binding,
        host=str(host),
        ports=tuple(sorted(binding.ports)),
        paths=_paths(binding.paths),
        positions=positions,
    )


def _ports(ports: tuple[int, ...], *, empty: bool) -> None:
    if not ports and not empty:
        raise Invalid("no port", remedy="name ports, such as 443; only a deny may be for every port")
    if len(ports) > MAX_PORTS or len(set(ports)) != len(ports) or any(each not in PORTS for each in ports):
        raise Invalid(f"{len(ports)} ports", remedy=f"name up to {MAX_PORTS}, each from 1 to 65535 and once")


def _methods(methods: frozenset[str]) -> None:
    for method in sorted(methods - METHODS):
        remedy = (
            f"write it as {method.upper()}" if method.upper() in METHODS else f"take of {' '.join(sorted(METHODS))}"
        )
        raise Invalid(f"no method {method[:40]!a}", remedy=remedy)


def _paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    if len(paths) > MAX_PATHS:
        raise Invalid(f"{len(paths)} paths; the limit is {MAX_PATHS}", remedy="use wildcards, or several rules")
    return tuple(dict.fromkeys(path_pattern(each) for each in paths))


def _query(query: tuple[tuple[str, str], ...]) -> None:
    plain = all(
        text.isascii() and text.isprintable() and len(text) <= 256 and not set(text) & set(" &;#=%+")
        for pair in query
        for text in pair
    )
    if len(query) > MAX_QUERY or not plain or any(not name for name, _ in query):
        raise Invalid(
            f"the query is not up to {MAX_QUERY} plain values", remedy="write names and values that need no escape"
        )
    if len({name for name, _ in query}) != len(query):
        raise Invalid("a name stands twice in the query", remedy="write a rule for each value")


def _check_deny(rule: EgressRule) -> None:
    if rule.websocket or rule.plain or rule.forward_literal:
        raise Invalid(
            "a deny with websocket, plain or forward_literal",
            remedy="leave them away: a deny is for all of these anyway",
        )


def _check_passthrough(rule: EgressRule) -> None:
    if rule.answer is Verdict.DENY:
        raise Invalid("a deny that passes through", remedy="leave the mode away")
    unread = rule.methods or rule.paths or rule.query or rule.websocket or rule.forward_literal or rule.plain
    if unread or host_pattern(rule.host).network is not None:
        raise Invalid(
            "passthrough sees a name and bytes: no methods, paths, queries, WebSockets, addresses or plain http",
            remedy="leave them away, or take mode intercept",
        )


def _position(position: Position) -> Position:
    if position.query:
        if position.scheme is not Scheme.RAW or not _word(position.query.lower()):
            raise Invalid("a parameter of the query is not raw, or no plain name", remedy="take scheme raw and a name")
        return replace(position, header="")
    header = position.header.lower()
    if not _word(header) or header in _RESERVED or header.startswith(_RESERVED_PREFIXES):
        raise Invalid(
            f"the header {position.header[:80]!a} is none that holds a credential",
            remedy="take authorization, x-api-key, private-token or another of the service's own",
        )
    if position.scheme in (Scheme.BASIC_PASSWORD, Scheme.BASIC_USER) and header != "authorization":
        raise Invalid(f"Basic in {header}", remedy="Basic stands in authorization only")
    return replace(position, header=header)


def _word(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and _TOKEN.issuperset(text)


def _variable(name: str) -> None:
    if not variables.allowed(name):
        raise Invalid(
            f"{name[:80]!a} is no variable for a credential: it says what a command runs, whom it trusts or how it goes "
            "out",
            remedy="take one that the tool reads a credential from, such as GH_TOKEN",
        )
