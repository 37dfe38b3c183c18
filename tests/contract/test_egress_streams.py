"""How much of a stream is held at a time: TLS over a real pair of sockets, a client of asyncio's own on the other end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ringfence.host.egress import streams
from tests.support.egress_tls import Authority

RECORD = 16 << 10
BODY = bytes(range(256)) * (16 << 10)


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[streams.Streams, streams.SmallTls, asyncio.StreamWriter]]:
    """(an accepted end, its protocol, who sends to it)."""
    ca = Authority(folder, "box")
    ours, theirs = socket.socketpair()
    trusting = ssl.create_default_context(cadata=ca.pem)
    (reader, writer), (_, sender) = await asyncio.gather(
        streams.accepted(ours, lambda: None, ca.context("api.test")),
        asyncio.open_connection(sock=theirs, ssl=trusting, server_hostname="api.test"),
    )
    tls = writer.transport._ssl_protocol  # type: ignore[attr-defined]
    assert isinstance(tls, streams.SmallTls)
    try:
        async with asyncio.timeout(20):
            yield (reader, writer), tls, sender
    finally:
        for each in (writer, sender):
            each.transport.abort()


async def taken(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < count:
        pieces.append(await reader.read(streams.LONG))
    return pieces


def held(tls: streams.SmallTls) -> int:
    return len(tls.get_buffer(-1))


async def test_a_long_body_comes_by_long_reads_and_leaves_a_small_buffer(tmp_path: Path) -> None:
    async with pair(tmp_path) as ((reader, _), tls, sender):
        assert held(tls) == RECORD
        sender.write(BODY)
        pieces = await taken(reader, len(BODY))
        assert b"".join(pieces) == BODY
        assert streams.READ < max(map(len, pieces)) <= streams.LONG
        assert held(tls) > RECORD
        sender.write(b"hello\n")
        assert await reader.read(streams.LONG) == b"hello\n"
        assert held(tls) == RECORD


async def test_an_answer_of_one_record_is_none(tmp_path: Path) -> None:
    async with pair(tmp_path) as ((reader, _), tls, sender):
        for _ in range(8):
            sender.write(BODY[: RECORD - 100])
            await taken(reader, RECORD - 100)
            assert held(tls) == RECORD


@pytest.mark.parametrize("first", [0, 1 << 20], ids=["at once", "in a long body"])
async def test_who_stalls_has_a_small_buffer_and_little_ahead(tmp_path: Path, first: int) -> None:
    """The sender is stopped, and nothing is lost."""
    async with pair(tmp_path) as ((reader, _), tls, sender):
        sender.write(BODY)
        begun = b"".join(await taken(reader, first))
        while not tls._app_reading_paused:
            await asyncio.sleep(0)
        assert held(tls) == RECORD
        while not tls._ssl_reading_paused:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert held(tls) == RECORD
        ahead = len(reader._buffer)  # type: ignore[attr-defined]
        assert ahead <= 2 * streams.AHEAD + streams.LONG
        assert begun + b"".join(await taken(reader, len(BODY) - len(begun))) == BODY
