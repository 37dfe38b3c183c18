"""Through a company's proxy: CONNECT and nothing else, the same verification behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringfence.host.egress.upstream import UpstreamError
from tests.support.egress_outside import LOOPBACK, Ca, dialler, line, nameserver, pin, serving

CA = Ca("upstream")


@dataclass
class Proxy:
    """Forwards every CONNECT to `to`, after `answer`."""

    to: int
    answer: bytes
    heads: list[bytes] = field(default_factory=list)
    port: int = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        up, down = await asyncio.open_connection(LOOPBACK, self.to)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, down))
                group.create_task(_pump(up, writer))
        finally:
            down.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    except OSError:
        return
    finally:
        writer.transport.abort()


@asynccontextmanager
async def proxy(to: int, answer: bytes = b"HTTP/1.1 200 OK\r\nVia: 1.1 corp\r\n\r\n") -> AsyncIterator[Proxy]:
    made = Proxy(to, answer)
    async with serving(made.connected) as made.port:
        yield made


async def test_it_is_told_the_name_and_the_server_proves_itself_through_it(tmp_path: Path) -> None:
    """The name is resolved there: hosts behind such a proxy often cannot."""
    async with (
        line(CA.leaf(tmp_path, "api.test")) as server,
        proxy(server.port) as corporate,
        nameserver(lambda name, kind: ["60 A 93.184.216.34"]) as names,
    ):
        dialled = dialler(CA.pem, nameservers=((LOOPBACK, names.port),), upstream_proxy=(LOOPBACK, corporate.port))
        reader, writer = await dialled.connect("api.test", 443)
        writer.write(b"hello\n")
        assert await asyncio.wait_for(reader.readline(), 5) == b"hello\n"
        assert corporate.heads == [b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n"]
        assert server.seen == ["api.test"]
        assert names.asked == []
        writer.transport.abort()
        await asyncio.sleep(0.05)
        assert dialled.open("api.test") == 0


async def test_a_proxy_in_the_middle_is_found_out(tmp_path: Path) -> None:
    """E11: only its root in the configuration lets it."""
    between = Ca("company")
    async with line(between.leaf(tmp_path, "api.test")) as server, proxy(server.port) as corporate:
        via = (LOOPBACK, corporate.port)
        with pytest.raises(UpstreamError) as error:
            await dialler(CA.pem, upstream_proxy=via).connect("api.test", 443)
        assert error.value.reason == "tls_failed"
        _, writer = await dialler(CA.pem + between.pem, upstream_proxy=via).connect("api.test", 443)
        writer.transport.abort()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",  # an answer in the server's name
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 4000,
    ],
)
async def test_anything_else_than_yes_is_no(answer: bytes) -> None:
    async with line(None) as server, proxy(server.port, answer=answer) as corporate:
        dialled = dialler(CA.pem, upstream_proxy=(LOOPBACK, corporate.port))
        with pytest.raises(UpstreamError) as error:
            await dialled.connect("api.test", 80, tls=False)
        assert error.value.reason == "proxy_failed"
        assert dialled.open("api.test") == 0


async def test_addresses_are_judged_as_ever_and_pins_go_straight(tmp_path: Path) -> None:
    async with line(None) as server, proxy(server.port) as corporate:
        via = (LOOPBACK, corporate.port)
        dialled = dialler(CA.pem, upstream_proxy=via, pins=(pin("api.test", server.port, 80),))
        for inside in ("169.254.169.254", "10.0.0.1", "127.0.0.1"):
            with pytest.raises(UpstreamError) as error:
                await dialled.connect(inside, 80, tls=False)
            assert error.value.reason == "address_denied"
        _, writer = await dialled.connect("api.test", 80, tls=False)
        assert corporate.heads == []
        writer.transport.abort()
