"""Wakes whoever waits for a thread's next event, after the commit that wrote it. In this process only.

Must never be the only way to learn of an event: another process's commits do not come through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ringfence.host.kernel.ids import ThreadId


class Wakes:
    def __init__(self) -> None:
        self._waiting: dict[ThreadId, set[asyncio.Event]] = {}
        self.closed = False

    @contextmanager
    def watch(self, thread: ThreadId) -> Iterator[asyncio.Event]:
        """An event that is set after each commit that touched the thread. The watcher clears it before it looks."""
        woken = asyncio.Event()
        watchers = self._waiting.setdefault(thread, set())
        watchers.add(woken)
        try:
            yield woken
        finally:
            watchers.discard(woken)
            if not watchers and self._waiting.get(thread) is watchers:
                del self._waiting[thread]

    def notify(self, threads: Iterable[ThreadId]) -> None:
        for thread in threads:
            for woken in self._waiting.get(thread, ()):
                woken.set()

    def close(self) -> None:
        self.closed = True
        self.notify(list(self._waiting))
