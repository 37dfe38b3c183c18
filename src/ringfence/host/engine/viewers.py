"""Who watches which thread now, and what happens to their own runs there: deltas of the model's text, progress.

Nothing of it is kept: what matters is in the store. A watch belongs to (thread, user), and what is published names the
run's actor, so that nobody is ever handed what another person's run says between two replies. It must never make a
publisher wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from ringfence.host.kernel.ids import ThreadId, UserId

# A reader that is away for as long as 256 deltas last misses the oldest; the reply has the whole text. A delta has some
# ten bytes and a progress line at most 4 KiB: 1 MiB for a reader at worst.
MAX_ITEMS = 256

Item = Mapping[str, Any]
Changed = Callable[[ThreadId, int, float], Awaitable[bool]]


class Watch:
    """web.ports.Watch."""

    def __init__(self, closed: Callable[[Watch], None], changed: Callable[[int, float], Awaitable[bool]]) -> None:
        """`changed`: (cursor, seconds) as of kernel.ports.Events, of the thread."""
        self._items: deque[Item] = deque(maxlen=MAX_ITEMS)
        self._news = asyncio.Event()
        self._closed, self._changed = closed, changed

    def take(self) -> list[Item]:
        """What has come since the last time, oldest first."""
        found = list(self._items)
        self._items.clear()
        self._news.clear()
        return found

    async def wait(self) -> None:
        """Returns when there is something to take; never after `close`."""
        await self._news.wait()

    async def news(self, after: int, seconds: float) -> bool:
        """Until the thread has an event behind the cursor; False after `seconds`. Says nothing of it, and looks at
        nobody's rights: they were looked at when the watch was opened, and are again for what is read next."""
        return await self._changed(after, seconds)

    def put(self, item: Item) -> None:
        self._items.append(item)
        self._news.set()

    def close(self) -> None:
        """Nothing more comes, and what was there is gone. Idempotent."""
        self.take()
        self._closed(self)


class Viewers:
    def __init__(self, changed: Changed) -> None:
        """`changed`: of kernel.ports.Events."""
        self._changed = changed
        self._watches: dict[tuple[ThreadId, UserId], set[Watch]] = {}

    def __len__(self) -> int:
        """Watches that are open."""
        return sum(len(watches) for watches in self._watches.values())

    def watch(self, thread: ThreadId, user: UserId) -> Watch:
        """Gets what is published of that user's runs in that thread, until it is closed."""
        key = (thread, user)

        def closed(watch: Watch) -> None:
            watches = self._watches.get(key)
            if watches is not None:
                watches.discard(watch)
                if not watches:
                    del self._watches[key]

        made = Watch(closed, partial(self._changed, thread))
        self._watches.setdefault(key, set()).add(made)
        return made

    def silent(self, thread: ThreadId) -> Watch:
        """For who may look at a thread and has no run in it to watch. Nothing live ever comes."""
        return Watch(lambda _: None, partial(self._changed, thread))

    def publish(self, thread: ThreadId, actor: UserId, item: Item) -> None:
        """To whoever watches the thread and is `actor`. The item is not copied: it is not changed after this."""
        for watch in self._watches.get((thread, actor), ()):
            watch.put(item)

    def forget(self, user: UserId) -> None:
        """The user is removed: every watch of theirs gets nothing more."""
        for thread, whose in list(self._watches):
            if whose == user:
                self.drop(thread, user)

    def drop(self, thread: ThreadId, user: UserId) -> None:
        """The user is no member any more: every watch of theirs there gets nothing more."""
        for watch in list(self._watches.get((thread, user), ())):
            watch.close()
