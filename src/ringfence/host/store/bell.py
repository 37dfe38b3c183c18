"""LISTEN and NOTIFY: how the kernel processes on one PostgreSQL wake each other.

It rings after the commit, on a connection of its own. In the transaction itself NOTIFY would make the commits of all
kernels wait for each other (PostgreSQL takes one lock for its queue until the commit is on disk). So a ring may be lost:
whoever waits looks by itself once a second, and everybody is woken when a lost connection is back. Must never be the only
way to learn of anything, and must never be believed: what is heard says where to look, not what is there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
from sqlalchemy.engine import URL

from ringfence.host.kernel.ids import ThreadId
from ringfence.host.store.wakes import Wakes

CHANNEL = "ringfence"
AT_ONCE = 100  # threads in one message: 100 * (26 + 3) bytes, of the 7,999 that NOTIFY takes
_AGAIN_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # between two tries to connect; the last one for ever
_COMMAND_SECONDS = 10.0
_SETTINGS = {"application_name": "ringfence bell", "synchronous_commit": "off"}  # nothing of it has to last


class ListenBell:
    """dialect.Bell. Lives on its own task from the first to `close`."""

    def __init__(self, url: URL, wakes: Wakes) -> None:
        _, self._arguments = url.get_dialect()().create_connect_args(url)
        self._wakes = wakes
        self._grown: set[ThreadId] = set()
        self._offered: set[str] = set()
        self._news = asyncio.Event()
        self._closed = False
        self._log = logging.getLogger("ringfence.store")
        self.hears = False  # the connection is there
        self._task = asyncio.create_task(self._work(), name="store bell")

    def ring(self, grown: Mapping[ThreadId, int], offered: Sequence[str]) -> None:
        if not self.hears:
            return  # nobody would hear it later either: the others look by themselves
        self._grown.update(grown)
        self._offered.update(offered)
        if grown or offered:
            self._news.set()

    async def close(self) -> None:
        self._closed = True
        self._news.set()
        await self._task

    async def _work(self) -> None:
        failures = 0
        while not self._closed:
            try:
                connection = await self._connect()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                self._log.warning("other kernels on the database are not heard: %s", error)
                await self._pause(_AGAIN_SECONDS[min(failures, len(_AGAIN_SECONDS) - 1)])
                failures += 1
                continue
            failures = 0
            try:
                await self._serve(connection)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                self._log.warning("other kernels on the database are not heard any more: %s", error)
            finally:
                self.hears = False
                connection.terminate()

    async def _pause(self, seconds: float) -> None:
        """Ends early when the bell is closed. News of before, of a ring or of the connection that was lost, ends nothing:
        with it every pause would be over at once, for as long as the server is away."""
        if not self._closed:
            self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _connect(self) -> Any:
        connection = await asyncpg.connect(
            **self._arguments, server_settings=_SETTINGS, timeout=_COMMAND_SECONDS, command_timeout=_COMMAND_SECONDS
        )
        try:
            connection.add_termination_listener(lambda gone: self._news.set())
            await connection.add_listener(CHANNEL, self._heard)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _serve(self, connection: Any) -> None:
        """Until it is lost, or the bell closed."""
        self.hears = True
        self._wakes.unsure()  # whatever was rung before now was not heard
        while not self._closed:
            await self._news.wait()
            self._news.clear()
            if connection.is_closed():
                raise ConnectionResetError("the server ended the connection")
            for text in self._messages():
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, text)

    def _messages(self) -> list[str]:
        threads, offered = sorted(self._grown), sorted(self._offered)
        self._grown.clear()
        self._offered.clear()
        pieces = [threads[at : at + AT_ONCE] for at in range(0, len(threads), AT_ONCE)] or ([[]] if offered else [])
        return [json.dumps([piece, offered if at == 0 else []]) for at, piece in enumerate(pieces)]

    def _heard(self, connection: Any, pid: int, channel: str, text: str) -> None:
        if pid == connection.get_server_pid():
            return
        try:
            threads, offered = json.loads(text)
            self._wakes.heard([ThreadId(str(thread)) for thread in threads], [str(one) for one in offered])
        except (ValueError, TypeError):
            self._log.warning("somebody else rings on the database: %.80r", text)
