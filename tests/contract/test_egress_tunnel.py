"""What two ends say to each other through a tunnel, over real sockets: all of it arrives, whoever closes first."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ringfence.host.egress import streams, tunnel
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.limits import Deadline

LAST = os.urandom(300_000)  # more than the buffers of both sockets and the writer hold


async def pair() -> tuple[socket.socket, tunnel.End]:
    """A far end, small of buffer, and its end of the tunnel."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    far.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=near, limit=streams.READ)
    writer.transport.set_write_buffer_limits(high=streams.HIGH_WATER)
    return far, tunnel.End(reader, writer, 1 << 30)


@asynccontextmanager
async def ends() -> AsyncIterator[tuple[socket.socket, tunnel.End, tunnel.End, socket.socket]]:
    """Box, the tunnel's end of it, the server's, server. Its ends are aborted after, as its callers do."""
    (box, near), (server, far) = await pair(), await pair()
    with box, server:
        try:
            yield box, near, far, server
        finally:
            for end in (near, far):
                end.writer.transport.abort()
            await asyncio.sleep(0)


async def all_of(far: socket.socket) -> bytes:
    got, loop = b"", asyncio.get_running_loop()
    while data := await loop.sock_recv(far, 65536):
        got += data
    return got


@pytest.mark.parametrize("first", ["box", "server"])
async def test_the_last_word_of_who_closes_arrives(first: str) -> None:
    """The other reads late, and answers what it has read: that arrives too."""
    loop = asyncio.get_running_loop()
    async with ends() as (box, near, far, server):
        speaks, hears = (box, server) if first == "box" else (server, box)

        async def spliced() -> bool:
            try:
                async with Deadline(Bounds()) as deadline:
                    return await tunnel.splice(near, far, deadline, 900)
            finally:  # as its callers do
                near.writer.transport.abort()
                far.writer.transport.abort()

        task = asyncio.ensure_future(spliced())
        await loop.sock_sendall(speaks, LAST)
        speaks.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.2)  # the tunnel has seen the end, and nobody has read
        async with asyncio.timeout(30):
            got = await all_of(hears)
            assert hashlib.sha256(got).digest() == hashlib.sha256(LAST).digest()
            await loop.sock_sendall(hears, b"thanks")
            hears.close()
            assert await all_of(speaks) == b"thanks"
            assert await task
        assert (near if first == "box" else far).moved == len(LAST)


async def test_at_a_cap_both_ends_are_reset() -> None:
    async with ends() as (box, near, far, _):
        near.cap = 1000
        async with Deadline(Bounds()) as deadline:
            box.send(bytes(2000))
            assert not await tunnel.splice(near, far, deadline, 900)
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(30):
                await all_of(box)


async def test_one_end_that_says_nothing_after_the_other_s_last_word_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tunnel, "_AFTER", 0.1)
    async with ends() as (box, near, far, _):
        box.shutdown(socket.SHUT_WR)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30), Deadline(Bounds()) as deadline:
                await tunnel.splice(near, far, deadline, 900)
