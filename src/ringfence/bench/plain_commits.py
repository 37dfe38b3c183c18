"""What appends are measured against: plain sqlite3 that writes the same rows into tables of the same schema, with the same
pragmas, and one commit for all of a batch.

`Plain` blocks whoever calls it: nothing that serves anybody can be as quick. `Committer` is the least that leaves the event
loop alone: one thread that takes what is there, commits it, and answers all of it at once.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringfence.host.app import SystemClock
from ringfence.host.kernel.ids import ThreadId, UserId
from ringfence.host.kernel.threads import EventKind

BODY = {"code": "bench", "cause": "none", "message": "x" * 200}
_TAKE = "UPDATE threads SET cursor = cursor + ? WHERE id = ?"
_INSERT = (
    "INSERT INTO events (thread, cursor, kind, actor, turn, run, body, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True, slots=True)
class Lanes:
    user: UserId
    threads: tuple[ThreadId, ...]  # one for each caller, as runs of many lanes have it


class Plain:
    """Blocks."""

    def __init__(self, path: Path, lanes: Lanes) -> None:
        self._lanes = lanes
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        found = dict(self._connection.execute("SELECT id, cursor FROM threads").fetchall())
        self._cursors = {thread: int(found[thread]) for thread in lanes.threads}

    def together(self, size: int) -> None:
        self.write([(thread, 1) for thread in self._lanes.threads[:size]])

    def in_one(self, size: int) -> None:
        self.write([(self._lanes.threads[0], size)])

    def one_by_one(self, size: int) -> None:
        """What a program does that knows no group commit."""
        for thread in self._lanes.threads[:size]:
            self.write([(thread, 1)])

    def write(self, appends: Sequence[tuple[ThreadId, int]]) -> None:
        """(thread, how many events), all in one commit."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_TAKE, [(each, thread) for thread, each in appends])
        self._connection.executemany(_INSERT, [self._row(thread) for thread, each in appends for _ in range(each)])
        self._connection.execute("COMMIT")

    def _row(self, thread: ThreadId) -> tuple[object, ...]:
        self._cursors[thread] += 1
        at = SystemClock().now().replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        kind = EventKind.RUN_DETAIL.value
        return (thread, self._cursors[thread], kind, self._lanes.user, None, None, json.dumps(BODY), at)

    def close(self) -> None:
        self._connection.close()


Waiting = tuple[ThreadId, int, asyncio.Future[None]]


class Committer:
    """Group commit over a `Plain` of its own. What is asked for while one commit is under way is in the next."""

    def __init__(self, path: Path, lanes: Lanes) -> None:
        self._asked: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(path, lanes), name="bench-commits")
        self._thread.start()

    async def append(self, thread: ThreadId, each: int = 1) -> None:
        done = self._loop.create_future()
        self._asked.put((thread, each, done))
        await done

    async def close(self) -> None:
        self._asked.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self, path: Path, lanes: Lanes) -> None:
        plain = Plain(path, lanes)
        try:
            while True:
                group: list[Waiting] = []
                found = self._asked.get()
                while found is not None:
                    group.append(found)
                    try:
                        found = self._asked.get_nowait()
                    except queue.Empty:
                        break
                if found is None:
                    return
                failed = None
                try:
                    plain.write([(thread, each) for thread, each, _ in group])
                except Exception as error:
                    failed = error
                self._loop.call_soon_threadsafe(_answer, group, failed)
        finally:
            plain.close()


def _answer(group: Sequence[Waiting], failed: Exception | None) -> None:
    for _, _, done in group:
        if failed is None:
            done.set_result(None)
        else:
            done.set_exception(failed)
