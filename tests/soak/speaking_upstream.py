"""A server that keeps what it is asked, and answers as the first segment of the path says, in each way a server may."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
from contextlib import suppress
from dataclasses import dataclass, field

from tests.soak.messages import CLOSE, TEXT, Message, body, frame, head, next_frame

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BODY = b"the body of an answer\r\n"
_TRAILERS = b"X-Trailer: 1\r\nServer-Timing: a\r\n"
_BIG = bytes(range(256)) * 600


def _framed(status: bytes, body: bytes, *fields: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _chunked(*pieces: bytes, fields: tuple[bytes, ...] = (), trailer: bytes = b"") -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", *fields]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in pieces)
    return b"\r\n".join(lines) + b"\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n"


ANSWERS: dict[str, bytes] = {
    "plain": _framed(b"200 OK", _BODY, b"Content-Type: text/plain", b"Set-Cookie: a=b", b"Set-Cookie: c=d"),
    "odd": _framed(b"200 ", _BODY, b"X-Empty:", b"X-Latin: caf\xe9", b"x-LOWER:   spaced\t ", b"X-Two: a", b"X-Two: b"),
    "hops": _framed(b"200 OK", _BODY, b"Connection: X-Mine, keep-alive", b"X-Mine: 1", b"Keep-Alive: timeout=5"),
    "alternative": _framed(b"200 OK", _BODY, b'Alt-Svc: h3=":443"'),
    "chunked": _chunked(b"one", b"two" * 30, _BODY),
    "trailer": _chunked(b"one", trailer=_TRAILERS, fields=(b"Trailer: X-Trailer",)),
    "events": _chunked(b"data: 1\n\n", b": beat\n\n", b"data: 2\n\n", fields=(b"Content-Type: text/event-stream",)),
    "zero": _framed(b"200 OK", b""),
    "created": _framed(b"201 Created", _BODY, b"Location: /plain/1"),
    "moved": _framed(b"302 Found", b"", b"Location: https://other.test/plain"),
    "none": b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n",
    "unchanged": b'HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: "x"\r\n\r\n',
    "hints": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + _framed(b"200 OK", _BODY),
    "continued": b"HTTP/1.1 100 Continue\r\n\r\n" + _framed(b"200 OK", _BODY),
    "big": _framed(b"200 OK", _BIG),
    "missing": _framed(b"404 Not Found", _BODY),
    "failing": _framed(b"500 Internal Server Error", _BODY),
    "strange": _framed(b"299 Whatever: it is", _BODY),
}
ENDING: dict[str, bytes] = {  # the connection is closed behind them
    "endless": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + _BODY,
    "old": b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY),
    "closing": _framed(b"200 OK", _BODY, b"Connection: close"),
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + _BODY,
    "torn": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nhe",
    "unframed": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "twice": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "folded": b"HTTP/1.1 200 OK\r\nX-A: a\r\n b\r\nContent-Length: 5\r\n\r\nhello",
    "noise": b"\x00\x01 this is no HTTP\r\n\r\n",
}
WEBSOCKET = "socket"


@dataclass
class SpeakingUpstream:
    """`seen`: whole requests in order; `frames`: what came behind a 101. `elaborate`: it says 1xx before some answers and
    trailers behind some, which not every proxy can."""

    elaborate: bool = True
    seen: list[Message] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    port: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self, context: ssl.SSLContext | None) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0.05)

    def forget(self) -> None:
        self.seen.clear()
        self.frames.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while (asked := await head(reader)) is not None:
                if not await self._one(asked, reader, writer):
                    break
        self._open.discard(writer)
        writer.close()

    async def _one(self, asked: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if asked.values(b"expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        asked = await body(reader, asked, to_the_end=False)
        self.seen.append(asked)
        method, _, target = asked.first.decode("latin-1").partition(" ")
        kind = target.lstrip("/").split("/")[0].split("?")[0].split(" ")[0]
        if kind == WEBSOCKET and asked.values(b"upgrade"):
            await self._socket(asked, reader, writer)
            return False
        answer = ENDING.get(kind) or ANSWERS.get(kind, ANSWERS["plain"])
        if not self.elaborate:
            answer = answer.replace(_TRAILERS, b"")
            answer = answer.partition(b"\r\n\r\n")[2] if answer.startswith(b"HTTP/1.1 1") else answer
        if method == "HEAD":
            answer = _without_body(answer)
        writer.write(answer)
        await writer.drain()
        return asked.whole and kind not in ENDING and not asked.says_close

    async def _socket(self, asked: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key = (asked.values(b"sec-websocket-key") or [b""])[0]
        accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        lines = [b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Accept: " + accept]
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n" + b"\r\n".join(lines) + b"\r\n\r\n")
        while (came := await next_frame(reader))[0] != CLOSE:
            self.frames.append(came[1])
            writer.write(frame(TEXT, b"back: " + came[1]))
        writer.write(frame(CLOSE, came[1]))


def _without_body(answer: bytes) -> bytes:
    """The heads of it, 1xx ones too."""
    end = answer.rfind(b"\r\n\r\n") if answer.startswith(b"HTTP/1.1 1") else answer.find(b"\r\n\r\n")
    return answer[: end + 4]
