"""Fuzz target: whatever head the pre-parser accepts, h11 accepts and reads as the same request, body framing included.

An input is its first byte (which of the three readers), the next (where it is cut), and what comes on the wire. How to run it:
tests/fuzz/running.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from contextlib import suppress

import h11

from ringfence.host.egress import fields, framing, head
from ringfence.host.egress.chunks import Sizes
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.refusals import Refusal
from tests.fuzz.running import Target, damaged

BOUNDS = Bounds()
_BODY = b"b" * 64
_ROOM = 1 << 20  # bytes of a head that h11 takes: ours has the smaller bound
_LINE = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;[^\r\n]*)?\r\n")
REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n",
    b"POST /a?b=c HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\nProxy-Connection: close\r\n\r\n",
    b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\nX-A:\r\nX-A: \t b \t\r\nCookie: a=\xff\r\n\r\n",
    b"GET /s HTTP/1.1\r\nHost: api.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: api.test\r\nContent-Length: 0\r\n\r\n",
]
RESPONSES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n",
    b"HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\n",
    b"HTTP/1.1 204\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n",
]
BODIES = [
    b"5\r\nhello\r\n0\r\n\r\n",
    b"1;a=b\r\nx\r\n0A\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n",
    b"0\r\n\r\nGET / HTTP/1.1\r\nHost: api.test\r\n\r\n",
    b"00000005\r\nhello\r\n000\r\n\r\n",
]
SPICE = [
    *(b"\r\n", b"\n", b"\r", b"\r\n ", b"\r\n\t", b"\0", b"\x0b", b"\xa0", b"\x85", b" ", b"\t", b":", b",", b";"),
    *(b"Content-Length: 3\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length : 1\r\n"),
    *(b"chunked", b", chunked", b"identity", b"Chunked", b"content_length: 1\r\n", b"Host: evil.test\r\n", b"HTTP/1.1"),
    *(b"HTTP/1.0", b"HTTP/2.0", b"+1", b"-1", b"0x1", b"1, 1", b"9" * 19, b"0" * 20, b"F" * 17, b"\r\n\r\n", b"%00"),
]
TRIES = (REQUESTS, RESPONSES, BODIES)


def one_input(data: bytes) -> bool:
    kind, cut, wire = data[0] % len(TRIES) if data else 0, data[1] if len(data) > 1 else 0, data[2:]
    if kind == TRIES.index(BODIES):
        return _chunked(wire, cut)
    raw, ended, _ = wire.partition(head.END)
    raw += ended
    return _request(raw, cut) if kind == TRIES.index(REQUESTS) else _response(raw)


def _request(raw: bytes, cut: int) -> bool:
    prefix = raw[: min(len(raw) - 1, cut)] if raw else raw
    early = _refused_early(prefix)
    try:
        read = head.request(raw, BOUNDS)
    except Refusal as refusal:
        assert refusal.close and refusal.status in (400, 405, 414, 417, 431)
        return False
    assert not early, "what a whole head may say, its beginning may"
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_ROOM)
    connection.receive_data(raw)
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    _answered(read, cut)
    assert (read.method.encode(), read.target) == (event.method, event.target)
    _alike(read.fields, event.headers, read.minor, event.http_version)
    assert read.has_body is (_framed(connection, read.fields) > 0)
    return True


def _refused_early(prefix: bytes) -> bool:
    try:
        head.early(prefix, BOUNDS)
    except Refusal:
        return True
    return False


def _response(raw: bytes) -> bool:
    try:
        read = head.response(raw, BOUNDS)
    except Refusal as refusal:
        assert refusal.close
        return False
    if read.status == 101:  # never given to h11 by the worker
        return True
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ROOM)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "api.test")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    event = connection.next_event()
    _counted(read)
    assert isinstance(event, (h11.Response, h11.InformationalResponse))
    assert isinstance(event, h11.InformationalResponse) is (read.status < 200)
    assert (read.status, read.reason) == (event.status_code, event.reason)
    _alike(read.fields, event.headers, read.minor, event.http_version)
    if read.status >= 200 and read.status not in (204, 304) and any(name in _FRAMING for name, _ in read.fields):
        _framed(connection, read.fields)
    return True


_FRAMING = (b"content-length", b"transfer-encoding")
STATUSES = (200, 204, 304, 404, 100, 199, 500)
BODIES_OF_ANSWERS = (
    (b"content-length", b"4"),
    (b"content-length", b"0"),
    (b"transfer-encoding", b"chunked"),
    (b"x-a", b"b"),
)


def _counted(read: head.ResponseHead) -> None:
    """What is counted without h11 has that length for it too, and leaves a connection that it takes for good."""
    for method in ("GET", "HEAD", "DELETE") if read.status >= 200 else ():
        length = framing.counted(method, read)
        if length is None:
            continue
        connection = _asking(method)
        connection.receive_data(read.raw)
        assert isinstance(connection.next_event(), h11.Response)
        assert _length(connection, length) == min(length, len(_BODY)), (method, read)
        if length <= len(_BODY):
            assert connection.our_state is connection.their_state is h11.DONE, (method, read)


def _asking(method: str) -> h11.Connection:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ROOM)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "api.test")]))
    connection.send(h11.EndOfMessage())
    return connection


def _length(connection: h11.Connection, length: int) -> int:
    connection.receive_data(_BODY[:length])
    return len(_body(connection, length))


def _answered(asked: head.RequestHead, chosen: int) -> None:
    """An answer is written, with h11 or without, so that h11 reads the same one, and takes the connection for as good."""
    status, body = STATUSES[chosen % len(STATUSES)], BODIES_OF_ANSWERS[chosen // 8 % len(BODIES_OF_ANSWERS)]
    if asked.has_body or asked.method == "CONNECT" or _upgrades(asked):
        return
    kept = fields.incoming((body, (b"set-cookie", b"a=b")), framing=True)
    written, plain = (_replied(asked, status, kept, plainly=each) for each in (True, False))
    assert written == plain, (asked, status, kept)


def _upgrades(asked: head.RequestHead) -> bool:
    return any(b"upgrade" in value.lower() for name, value in asked.fields if name == b"connection")


def _replied(
    asked: head.RequestHead, status: int, kept: list[tuple[bytes, bytes]], *, plainly: bool
) -> tuple[int, list[tuple[bytes, bytes]], bytes, bool]:
    """(status, fields, body, whether the connection goes on) as a client reads it."""
    reply = framing.Reply(asked, _ROOM)
    reply._plain = reply._plain and plainly
    sent = b""
    if status < 200:
        sent, status = reply.interim(status, [(b"x-a", b"b")]), 200
    sent += reply.head(status, b"Said", kept)
    bodiless = asked.method == "HEAD" or status in (204, 304) or (b"content-length", b"0") in kept
    sent += (b"" if bodiless else reply.data(b"abcd")) + reply.end()
    reader = _asking(asked.method)
    reader.receive_data(sent)
    while isinstance(event := reader.next_event(), h11.InformationalResponse):
        pass
    assert isinstance(event, h11.Response)
    found = [(name, value) for name, value in event.headers if name != b"connection"]
    if not reply.alive:
        reader.receive_data(b"")
    return event.status_code, sorted(found), _body(reader, 5), reply.alive


def _alike(ours: head.Fields, theirs: Iterable[tuple[bytes, bytes]], minor: int, version: bytes) -> None:
    assert list(ours) == [(name, value) for name, value in theirs], (ours, list(theirs))
    assert b"1.%d" % minor == version


def _framed(connection: h11.Connection, fields: head.Fields) -> int:
    """The length of the body as h11 has it from these fields, which must be what ours say: 0, a number, or chunks."""
    if head.one(fields, b"transfer-encoding") is not None:
        connection.receive_data(b"3\r\nabc\r\n0\r\n\r\n")
        assert _body(connection) == b"abc"
        return 3
    length = int(head.one(fields, b"content-length") or 0)
    sent = _BODY[:length]
    connection.receive_data(sent + b"NEXT")
    got = _body(connection, length)
    assert got == (sent + b"NEXT")[:length]
    return length


def _body(connection: h11.Connection, most: int = 3) -> bytes:
    got = b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Data):
            got += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return got
        else:
            assert event is h11.NEED_DATA and len(got) < most, event
            return got


def _chunked(wire: bytes, cut: int) -> bool:
    """What both the sizes' reader and h11 take is what a third reader takes, wherever the pieces are cut."""
    size = cut % 7 + 1
    pieces = [wire[at : at + size] for at in range(0, len(wire), size)]
    ours = _sizes([wire])
    assert ours == _sizes(pieces)
    theirs = _dechunked(pieces)
    if not ours or theirs is None:
        return False
    assert theirs == _plainly(wire), theirs
    return True


def _sizes(pieces: list[bytes]) -> bool:
    sizes = Sizes()
    try:
        for piece in pieces:
            sizes.feed(piece)
    except Refusal:
        return False
    return True


def _dechunked(pieces: list[bytes]) -> tuple[bytes, bytes] | None:
    """(body, what follows) by h11; None: refused, or not complete."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_ROOM)
    connection.receive_data(REQUESTS[2])
    assert isinstance(connection.next_event(), h11.Request)
    got = b""
    with suppress(h11.RemoteProtocolError):
        for number, piece in enumerate(pieces):
            connection.receive_data(piece)
            while not isinstance(event := connection.next_event(), type(h11.NEED_DATA)):
                if isinstance(event, h11.EndOfMessage):
                    return got, connection.trailing_data[0] + b"".join(pieces[number + 1 :])
                assert isinstance(event, h11.Data)
                got += bytes(event.data)
    return None


def _plainly(wire: bytes) -> tuple[bytes, bytes] | None:
    """RFC 9112 section 7.1, in the shortest words."""
    got, at = b"", 0
    while (line := _LINE.match(wire, at)) is not None:
        at, size = line.end(), int(line.group(1), 16)
        if size == 0:
            if wire.startswith(b"\r\n", at):
                return got, wire[at + 2 :]
            end = wire.find(head.END, at)
            return (got, wire[end + 4 :]) if end >= 0 else None
        got += wire[at : at + size]
        at += size
        if wire[at : at + 2] != b"\r\n":
            return None
        at += 2
    return None


def mutated(chance: random.Random) -> bytes:
    kind = chance.randrange(len(TRIES))
    data = bytearray(chance.choice(TRIES[kind]))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 4))):
        damaged(chance, data, SPICE)
    return bytes([kind, chance.randrange(256)]) + bytes(data)


TARGET = Target(one_input, mutated)

if __name__ == "__main__":
    TARGET.main()
