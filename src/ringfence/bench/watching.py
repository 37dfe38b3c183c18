"""People who talk to the agent and watch their threads: tokens, TCP and server-sent events, as any program would.

Keeps when each event came. Must never ask the server anything between a message and its end: that would be measured too.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ringfence.bench.throwaway import CommandFailed
from ringfence.client import ApiError, Client

LIMIT_SECONDS = 120.0  # of a turn: on a host that is slower than that, nothing here says anything


def free_address() -> str:
    """An address of loopback that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@asynccontextmanager
async def person(operator: Client, address: str, name: str) -> AsyncIterator[Client]:
    """A new user by token. What an operator does for somebody is written to the audit first: it would cost a commit."""
    await operator.add_user(name)
    token = (await operator.add_token(name))["token"]
    async with Client(url=f"http://{address}", token=token) as client:
        yield client


@dataclass(frozen=True, slots=True)
class Seen:
    """A durable event at its watcher."""

    cursor: int
    kind: str
    turn: str | None
    run: str | None
    body: dict[str, Any]
    came: float  # perf_counter
    lag_ms: float  # since the event's own time, which is taken just before its commit


class Watcher:
    def __init__(self, client: Client, thread: str) -> None:
        self._client, self.thread = client, thread
        self.seen: list[Seen] = []
        self._news = asyncio.Event()
        self._broken: ApiError | None = None

    async def follow(self) -> None:
        try:
            await self._follow()
        except ApiError as error:
            self._broken = error
            self._news.set()

    async def _follow(self) -> None:
        async with aclosing(self._client.follow(self.thread)) as events:
            async for event in events:
                came, now = time.perf_counter(), datetime.now(UTC)  # noqa: TID251  against the event's wall time
                if "cursor" not in event:  # live text: nothing durable
                    continue
                lag = (now - datetime.fromisoformat(event["at"])).total_seconds() * 1e3
                told = (event["cursor"], event["kind"], event["turn"], event["run"], event["body"])
                self.seen.append(Seen(*told, came, lag))
                self._news.set()

    async def until(self, turn: str, kind: str) -> Seen:
        """The turn's event of that kind. CommandFailed: it did not come, or the run had another end."""
        at = 0
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                while True:
                    for event in self.seen[at:]:
                        if event.turn == turn and event.kind == kind:
                            return event
                        _check(event, turn)
                    at = len(self.seen)
                    await self._more()
        except TimeoutError:
            raise CommandFailed(f"turn {turn} had no {kind} within {LIMIT_SECONDS:.0f} s") from None

    async def _more(self) -> None:
        if self._broken is not None:
            raise CommandFailed(f"the events of {self.thread} ended: {self._broken.message}")
        self._news.clear()
        await self._news.wait()


def _check(event: Seen, turn: str) -> None:
    if event.turn == turn and event.kind == "run.ended" and event.body["state"] != "completed":
        raise CommandFailed(f"turn {turn} ended {event.body}")


@asynccontextmanager
async def watching(client: Client, thread: str) -> AsyncIterator[Watcher]:
    """Of a new thread of the client's, from its first event on."""
    await client.add_thread(thread)
    watcher = Watcher(client, thread)
    following = asyncio.create_task(watcher.follow())
    try:
        yield watcher
    finally:
        following.cancel()
        await asyncio.wait({following})
