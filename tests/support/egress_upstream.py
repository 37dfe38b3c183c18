"""A server on loopback that keeps every byte it is sent, and answers as a test says."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

Handler = Callable[["Arrived", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]


@dataclass
class Arrived:
    """One request as it came: `head` with its end, and the body."""

    head: bytes
    body: bytes = b""

    @property
    def line(self) -> bytes:
        return self.head.partition(b"\r\n")[0]

    def values(self, name: str) -> list[bytes]:
        lines = self.head.split(b"\r\n")[1:]
        pairs = [line.partition(b":") for line in lines if line]
        return [value.strip() for key, _, value in pairs if key.lower() == name.encode()]

    def value(self, name: str) -> bytes:
        found = self.values(name)
        assert len(found) == 1, (name, self.head)
        return found[0]


def answer(status: str, body: bytes, *fields: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def echo(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """What came, as JSON: reflects everything."""
    said = {"head": arrived.head.decode("latin-1"), "body": arrived.body.decode("latin-1")}
    writer.write(answer("200 OK", json.dumps(said).encode(), "Content-Type: application/json"))
    await writer.drain()
    return True


async def _body(head: Arrived, reader: asyncio.StreamReader) -> bytes:
    if head.values("content-length"):
        return await reader.readexactly(int(head.value("content-length")))
    if not head.values("transfer-encoding"):
        return b""
    pieces = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        assert await reader.readexactly(2) == b"\r\n"
    trailer = await reader.readuntil(b"\r\n")
    assert trailer == b"\r\n", trailer  # no trailer ever comes through
    return b"".join(pieces)


@dataclass
class Upstream:
    """`arrived`: requests, in order. `connections`: how many were opened, whatever was said on them. `raw`: of those whose
    handler is None, all bytes."""

    handler: Handler | None = echo
    arrived: list[Arrived] = field(default_factory=list)
    connections: int = 0
    ended: int = 0
    raw: bytes = b""
    port: int = 0
    expecting: bytes = b"HTTP/1.1 100 Continue\r\n\r\n"
    early: bool = False  # the handler is called before the body is read
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self, context: ssl.SSLContext | None) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        for writer in self._open:
            writer.transport.abort()
        async with asyncio.timeout(5):
            while self._open:
                await asyncio.sleep(0.005)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if self.handler is None:
                await self._recorded(reader, writer)
            else:
                await self._talk(reader, writer)
        self.ended += 1
        self._open.discard(writer)
        writer.close()

    async def _recorded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.raw += data
            writer.write(data)
            await writer.drain()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        going = True
        while going:
            request = Arrived(await reader.readuntil(b"\r\n\r\n"))
            self.arrived.append(request)
            if request.values("expect") and self.expecting:
                writer.write(self.expecting)
            if not self.early:
                request.body = await _body(request, reader)
            assert self.handler is not None
            going = await self.handler(request, reader, writer)
