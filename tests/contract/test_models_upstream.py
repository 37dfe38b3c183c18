"""Connections to providers, over real sockets: who is given which bytes, and when one is used again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringfence.host.kernel.models.upstreams import Kind, Upstream
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models import upstream_pool
from ringfence.host.models.provider_key import ProviderKey
from ringfence.host.models.upstream_answer import BrokeOff
from ringfence.host.models.upstream_client import UpstreamClient
from ringfence.host.models.upstream_pool import NotReached
from tests.support.egress_tls import Authority
from tests.support.models_rig import Asked

KEY = Secret(b"sk-the-key-0123456789")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """`answers`: what is written for each request; None: the connection is closed."""

    answers: list[bytes | None]
    port: int = 0
    connections: int = 0
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    ended: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while (answer := await self._answer(reader)) is not None:
                writer.write(answer)
        except (asyncio.IncompleteReadError, OSError):
            self.ended += 1
        await closed(writer)
        self.writers.remove(writer)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes | None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        self.heads.append(head)
        self.bodies.append(await reader.readexactly(int(size or b"0")))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def served(*answers: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    made = Server(list(answers))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for writer in list(made.writers):
            writer.close()
        await until(lambda: not made.writers)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _none(*_: object) -> Secret:
    return KEY


@asynccontextmanager
async def client(proxy: str = "", roots: ssl.SSLContext | None = None) -> AsyncIterator[UpstreamClient]:
    made = UpstreamClient(Asked(_none), roots or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), proxy=proxy)
    try:
        yield made
    finally:
        await made.close()


def at(url: str, provider: Kind = Kind.OPENAI) -> Upstream:
    return Upstream("m", provider, url, "real", "key")


async def said(
    made: UpstreamClient, upstream: Upstream, body: bytes = b"{}", path: str = "/x", key: Secret = KEY
) -> bytes:
    async with made.post(upstream, key, path, [body], {"accept": "text/event-stream"}) as answer:
        return b"".join([piece async for piece in answer.pieces()])


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.005)


async def test_what_goes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with served(OK) as server, client() as made:
        assert await said(made, at(f"http://127.0.0.1:{server.port}/v1"), b'{"a": 1}') == b"ok"
        assert await said(made, at(f"http://127.0.0.1:{server.port}", Kind.ANTHROPIC)) == b"ok"
        first, second = server.heads
        assert first.startswith(b"POST /v1/x HTTP/1.1\r\n") and f"host: 127.0.0.1:{server.port}\r\n".encode() in first
        assert b"authorization: Bearer sk-the-key" in first and b"accept-encoding: identity" in first
        assert b"x-api-key: sk-the-key" in second and b"authorization" not in second
        assert server.bodies == [b'{"a": 1}', b"{}"] and server.connections == 1, "whatever path it has"


async def test_what_comes_unasked_is_no_answer_to_the_next() -> None:
    """A provider, or who stands before it, that says a second answer ahead of its request: it would be another
    user's."""
    async with served(OK) as server, client() as made:
        up = at(f"http://127.0.0.1:{server.port}")
        await said(made, up)
        server.writers[0].write(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nanother")
        await until(lambda: server.ended == 1)
        assert await said(made, up) == b"ok" and server.connections == 2
        server.answers[:] = [OK + OK.replace(b"ok", b"no"), OK]  # and in the same packet as the first
        assert await said(made, up) == b"ok" and await said(made, up) == b"ok"
        assert server.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ],
)
async def test_a_connection_that_was_to_end_is_not_used_again(answer: bytes) -> None:
    async with served(answer) as server, client() as made:
        for _ in range(2):
            assert await said(made, at(f"http://127.0.0.1:{server.port}")) == b"ok"
        assert server.connections == 2


async def test_one_that_the_provider_has_closed_is_not_used_again_and_nothing_is_sent_twice() -> None:
    async with served(OK) as server, client() as made:
        up = at(f"http://127.0.0.1:{server.port}")
        await said(made, up)
        server.writers[0].close()
        await until(lambda: server.ended == 1)
        await asyncio.sleep(0.05)  # the end of it is to arrive
        assert await said(made, up) == b"ok"
        server.answers[:] = [None]
        with pytest.raises(BrokeOff):
            await said(made, up)
        assert len(server.heads) == 3


async def test_whoever_leaves_in_the_middle_ends_the_connection() -> None:
    async with served(b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhalf") as server, client() as made:
        async with made.post(at(f"http://127.0.0.1:{server.port}"), KEY, "/x", [b"{}"], {}) as answer:
            async for piece in answer.pieces():
                assert piece == b"half"
                break
        await until(lambda: server.ended == 1)
        waiting = asyncio.ensure_future(said(made, at(f"http://127.0.0.1:{server.port}")))
        await until(lambda: len(server.heads) == 2)
        waiting.cancel()
        await until(lambda: server.ended == 2)
        await asyncio.wait([waiting])
        assert waiting.cancelled()


async def test_an_answer_before_the_end_of_a_large_request_is_the_answer() -> None:
    said_no = b"HTTP/1.1 413 Too large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"

    over = asyncio.Event()

    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said_no)
        await writer.drain()
        writer.write_eof()
        with suppress(OSError):
            while await reader.read(1 << 20):
                pass
        writer.close()
        over.set()

    server = await asyncio.start_server(refusing, "127.0.0.1", 0)
    async with client() as made:
        body = [b"x" * (8 << 20)]
        up = at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with made.post(up, KEY, "/x", body, {}) as answer:
            assert answer.status == 413 and not body, "it was not kept"
        await asyncio.wait_for(over.wait(), 30)
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
    ],
)
async def test_what_is_no_whole_answer_is_said_and_the_connection_ends(answer: bytes) -> None:
    async with served(answer) as server, client() as made:
        asking = asyncio.ensure_future(said(made, at(f"http://127.0.0.1:{server.port}")))
        await until(lambda: len(server.heads) == 1)
        if answer.endswith(b"half"):
            await asyncio.sleep(0.05)
            server.writers[0].close()
        with pytest.raises(BrokeOff):
            await asking


async def test_a_proxy_is_asked_for_what_is_not_here() -> None:
    async with served(OK) as proxy, client(f"127.0.0.1:{proxy.port}") as made:
        assert await said(made, at("http://models.test/v1")) == b"ok"
        assert proxy.heads[0].startswith(b"POST http://models.test/v1/x HTTP/1.1\r\nhost: models.test\r\n")
        proxy.answers[:] = [b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n"]
        with pytest.raises(NotReached):
            await said(made, at("https://models.test/v1"))
        assert (
            proxy.heads[1].startswith(b"CONNECT models.test:443 HTTP/1.1\r\n") and b"sk-the-key" not in proxy.heads[1]
        )
        async with served(OK) as here:
            assert await said(made, at(f"http://127.0.0.1:{here.port}")) == b"ok"
        assert len(proxy.heads) == 2


@asynccontextmanager
async def tunnelling(port: int, go: asyncio.Event | None = None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A proxy that takes every CONNECT to `port`, once `go` is set: (its own port, what it was asked)."""
    asked: list[bytes] = []

    async def carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        await closed(writer)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if go is not None:
            await go.wait()
        there = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(carried(reader, there[1]), carried(there[0], writer))
        over.append(asked[-1])

    over: list[bytes] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked
    await until(lambda: len(over) == len(asked))


async def test_tls_is_verified_for_the_name_straight_and_through_a_proxy(tmp_path: Path) -> None:
    up, other = Authority(tmp_path, "up"), Authority(tmp_path, "other")
    async with served(OK, tls=up.context("localhost")) as server, tunnelling(server.port) as (port, asked):
        here, there = at(f"https://localhost:{server.port}/v1"), at("https://models.test/v1")
        async with client(roots=up.trusting()) as made:
            for _ in range(2):
                assert await said(made, here) == b"ok"
            assert server.connections == 1
            with pytest.raises(NotReached):
                await said(made, at(f"https://127.0.0.1:{server.port}"))
        async with client(roots=other.trusting()) as made:
            with pytest.raises(NotReached):
                await said(made, here)
        async with client(f"127.0.0.1:{port}", up.trusting()) as made:
            with pytest.raises(NotReached):
                await said(made, there)
            assert asked[0].startswith(b"CONNECT models.test:443 HTTP/1.1\r\n") and len(server.heads) == 2
    async with (
        served(OK, tls=up.context("models.test")) as server,
        tunnelling(server.port) as (port, _),
        client(f"127.0.0.1:{port}", up.trusting()) as made,
    ):
        for _ in range(2):
            assert await said(made, there, b"x" * (1 << 20)) == b"ok"
        assert server.heads[0].startswith(b"POST /v1/x HTTP/1.1\r\nhost: models.test\r\n") and server.connections == 1


async def test_a_server_without_a_certificate_that_is_good_for_its_name_is_sent_nothing() -> None:
    async with served(OK) as server, client() as made:
        with pytest.raises(NotReached):
            await said(made, at(f"https://127.0.0.1:{server.port}"))
        with pytest.raises(NotReached):
            await said(made, at("http://127.0.0.1:1"))
        assert server.heads == []


@pytest.mark.parametrize("taken", [True, False])
async def test_a_key_that_is_taken_back_while_its_connection_is_made_is_sent_nowhere(
    tmp_path: Path, taken: bool
) -> None:
    up, go, key = Authority(tmp_path, "up"), asyncio.Event(), ProviderKey(KEY.reveal(), "crd_1")
    async with (
        served(OK, tls=up.context("models.test")) as server,
        tunnelling(server.port, go) as (port, asked),
        client(f"127.0.0.1:{port}", up.trusting()) as made,
    ):
        posting = asyncio.ensure_future(said(made, at("https://models.test/v1"), key=key))
        await until(lambda: bool(asked))
        key.withdrawn = taken
        go.set()
        await _sent_or_taken_back(posting, taken)
        assert len(server.heads) == (not taken), "control: the one that stands is sent"


@pytest.mark.parametrize("taken", [True, False])
async def test_a_key_that_is_taken_back_while_it_waits_for_room_is_sent_nowhere(
    monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    monkeypatch.setattr(upstream_pool, "MOST", 1)
    key = ProviderKey(KEY.reveal(), "crd_1")
    async with served(OK) as server, client() as made:
        up = at(f"http://127.0.0.1:{server.port}/v1")
        async with made.post(up, KEY, "/x", [b"{}"], {}) as answer:
            posting = asyncio.ensure_future(said(made, up, key=key))
            await until(made._pool._room.locked)
            await asyncio.sleep(0)
            key.withdrawn = taken
            assert not posting.done() and [piece async for piece in answer.pieces()] == [b"ok"]
        await _sent_or_taken_back(posting, taken)
        assert len(server.heads) == 1 + (not taken)


async def _sent_or_taken_back(posting: asyncio.Future[bytes], taken: bool) -> None:
    if not taken:
        assert await posting == b"ok"
        return
    with pytest.raises(NotReached, match="taken back"):
        await posting
