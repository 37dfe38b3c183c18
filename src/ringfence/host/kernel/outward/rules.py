"""Which requests may leave a box. Nouns and the decision; pure.

A rule names a host by labels, ports, methods and paths. Layers hold rules: the installation's, the tenant's, the
user's. Of the rules that match a request, in one layer, the most specific host wins (exact, then more labels, `*.`,
`**.`, `*`; of ranges the longer prefix), among its rules deny before allow before ask; across layers any deny wins,
then any allow, then any ask; what nobody names is denied. So `deny *` beside `allow api.test` lets api.test through
in one layer, and an operator's deny is a deny whatever a user allows. A rule that does not match says nothing: `ask
*` beside `allow GET api.test` asks about a POST there. An ask about what no rule can say exactly (a method that no rule
has, a path longer than any pattern) is a deny: whoever said yes would say it to something else.

A deny matches widely: without TLS and WebSockets too, and any reading of a path or query that a server might make:
whatever the case, with parameters, with dots, spaces or a slash at an end.
With `ports` empty it is for every port, and a deny of `*` is for every address too.

Must never look a name up, nor match what `authority.py` and `targets.py` have not made canonical.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    DENY = "deny"
    ALLOW = "allow"
    ASK = "ask"  # the connection is held until somebody answers, 120 s at most


class Mode(StrEnum):
    INTERCEPT = "intercept"  # TLS ends in the worker: methods, paths and credentials can be judged
    PASSTHROUGH = "passthrough"  # by SNI alone, bytes as they are: no methods, no paths, no credential


class Layer(StrEnum):
    INSTALLATION = "installation"
    TENANT = "tenant"
    USER = "user"


@dataclass(frozen=True, slots=True)
class EgressRule:
    """One rule. `host`: canonical, `*.example.com` (one label), `**.example.com` (one or more), `*` (every name), or
    a CIDR (an IP-literal destination). Empty `methods` or `paths`: every one. `paths` are globs by segment: `*` one
    segment, `**` any number, the rest literal (`%2A`: a star). An encoded slash is let through only where a path has
    `%2F` (`/*%2F*`)."""

    id: str  # rul_..., or preset:NAME/n
    answer: Verdict
    host: str
    ports: tuple[int, ...] = (443,)
    plain: bool = False  # at these ports http without TLS too
    methods: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()
    query: tuple[tuple[str, str], ...] = ()  # exact values that must be there (git: service=git-upload-pack)
    mode: Mode = Mode.INTERCEPT
    websocket: bool = False
    forward_literal: bool = False  # a placeholder in a place of no binding is passed on as it is, not refused
    up_bytes: int = 100 << 20  # most of a request's body
    down_bytes: int = 2 << 30  # most of a response's body
    layer: Layer = Layer.USER
    note: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What a decision is about: all canonical. `method`, `path`, `query` empty: only the connection is known
    (CONNECT)."""

    host: str  # a name, or an IP literal
    port: int
    tls: bool
    method: str = ""
    path: str = ""  # targets.py, without the query
    query: str = ""
    websocket: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`rule`: the one that decided; None: nobody named it. `missing`: the rule that would allow exactly this, for the
    refusal's text and for a hold; it is one that can be added (`check_rule`). Of an ask it is there."""

    answer: Verdict
    rule: EgressRule | None
    mode: Mode
    why: str  # for people: constant text and the rule's id
    missing: EgressRule | None = None
