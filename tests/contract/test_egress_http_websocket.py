"""WebSockets by rule: the handshake is a judged request, what follows is opaque and bounded. The peer is a real one."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from tests.support.egress_rig import SECRET, Rig, placeholder, reply, request, rig, rule
from tests.support.egress_upstream import Arrived

PH = placeholder()
HANDSHAKE = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455 section 1.3, for that key


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, rules=(rule(websocket=True, paths=("/ws/**",)),)) as made:
        yield made


async def echo(peer: ServerConnection) -> None:
    assert peer.request is not None
    await peer.send(json.dumps(dict(peer.request.headers.raw_items())))
    async for message in peer:
        await peer.send(message)


async def told(way: Rig) -> None:
    """That something of the server's held the secret."""
    async with asyncio.timeout(30):
        while ("secret_reflected", "inv_1") not in [each[:2] for each in way.kernel.findings]:
            await asyncio.sleep(0.01)


def trusting(way: Rig) -> ssl.SSLContext:
    return way.user_ca.trusting()


async def test_a_real_client_and_server_talk(way: Rig) -> None:
    """Case 24."""
    way.ticket(PH)
    async with serve(echo, "127.0.0.1", 0, ssl=way.upstream_ca.context("api.test")) as server:
        way.dialler.table["api.test", 443] = server.sockets[0].getsockname()[1]
        way.configure()
        proxy = f"http://127.0.0.1:{way.port}"
        headers = {"Authorization": f"Bearer {PH}"}
        url = "wss://api.test/ws/echo"
        async with connect(url, proxy=proxy, ssl=trusting(way), additional_headers=headers) as peer:
            seen = json.loads(await peer.recv())
            assert seen["authorization"] == "Bearer " + "*" * len(SECRET)  # scrubbed on its way back, in a frame too
            assert "sec-websocket-extensions" not in seen  # compressed frames could not be looked through
            for message in ("hello", "x" * 300_000):
                await peer.send(message)
                assert await peer.recv() == message
    await told(way)


@pytest.mark.parametrize("credential", [True, False], ids=["with a credential", "control"])
async def test_a_message_is_not_kept_for_the_next(way: Rig, credential: bool) -> None:
    """Whatever it ends in: the secret begins with an s. What is written through one with a credential is on record before it."""
    way.ticket(PH)
    async with serve(echo, "127.0.0.1", 0, ssl=way.upstream_ca.context("api.test")) as server:
        way.dialler.table["api.test", 443] = server.sockets[0].getsockname()[1]
        way.configure()
        headers = {"Authorization": f"Bearer {PH}"} if credential else {}
        proxy = f"http://127.0.0.1:{way.port}"
        url = "wss://api.test/ws/echo"
        async with connect(url, proxy=proxy, ssl=trusting(way), additional_headers=headers) as peer:
            await peer.recv()
            assert [(each.method, each.credential) for each in way.kernel.intents] == [
                ("GET", "crd_1" if credential else "")
            ]
            for message in ("ok s", "s3", SECRET[:-1].decode()):
                await peer.send(message)
                async with asyncio.timeout(30):
                    assert await peer.recv() == message
    async with asyncio.timeout(30):
        while not way.kernel.outcomes:
            await asyncio.sleep(0.01)
    assert way.kernel.outcomes[0][1].status == 101


async def test_what_a_server_reflects_is_told_when_the_box_leaves(way: Rig) -> None:
    way.ticket(PH)

    async def shows(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(SECRET), SECRET))
        await reader.read()  # and never ends
        return False

    way.upstream.handler = shows
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/ws/x", f"Authorization: Bearer {PH}"))
    await reader.readuntil(b"*" * len(SECRET))
    writer.transport.abort()
    await told(way)


async def test_without_a_rule_for_it_there_is_none(way: Rig) -> None:
    way.configure(rules=(rule(),))
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/ws/a", *HANDSHAKE))
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (403, "denied")
    assert answered.error["rule"]["websocket"] is True
    assert way.upstream.connections == 0


async def test_outside_of_the_rule_s_path_there_is_none(way: Rig) -> None:
    proxy = f"http://127.0.0.1:{way.port}"
    with pytest.raises(InvalidStatus, match="403"):
        await connect("wss://api.test/other", proxy=proxy, ssl=trusting(way))


@pytest.mark.parametrize(
    "fields",
    [
        ("Connection: Upgrade", "Upgrade: tcp"),
        ("Connection: Upgrade", "Upgrade: websocket, h2c"),
        HANDSHAKE[1:],
        (*HANDSHAKE[:2], "Sec-WebSocket-Version: 8", HANDSHAKE[3]),
        (*HANDSHAKE[:3], "Sec-WebSocket-Key: c2hvcnQ="),
        HANDSHAKE[:3],
        (*HANDSHAKE, "Transfer-Encoding: chunked"),
    ],
)
async def test_handshakes_that_are_none(way: Rig, fields: tuple[str, ...]) -> None:
    """G12."""
    answered = await way.asked(request("GET", "/ws/a", *fields))
    assert (answered.status, answered.reason) == (400, "malformed")
    assert way.upstream.connections == 0


@pytest.mark.parametrize(
    "said",
    [
        "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: AAAA\r\n\r\n",
        "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        f"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n",
        f"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n",
    ],
)
async def test_a_server_that_did_not_answer_this_handshake(way: Rig, said: str) -> None:
    await _answers(way, said)
    answered = await way.asked(request("GET", "/ws/a", *HANDSHAKE))
    assert (answered.status, answered.reason) == (502, "upstream_failed")


async def test_the_right_answer_to_that_handshake(way: Rig) -> None:
    """The control of those above; what came with it is the first of the peer's bytes."""
    upgrade = f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {ACCEPT}\r\nAlt-Svc: h3"
    await _answers(way, f"HTTP/1.1 101 X\r\n{upgrade}\r\n\r\nfirst")
    reader, writer = await way.tunnel()
    writer.write(request("GET", "/ws/a", *HANDSHAKE))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101") and b"alt-svc" not in head
    assert await reader.readexactly(5) == b"first"


async def test_a_server_may_refuse_and_the_connection_goes_on(way: Rig) -> None:
    reader, writer = await way.tunnel()
    for _ in range(2):
        writer.write(request("GET", "/ws/a", *HANDSHAKE))
        assert (await reply(reader)).status == 200  # not a 101: an answer like any other
    writer.close()


async def test_frames_are_bound_by_bytes(way: Rig) -> None:
    way.configure(rules=(rule(websocket=True, up_bytes=100_000),))
    async with serve(echo, "127.0.0.1", 0, ssl=way.upstream_ca.context("api.test")) as server:
        way.dialler.table["api.test", 443] = server.sockets[0].getsockname()[1]
        way.configure()
        async with connect("wss://api.test/", proxy=f"http://127.0.0.1:{way.port}", ssl=trusting(way)) as peer:
            await peer.recv()
            with pytest.raises(ConnectionClosedError):
                await peer.send(os.urandom(200_000))
                await peer.recv()


async def _answers(way: Rig, said: str) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        assert arrived.value("upgrade") == b"websocket" and arrived.value("connection") == b"Upgrade"
        writer.write(said.encode())
        await writer.drain()
        await reader.read()
        return False

    way.upstream.handler = handler
