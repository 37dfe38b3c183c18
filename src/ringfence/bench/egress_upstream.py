"""The server that `bench egress` asks: TLS and plain HTTP on loopback, as little work a request as Python can do.

`python -m ringfence.bench.egress_upstream FOLDER` writes FOLDER/ca.pem, says its ports as JSON, and serves until its stdin closes.
    /                    a short answer
    /bytes/N             N bytes
    /sse/N/MS            N events, MS milliseconds apart; each is the monotonic time at which it was sent
    /v1/chat/...         a model's stream: one token, and the end
Must never listen anywhere but on loopback.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from contextlib import suppress
from pathlib import Path

from ringfence.host.app import SystemClock
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.minting import Minter
from ringfence.host.kernel.ids import UserId
from ringfence.host.vault import certificate

LOOPBACK = "127.0.0.1"
PIECE = bytes(64 << 10)
HELLO = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_TOKEN = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "x"}, "finish_reason": None}]}
_LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
_CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "none"}


async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, EOFError, ssl.SSLError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lowered = head.lower()
            if b"content-length:" in lowered:
                await reader.readexactly(int(lowered.partition(b"content-length:")[2].split(b"\r\n")[0]))
            await _answered(head.split(b" ")[1].decode().split("/"), writer)
            await writer.drain()
    writer.close()


async def _answered(path: list[str], writer: asyncio.StreamWriter) -> None:
    if path[1] == "bytes":
        size = int(path[2])
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // len(PIECE)):
            writer.write(PIECE)
            await writer.drain()
    elif path[1] == "sse":
        writer.write(STREAM)
        for _ in range(int(path[2])):
            await asyncio.sleep(int(path[3]) / 1000)
            writer.write(_event(str(time.monotonic())))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    elif path[1] == "v1":
        said = (json.dumps({**_CHUNK, **_TOKEN}), json.dumps({**_CHUNK, **_LAST}), "[DONE]")
        writer.write(STREAM + b"".join(map(_event, said)) + b"0\r\n\r\n")
    else:
        writer.write(HELLO)


def _event(text: str) -> bytes:
    data = f"data: {text}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Quick(asyncio.Protocol):
    """Answers `GET /` as it comes, so that who asks many of them measures what is between; the first other request is `served`'s."""

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while self._data.startswith(b"GET / ") and (end := self._data.find(b"\r\n\r\n")) >= 0:
            self._data = self._data[end + 4 :]
            self._transport.write(HELLO)
        if self._data and not b"GET / ".startswith(self._data[:6]):
            reader = asyncio.StreamReader()
            streaming = asyncio.StreamReaderProtocol(reader, served)
            self._transport.set_protocol(streaming)
            streaming.connection_made(self._transport)
            streaming.data_received(self._data)


def context(folder: Path) -> ssl.SSLContext:
    """A server's, with a leaf for whatever name is asked for; its CA is FOLDER/ca.pem."""
    clock = SystemClock()
    authority = certificate.make(UserId("bench"), clock.now())
    minter = Minter(authority.certificate, authority.key, Bounds(mints_minute=1000), clock.now, time.monotonic)
    (folder / "ca.pem").write_text(authority.certificate)
    made = minter.context("bench.test")

    def chosen(session: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        session.context = minter.context(name or "bench.test")

    made.sni_callback = chosen
    return made


async def main(folder: Path) -> None:
    loop = asyncio.get_running_loop()
    secured = await loop.create_server(Quick, LOOPBACK, 0, ssl=context(folder))
    plain = await loop.create_server(Quick, LOOPBACK, 0)
    ports = [each.sockets[0].getsockname()[1] for each in (secured, plain)]
    sys.stdout.write(json.dumps({"tls": ports[0], "plain": ports[1]}) + "\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
