"""The bell of kernels on one PostgreSQL while the server is away: it tries again after a pause, and leaves nothing open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import URL, make_url

from ringfence.host.store import bell
from ringfence.host.store.bell import ListenBell
from ringfence.host.store.wakes import Wakes
from tests.support.databases import address

pytestmark = pytest.mark.postgresql
PATIENCE = 30.0  # seconds
TURNS = 50  # whole connections of our own, meanwhile


@asynccontextmanager
async def a_server_that_goes_away(calls: list[int]) -> AsyncIterator[int]:
    """Its port. Ends each connection at once, and counts them."""

    async def away(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(1)
        writer.close()

    async with await asyncio.start_server(away, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def call(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_news_of_before_ends_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection was lost while something was rung: as long as the server is away nobody takes that news."""
    monkeypatch.setattr(bell, "_AGAIN_SECONDS", (3600.0,))
    calls: list[int] = []
    async with a_server_that_goes_away(calls) as port:
        url = URL.create("postgresql+asyncpg", "r", host="127.0.0.1", port=port, database="d", query={"ssl": "disable"})
        made = ListenBell(url, Wakes())
        made._news.set()
        async with asyncio.timeout(PATIENCE):
            while not calls:
                await asyncio.sleep(0.01)
            for _ in range(TURNS):
                await call(port)
            assert len(calls) == 1 + TURNS, "it waits"
            await made.close()


async def test_a_connection_that_cannot_listen_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[asyncpg.Connection[Any]] = []

    async def deaf(connection: asyncpg.Connection[Any], *_: object) -> None:
        opened.append(connection)
        raise asyncpg.InterfaceError("it does not listen")

    monkeypatch.setattr(asyncpg.Connection, "add_listener", deaf)
    made = ListenBell(make_url(address(tmp_path)).set(drivername="postgresql+asyncpg"), Wakes())
    try:
        async with asyncio.timeout(PATIENCE):
            while not opened:
                await asyncio.sleep(0.01)
        assert not made.hears
    finally:
        await made.close()
    assert all(connection.is_closed() for connection in opened)
