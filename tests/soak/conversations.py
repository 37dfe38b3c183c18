"""What a client says on one connection, made from a seed: good requests, hostile ones, and good ones that were damaged."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from tests.fuzz.fuzz_head import SPICE
from tests.fuzz.running import damaged
from tests.soak.speaking_upstream import ANSWERS, ENDING, WEBSOCKET

HOST = b"api.test"
Way = Literal["tunnel", "plain", "transparent"]
WAYS: tuple[Way, ...] = ("tunnel", "tunnel", "plain", "transparent")
_KEY = b"dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455 section 1.2
_TE, _CL = b"Transfer-Encoding: chunked", b"Content-Length: 3"
SENT = b"a body \x00\xff\r\n\r\n that looks like a head"


@dataclass(frozen=True)
class Said:
    """One request as it is sent. `refused`: the status that ours answers a hostile one with; 0: it goes through; -1: nobody
    knows, it was damaged. `waits`: its body is sent once a 100 has come."""

    raw: bytes
    method: bytes
    refused: int = 0
    body: bytes = b""  # but for what ends it
    trailer: bytes = b""
    end: bytes = b""
    waits: bool = False
    frames: tuple[bytes, ...] = ()

    @property
    def sent(self) -> bytes:
        """The body on the wire."""
        return self.body + self.trailer + self.end


@dataclass(frozen=True)
class Conversation:
    """`together`: all of it is sent before the first answer is read."""

    seed: int
    way: Way
    said: tuple[Said, ...]
    together: bool


def made(seed: int) -> Conversation:
    chance = random.Random(seed)
    way = chance.choice(WAYS)
    said = [_good(chance, way) for _ in range(chance.randint(1, 4))]
    last = chance.randrange(6)
    if last == 0:
        said.append(_hostile(chance, way))
    elif last == 1:
        said.append(_damaged(chance, way))
    elif last == 2 and way != "plain":
        said.append(_socket(chance))
    together = chance.random() < 0.3 and not any(each.waits or each.frames for each in said)
    return Conversation(seed, way, tuple(said), together)


# --- good ones --------------------------------------------------------------------------------------------------------

_ENDINGS = ("", "", "?", "?a=b&c=%2F", "/x%20y", "/~a/b.c", "/%C3%A9")
FIELDS = [
    *(b"Accept: */*", b"User-Agent: soak/1", b"X-Empty:", b"x-lower: \t spaced \t", b"X-Two: a", b"X-Two: b"),
    *(b"Cookie: a=b; c=d", b"Accept-Encoding: gzip, br", b"X-Latin: caf\xe9", b"Authorization: Bearer its-own"),
    *(
        b"Referer: http://api.test/?a=b",
        b"Origin: null",
        b'If-None-Match: "x"',
        b"Range: bytes=0-5",
        b"Pragma: no-cache",
    ),
    *(b"Connection: keep-alive", b"Connection: X-Mine\r\nX-Mine: 1", b"Keep-Alive: timeout=5", b"TE: trailers"),
    *(
        b"Proxy-Connection: keep-alive",
        b"X-Forwarded-For: 10.0.0.1",
        b"X-Forwarded-Host: evil.test",
        b"Via: 1.1 before",
        b"Upgrade-Insecure-Requests: 1",
    ),
    *(
        b"X_Under: 1",
        b"X-Long: " + b"l" * 3000,
        b"Content-Type: application/json",
        b"Date: Tue, 01 Jan 2030 00:00:00 GMT",
    ),
]


def _good(chance: random.Random, way: Way) -> Said:
    kinds = (*ANSWERS, *ANSWERS, *ENDING) if chance.random() < 0.2 else tuple(ANSWERS)
    path = f"/{chance.choice(kinds)}/{chance.randrange(100)}{chance.choice(_ENDINGS)}".encode()
    method = chance.choice((b"GET", b"GET", b"HEAD", b"POST", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
    fields = chance.sample(FIELDS, chance.randrange(5))
    body, waits, trailer, end = b"", False, b"", b""
    if method in (b"POST", b"PUT", b"PATCH") or chance.random() < 0.1:
        more, body = _body(chance)
        fields += more
        if more == [_TE]:
            trailer, end = chance.choice((b"", b"", b"X-Trailer: 1\r\n", b"Authorization: Bearer behind\r\n")), b"\r\n"
        waits = chance.random() < 0.2 and bool(body)
        if waits:
            fields.append(b"Expect: 100-continue")
    chance.shuffle(fields)
    return Said(_head(method, path, fields, way, chance), method, 0, body, trailer, end, waits)


def _body(chance: random.Random) -> tuple[list[bytes], bytes]:
    """(its fields, it on the wire up to its trailer)."""
    content = chance.choice((b"", b"x", SENT, SENT * 40, bytes(70_000)))
    if chance.random() < 0.5:
        return [b"Content-Length: %d" % len(content)], content
    size = chance.choice((1, 7, 4096)) if len(content) < 5000 else 4096
    extension = chance.choice((b"", b"", b";a=b", b';a="b c"'))
    pieces = (content[at : at + size] for at in range(0, len(content), size))
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(each), extension, each) for each in pieces)
    return [_TE], chunks + b"0\r\n"


def _head(
    method: bytes, path: bytes, fields: list[bytes], way: Way, chance: random.Random, host: bytes = HOST
) -> bytes:
    target = b"http://" + HOST + path if way == "plain" else path
    shown = chance.choice((host, host, host, host.upper(), host + b":" + (b"80" if way == "plain" else b"443")))
    lines = [b"%s %s HTTP/1.1" % (method, target), b"Host: " + shown, *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _socket(chance: random.Random) -> Said:
    fields = [
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + _KEY,
    ]
    chance.shuffle(fields)
    raw = _head(b"GET", f"/{WEBSOCKET}/1".encode(), fields, "tunnel", chance)
    frames = tuple(chance.choice((b"hello", b"", b"x" * 90, "\u00e9".encode())) for _ in range(chance.randint(1, 3)))
    return Said(raw, b"GET", frames=frames)


# --- hostile ones: table D of the design, with what ours says of each --------------------------------------------------

HOSTILE: list[tuple[list[bytes], bytes, int]] = [
    ([_CL, _TE], b"abc", 400),
    ([_TE, _CL], b"0\r\n\r\n", 400),
    ([_CL, _CL], b"abc", 400),
    ([b"Content-Length: 3, 3"], b"abc", 400),
    ([_CL, b"Content-Length: 4"], b"abc", 400),
    ([b"Content-Length: +3"], b"abc", 400),
    ([b"Content-Length: -3"], b"abc", 400),
    ([b"Content-Length: 0x3"], b"abc", 400),
    ([b"Content-Length: "], b"", 400),
    ([b"Content-Length : 3"], b"abc", 400),
    ([b"Transfer-Encoding: xchunked"], b"0\r\n\r\n", 400),
    ([b"Transfer-Encoding: chunked, identity"], b"0\r\n\r\n", 400),
    ([b"Transfer-Encoding: gzip, chunked"], b"0\r\n\r\n", 400),
    ([_TE, _TE], b"0\r\n\r\n", 400),
    ([b"Transfer-Encoding: chunked\x0b"], b"0\r\n\r\n", 400),
    ([b"Transfer-Encoding:", b" chunked"], b"0\r\n\r\n", 400),
    ([b"X-A: b", b" folded"], b"", 400),
    ([b"X-A: b\rc"], b"", 400),
    ([b"X-A: b\0c"], b"", 400),
    ([b"X-A: b\nX-B: c"], b"", 400),
    ([b": nameless"], b"", 400),
    ([b"X(A): b"], b"", 400),
    ([b"X-A"], b"", 400),
    ([b"Host: evil.test"], b"", 400),
    ([b"Content_Length: 3"], b"", 400),
    ([b"Expect: 200-ok"], b"", 417),
    ([b"Upgrade: tls/1.2", b"Connection: Upgrade"], b"", 400),
    ([b"X-Many-%d: 1" % n for n in range(120)], b"", 431),
    ([b"X-Large: " + b"l" * 40_000], b"", 431),
    ([_TE], b"Z\r\nabc\r\n0\r\n\r\n", 400),
    ([_TE], b"3\nabc\r\n0\r\n\r\n", 400),
    ([_TE], b"-3\r\nabc\r\n0\r\n\r\n", 400),
    ([_TE], b"0x3\r\nabc\r\n0\r\n\r\n", 400),
    ([_TE], b"3\r\nabcd\r\n0\r\n\r\n", 400),
    ([_TE], b"3\r\nabc\r\n0\r\n\n", 400),
    ([_TE], b"f" * 17 + b"\r\nabc\r\n0\r\n\r\n", 400),
]
HOSTILE_LINES: list[tuple[bytes, bytes, int]] = [
    (b"GET /plain/1 HTTP/1.1", b"evil.test", 421),
    (b"get /plain/1 HTTP/1.1", HOST, 400),
    (b"TRACE /plain/1 HTTP/1.1", HOST, 405),
    (b"GET  /plain/1 HTTP/1.1", HOST, 400),
    (b"GET /plain/1 HTTP/1.2", HOST, 400),
    (b"GET /plain/1 HTTP/2.0", HOST, 400),
    (b"GET /plain/../1 HTTP/1.1", HOST, 400),
    (b"GET /plain/%2e%2e/1 HTTP/1.1", HOST, 400),
    (b"GET /plain//1 HTTP/1.1", HOST, 400),
    (b"GET /plain/a\\b HTTP/1.1", HOST, 400),
    (b"GET /plain/%00 HTTP/1.1", HOST, 400),
    (b"GET /plain/#x HTTP/1.1", HOST, 400),
    (b"GET /plain/\xff HTTP/1.1", HOST, 400),
    (b"GET http://user@api.test/plain/1 HTTP/1.1", HOST, 400),
    (b"GET /" + b"l" * 9000 + b" HTTP/1.1", HOST, 414),
    (b"PRI * HTTP/2.0", HOST, 400),
]


def _hostile(chance: random.Random, way: Way) -> Said:
    if way != "plain" and chance.random() < 0.3:
        line, host, status = chance.choice(HOSTILE_LINES)
        return Said(line + b"\r\nHost: " + host + b"\r\n\r\n", line.split(b" ")[0], status)
    fields, body, status = chance.choice(HOSTILE)
    return Said(_head(b"POST", b"/plain/1", fields, way, chance) + body, b"POST", status)


def _damaged(chance: random.Random, way: Way) -> Said:
    good = _good(chance, way)
    raw = bytearray(good.raw[:-4])
    for _ in range(chance.choice((1, 1, 2, 3))):
        damaged(chance, raw, SPICE)
    return Said(bytes(raw) + b"\r\n\r\n" + good.body + good.end, bytes(raw).split(b" ")[0], -1)
