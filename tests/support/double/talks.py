"""What the double keeps of a thread, and those who watch it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.threads import Message, Thread
from tests.support.double.world import now

WATCHED = 256  # items that a slow watcher keeps


@dataclass
class Talk:
    """A thread with all that was said."""

    thread: Thread
    tenant: str
    members: list[str]
    messages: list[Message] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    watches: list[Watch] = field(default_factory=list)

    def sees(self, actor: Actor) -> bool:
        return actor.operator or (actor.user is not None and actor.user.id in self.thread.members)

    async def event(self, kind: str, body: dict[str, Any], **of: Any) -> int:
        async with self.changed:
            cursor = len(self.events) + 1
            about = {"actor": of.get("actor"), "turn": of.get("turn"), "run": of.get("run")}
            self.events.append({"cursor": cursor, "kind": kind, **about, "body": body, "at": now().isoformat()})
            self.changed.notify_all()
        return cursor

    def publish(self, actor: UserId, item: Mapping[str, Any]) -> None:
        for watch in self.watches:
            if watch.user == actor:
                watch.items.append(item)
                watch.changed.set()


class Watch:
    def __init__(self, talk: Talk, user: UserId | None, open_ones: list[Watch]) -> None:
        self._talk, self._open = talk, open_ones
        self.user = user
        self.items: deque[Mapping[str, Any]] = deque(maxlen=WATCHED)
        self.changed = asyncio.Event()

    def take(self) -> Sequence[Mapping[str, Any]]:
        found = list(self.items)
        self.items.clear()
        self.changed.clear()
        return found

    async def wait(self) -> None:
        await self.changed.wait()

    async def news(self, after: int, seconds: float) -> bool:
        talk = self._talk
        try:
            async with asyncio.timeout(seconds), talk.changed:
                await talk.changed.wait_for(lambda: len(talk.events) > after)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(ValueError):  # twice is once
            self._open.remove(self)
            self._talk.watches.remove(self)
