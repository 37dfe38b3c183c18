"""The handshake of a WebSocket (RFC 6455 section 4): judged like any request, then right or not. Pure.

It must never let another protocol be switched to, nor take a 101 that answers another key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from ringfence.host.egress.head import Fields, RequestHead, ResponseHead, one
from ringfence.host.egress.refusals import Code, Refusal

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3
_KEY_BYTES = 16
UPGRADE = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))
EXTENSIONS = b"sec-websocket-extensions"


def wanted(head: RequestHead) -> bool:
    """Whether it asks for one. Refusal: it asks for another protocol, or not as the RFC has it. h2c is asked by the way, so
    that it can be ignored: the answer is in HTTP/1.1."""
    upgrade = head.one(b"upgrade")
    if upgrade is None or upgrade.lower() == b"h2c":
        return False
    if upgrade.lower() != b"websocket":
        raise _bad("the only protocol to upgrade to is websocket")
    if head.method != "GET" or head.minor != 1 or head.has_body or not _says(head.fields, b"connection", b"upgrade"):
        raise _bad("a WebSocket begins with GET, HTTP/1.1, no body and Connection: Upgrade")
    if head.one(b"sec-websocket-version") != b"13" or _key(head) is None:
        raise _bad("a WebSocket begins with version 13 and a key of 16 bytes")
    return True


def accepted(asked: RequestHead, answer: ResponseHead) -> bool:
    """Whether the 101 is for this handshake."""
    given = one(answer.fields, b"sec-websocket-accept") or b""
    upgrade = (one(answer.fields, b"upgrade") or b"").lower() == b"websocket"
    return upgrade and _says(answer.fields, b"connection", b"upgrade") and hmac.compare_digest(given, _accept(asked))


def _accept(asked: RequestHead) -> bytes:
    key = asked.one(b"sec-websocket-key") or b""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def _key(head: RequestHead) -> bytes | None:
    text = head.one(b"sec-websocket-key") or b""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == _KEY_BYTES else None


def _says(fields: Fields, name: bytes, token: bytes) -> bool:
    return any(key == name and token in [part.strip().lower() for part in value.split(b",")] for key, value in fields)


def _bad(message: str) -> Refusal:
    return Refusal(Code.MALFORMED, message, close=True)
