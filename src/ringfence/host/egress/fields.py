"""Which header fields go on, and which end here. Pure. It must never let a field through that frames a message, belongs to
one connection, or names another host to a credentialed one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ringfence.host.egress.head import ALIKE, Fields

# RFC 9110 section 7.6.1, and RFC 9113's upgrade by h2c, which nobody here speaks.
_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
# Frameworks take host, path or method from these instead of the request: a rule would have judged another request.
_OVERRIDES = frozenset(
    {
        b"forwarded",
        b"x-forwarded-host",
        b"x-forwarded-server",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-path",
        b"x-forwarded-uri",
        b"x-host",
        b"x-original-host",
        b"x-original-url",
        b"x-original-uri",
        b"x-rewrite-url",
        b"x-http-method",
        b"x-http-method-override",
        b"x-method-override",
        b"x-http-host-override",
        b"x-forwarded-method",
        b"x-original-method",
        b"x-original-path",
        b"x-envoy-original-path",
        b"x-envoy-original-host",
        b"x-override-url",
    }
)
# What a client may nominate in Connection, and must not: the request would lose what it was judged by.
_KEPT = frozenset({b"host", b"content-length", b"authorization", b"cookie", b"expect"})
_FRAMED_HERE = frozenset({b"host", b"content-length"})
FRAMING = frozenset({b"content-length", b"transfer-encoding"})
PARTIAL = (b"range", b"if-range")
# What makes of an answer something else than what it is, or adds a digest of it (RFC 3229, RFC 9530): a secret would not be seen.
TRANSFORMING = (b"a-im", b"accept-charset", b"want-digest", b"want-content-digest", b"want-repr-digest")
SESSIONS = (b"set-cookie", b"set-cookie2")  # got with a credential, a session would be one, and a real one in the box
# Schemes that prove the connection and not the request (RFC 4559 section 6): who comes next on it is taken for the same.
_PROVES = re.compile(rb"(?:^|,)[ \t]*(?:ntlm|negotiate)(?![^ \t,])", re.IGNORECASE)
_PROOFS = frozenset({b"authorization", b"www-authenticate", b"proxy-authenticate", b"authentication-info"})
_CODINGS = frozenset({b"content-encoding", b"im"})
_WIDE = re.compile(rb"charset[ \t]*=[ \t]*[\"']?(?:cs)?(?:utf-?(?:16|32|7)|ucs|unicode|iso-10646)", re.IGNORECASE)
_WEBSOCKET = re.compile(rb"sec-websocket-(key|version|protocol|extensions|accept)")


def nominated(fields: Fields) -> frozenset[bytes]:
    names: set[bytes] = set()
    for name, value in fields:
        if name == b"connection":
            names.update(part.strip().lower() for part in value.split(b","))
    return frozenset(names - _KEPT)


def outgoing(fields: Fields, *, strict: bool, websocket: bool) -> list[tuple[bytes, bytes]]:
    """A request's own fields: without Host and framing, which the caller writes anew. `strict`: a credential may go to the
    host, or its rules read more of a request than the host."""
    dropped = _HOP | _FRAMED_HERE | nominated(fields)
    return [
        (name, value)
        for name, value in fields
        if name not in dropped
        and (websocket or _WEBSOCKET.fullmatch(name) is None)
        and not (strict and name.translate(ALIKE) in _OVERRIDES)
    ]


def framing(fields: Fields) -> list[tuple[bytes, bytes]]:
    """A checked message's, written in the one way that nobody reads otherwise: 010 is eight to some."""
    return [(name, _plainly(name, value)) for name, value in fields if name in FRAMING]


def incoming(fields: Fields, *, framing: bool) -> list[tuple[bytes, bytes]]:
    """A response's. `framing`: its length stays; a chunked body is chunked anew."""
    dropped = _HOP | nominated(fields) | {b"alt-svc"}
    kept = [(name, _plainly(name, value)) for name, value in fields if name not in dropped]
    if framing and any(name == b"transfer-encoding" for name, _ in fields):
        kept.append((b"transfer-encoding", b"chunked"))
    return kept


def without(fields: list[tuple[bytes, bytes]], *names: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in fields if name not in names]


def coded(fields: Fields) -> bool:
    """Whether a body is anything but what it is: all tokens of all fields count (RFC 9110 section 8.4, RFC 3229 section 10.5.2),
    and so does an alphabet in which ASCII is written otherwise."""
    tokens = [each for name, value in fields if name in _CODINGS for each in value.lower().split(b",")]
    wide = any(name == b"content-type" and _WIDE.search(value) is not None for name, value in fields)
    return wide or any(each.strip() not in (b"", b"identity") for each in tokens)


def personal(fields: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether somebody proves, or is asked to prove, the connection to be his."""
    return any(name in _PROOFS and _PROVES.search(value) is not None for name, value in fields)


def _plainly(name: bytes, value: bytes) -> bytes:
    return b"%d" % int(value) if name == b"content-length" else value
