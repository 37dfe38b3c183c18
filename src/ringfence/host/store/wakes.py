"""Wakes whoever waits for a thread's next event or for a run to claim, and knows how far each thread is.

After a commit of this process it is told by the writer. Other processes' commits come through a bell (bell.py), which may
lose them. Must never be the only way to learn of an event. Must never say that a thread is further than what is committed:
who waits would look again at once, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from ringfence.host.kernel.ids import ThreadId

MOST = 4096  # threads whose newest cursor is remembered: half a MiB. Of another one the database is asked


class Wakes:
    def __init__(self, installation: str = "") -> None:
        """`installation`: whose runs are claimed here."""
        self._installation = installation
        self._waiting: dict[ThreadId, set[asyncio.Event]] = {}
        self._newest: dict[ThreadId, int] = {}  # the one that grew last at the end
        self.offered = asyncio.Event()  # another process may have put a run where it is claimed here
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

    def newest(self, thread: ThreadId) -> int | None:
        """The cursor of the newest event, as far as is known here; None: not known."""
        return self._newest.get(thread)

    def notify(self, grown: Mapping[ThreadId, int]) -> None:
        """`grown`: cursor of each thread's newest event, which this process has committed."""
        for thread, cursor in grown.items():
            self._newest.pop(thread, None)
            self._newest[thread] = cursor
            self._wake(thread)
        while len(self._newest) > MOST:
            del self._newest[next(iter(self._newest))]

    def heard(self, threads: Iterable[ThreadId], offered: Iterable[str]) -> None:
        """What another process said: how far those threads are is not known any more. `offered`: installations, "" for
        each."""
        for thread in threads:
            self._newest.pop(thread, None)
            self._wake(thread)
        if {"", self._installation} & set(offered):
            self.offered.set()

    def unsure(self) -> None:
        """Something may have been missed."""
        self._newest.clear()
        for thread in list(self._waiting):
            self._wake(thread)
        self.offered.set()

    def close(self) -> None:
        self.closed = True
        self.unsure()

    def _wake(self, thread: ThreadId) -> None:
        for woken in self._waiting.get(thread, ()):
            woken.set()
