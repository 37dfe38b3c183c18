"""A thread's events as server-sent events: the durable ones behind a cursor, and between them what happens live.

Never keeps more for a reader than one page of events and what its watch holds, never lets it miss a durable event, and
never shows it anything that the engine would not: it asks anew for each page, as the actor, for as long as the actor may
speak.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent

from ringfence.host.kernel.errors import NotFound, RingfenceError
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.threads import TURN_FINAL, EventKind, TurnState
from ringfence.host.web.ports import Engine, Presence, Watch
from ringfence.host.web.race import Standing

PAGE = 32  # events held for one reader: of 256 KiB each at the most, which makes 8 MiB
HEARTBEAT_SECONDS = 15
_ENDS = frozenset({EventKind.RUN_ENDED.value, EventKind.RUN_PARKED.value})
_RESTS = TURN_FINAL | {TurnState.PARKED}


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads what, and since when."""

    engine: Engine
    actor: Actor
    tenant: str
    thread: str
    cursor: int
    turn: str | None = None  # only what belongs to it, and only to its end

    async def page(self, after: int) -> list[dict[str, Any]]:
        return await self.engine.threads.events(self.actor, self.tenant, self.thread, after, PAGE)


def answer(
    reader: Reader, first: Sequence[Mapping[str, Any]], stopping: asyncio.Event, status: int = 200, **opening: Any
) -> EventSourceResponse:
    """`first`: a page of events that is known already. `opening`: the kind of an event that precedes all, and its
    data. A comment each 15 s while nothing happens."""
    body = _body(_Feed(reader, list(first), stopping), opening)
    return EventSourceResponse(
        body, status_code=status, ping=HEARTBEAT_SECONDS, sep="\n", ping_message_factory=_heartbeat
    )


def _heartbeat() -> ServerSentEvent:
    return ServerSentEvent(comment="alive", sep="\n")


def _sent(kind: str, data: object, cursor: int | None = None) -> bytes:
    text = json.dumps(data, ensure_ascii=False, default=str)
    text = text.encode("utf-8", "replace").decode()  # live text may have half of a surrogate pair: it ends no stream
    return ServerSentEvent(text, event=kind, id=None if cursor is None else str(cursor), sep="\n").encode()


async def _body(feed: _Feed, opening: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """Ends when the server stops, when the turn does, or with an event `error` when the actor may no longer read the
    thread, or speak at all."""
    for kind, data in opening.items():
        yield _sent(kind, data)
    chunks = feed.chunks()
    try:
        async for chunk in chunks:
            yield chunk
    except RingfenceError as error:
        yield _sent("error", {"error": error.as_json()})
    finally:
        await chunks.aclose()


class _Feed:
    def __init__(self, reader: Reader, page: list[Mapping[str, Any]], stopping: asyncio.Event) -> None:
        self._reader = reader
        self._page: Sequence[Mapping[str, Any]] = page
        self._cursor = reader.cursor
        self._stopping = stopping
        self._over = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """What was live goes out before the durable events that it led to, all that is known at once in one write."""
        reader = self._reader
        presence = reader.engine.people.presence(reader.actor)
        try:
            watch = await reader.engine.threads.watch(reader.actor, reader.tenant, reader.thread)
            chunks = self._present(presence, watch)
            try:
                async for chunk in chunks:
                    yield chunk
            finally:
                await chunks.aclose()
                watch.close()
        finally:
            presence.close()

    async def _present(self, presence: Presence, watch: Watch) -> AsyncGenerator[bytes, None]:
        """For as long as they are: looked at before each write, since what is written now was read a while ago."""
        waits = {"news": lambda: self._news(watch), "live": watch.wait, "stop": self._stopping.wait}
        standing = Standing({**waits, "over": presence.over})
        standing.start()  # whoever reads a long past is looked at as well
        try:
            while not (self._stopping.is_set() or self._over):
                live = [_sent(str(item["kind"]), item) for item in watch.take() if self._wanted(item)]
                chunk = b"".join([*live, *await self._durable()])
                presence.check()
                if chunk:
                    yield chunk
                if not self._over:
                    await self._turn_page(standing)
        except NotFound:  # also what somebody is told of every thread who was removed from all
            presence.check()
            raise
        finally:
            await standing.close()

    async def _durable(self) -> list[bytes]:
        """The page that is open, as far as the turn goes."""
        sent = []
        for event in self._page:
            self._cursor = int(event["cursor"])
            if self._wanted(event):
                sent.append(_sent(str(event["kind"]), event, self._cursor))
                self._over = await self._is_end(event)
            if self._over:
                break
        return sent

    async def _turn_page(self, standing: Standing) -> None:
        """After a full page there may be more at once; else waits for what comes, and asks only if it is an event."""
        if len(self._page) < PAGE and not (await standing.first()).get("news"):
            self._page = []
        else:
            await asyncio.sleep(0)  # a long past is not to keep everybody else waiting
            self._page = await self._reader.page(self._cursor)

    async def _news(self, watch: Watch) -> bool:
        return await watch.news(self._cursor, float(HEARTBEAT_SECONDS))

    def _wanted(self, item: Mapping[str, Any]) -> bool:
        return self._reader.turn is None or item.get("turn") == self._reader.turn

    async def _is_end(self, event: Mapping[str, Any]) -> bool:
        """Whether the turn has ended for good, or rests until somebody answers: a failed run may have been tried again by hand
        since, and a gate answered."""
        reader = self._reader
        if reader.turn is None or event["kind"] not in _ENDS:
            return False
        return (await reader.engine.threads.turn(reader.actor, reader.turn)).state in _RESTS
