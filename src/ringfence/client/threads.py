"""Threads: members, messages, and events as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from ringfence.client import urls
from ringfence.client.connection import Connection, Json
from ringfence.client.errors import Unavailable, from_answer
from ringfence.client.events import EventParser

RESUME_PAUSE = 0.2
STREAM = {"Accept": "text/event-stream"}


class Threads(Connection):
    async def threads(self, *, tenant: str | None = None) -> list[Json]:
        return list((await self._json("GET", self._in_tenant(tenant, "threads")))["threads"])

    async def add_thread(
        self, name: str, *, members: Sequence[str] = (), parallel: bool = False, tenant: str | None = None
    ) -> Json:
        body = {"name": name, "members": list(members), "parallel": parallel}
        answer: Json = await self._json("POST", self._in_tenant(tenant, "threads"), body)
        return answer

    async def thread(self, name: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("GET", self._thread(name, tenant))
        return answer

    async def add_member(self, thread: str, user: str, *, tenant: str | None = None) -> None:
        await self._json("PUT", f"{self._thread(thread, tenant)}/members/{urls.segment(user)}")

    async def remove_member(self, thread: str, user: str, *, tenant: str | None = None) -> None:
        await self._json("DELETE", f"{self._thread(thread, tenant)}/members/{urls.segment(user)}")

    async def break_glass(self, thread: str, reason: str, *, tenant: str | None = None) -> Json:
        """Operators: opens the thread's text for a while. Recorded, and told to the members with the reason. `until`."""
        path = f"{self._thread(thread, tenant)}/break-glass"
        answer: Json = await self._json("POST", path, {"reason": reason})
        return answer

    async def post_message(
        self,
        thread: str,
        text: str,
        *,
        mode: str = "queue",
        key: str | None = None,
        attachments: Sequence[str] = (),
        tenant: str | None = None,
    ) -> Json:
        """Accepted, not yet answered: ids of the message, turn and run, the event's cursor, and `steered`."""
        body = message_body(text, mode, key, attachments)
        answer: Json = await self._json("POST", f"{self._thread(thread, tenant)}/messages", body)
        return answer

    async def messages(
        self, thread: str, *, before: int | None = None, limit: int = 200, tenant: str | None = None
    ) -> list[Json]:
        path = f"{self._thread(thread, tenant)}/messages{urls.query(before=before, limit=limit)}"
        return list((await self._json("GET", path))["messages"])

    async def turn(self, turn: str) -> Json:
        answer: Json = await self._json("GET", f"/v1/turns/{urls.segment(turn)}")
        return answer

    # --- events ------------------------------------------------------------------------------------------------------

    async def events(self, thread: str, *, after: int = 0, limit: int = 200, tenant: str | None = None) -> list[Json]:
        path = f"{self._thread(thread, tenant)}/events{urls.query(after=after, limit=limit)}"
        return list((await self._json("GET", path))["events"])

    async def follow(
        self, thread: str, *, after: int = 0, live: bool = False, tenant: str | None = None
    ) -> AsyncGenerator[Json, None]:
        """Events as they happen, without end. A connection that breaks is made again behind the last event seen, for
        `resume_seconds`; then Unavailable. `live`: between them what happens in the actor's own runs, which has no
        cursor and is not kept: {"kind": "delta" | "progress", "run", "turn", "text"}."""
        async with aclosing(self._follow(thread, after, tenant, float("-inf"))) as items:
            async for item in items:
                if live or "cursor" in item:
                    yield item

    async def _follow(self, thread: str, after: int, tenant: str | None, good: float) -> AsyncGenerator[Json, None]:
        """`good`: when a connection last worked, by the loop's clock."""
        path = f"{self._thread(thread, tenant)}/events/stream{urls.query(after=after)}"
        loop = asyncio.get_running_loop()
        cursor = after
        while True:
            connected = False
            try:
                async with self._stream("GET", path, {**STREAM, "Last-Event-ID": str(cursor)}) as items:
                    connected = True
                    async for item in items:
                        cursor = int(item.get("cursor", cursor))
                        yield item
                good = loop.time()
            except Unavailable:
                if connected:
                    good = loop.time()
                elif loop.time() - good > self.resume_seconds:
                    raise
            await asyncio.sleep(RESUME_PAUSE)

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, headers: dict[str, str], body: Json | None = None
    ) -> AsyncIterator[AsyncIterator[Json]]:
        async with self._http.stream(method, path, headers, body) as chunks:
            yield _items(chunks)


def message_body(text: str, mode: str, key: str | None, attachments: Sequence[str]) -> Json:
    return {"text": text, "mode": mode, "key": key, "attachments": list(attachments)}


async def _items(chunks: AsyncIterator[bytes]) -> AsyncIterator[Json]:
    """Each has its `kind`."""
    parser = EventParser()
    async for chunk in chunks:
        for kind, data in parser.feed(chunk):
            if kind == "error":
                raise from_answer(data)
            yield {"kind": kind, **data}
