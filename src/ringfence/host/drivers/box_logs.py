"""Files of boxes' logs: `logs/` of the server's state, 0700, `<box>.<kind>.jsonl` and, before it, `<box>.<kind>.old`.

`host` has what the host told, `guest` what the box's PID 1 said. A file that is MAX_FILE large takes the place of the old one, so a
box has 4 x MAX_FILE at most. Lines are handed to one thread by a queue of MAX_QUEUE lines. Must never wait in `tell`, nor follow a
link, nor believe that the last line of a file is whole.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.hidden import scrubbed
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.logs import LogLine, Source, as_json, cleaned, parsed
from ringfence.host.kernel.ports import Clock

MAX_FILE = 128 << 10  # bytes: some 800 lines
MAX_QUEUE = 10_000
AT_ONCE = 10  # lines; of 2,000 characters, which are 12 bytes at worst, they are no more than a file may have
_BOX = re.compile(r"[a-z2-7]{16}\Z")
_KINDS = ("host", "guest")
_TICK = timedelta(microseconds=1)


class FileLogs:
    """kernel.life.logs.BoxLogs."""

    def __init__(self, home: Path, clock: Clock, words: Sequence[str] = ()) -> None:
        """`home`: the server's state directory, which its account may not write: `ringfence init` makes the folder. `words`: what is
        to be in no line, the longest first."""
        self._folder, self._clock, self._words = home / "logs", clock, words
        self._queue: deque[tuple[BoxId, LogLine]] = deque()
        self._dropped: Counter[BoxId] = Counter()
        self._forgotten: set[BoxId] = set()
        self._last: datetime | None = None  # of the newest line: no two have one moment
        self._writing = asyncio.Lock()
        self._under_way: asyncio.Task[None] | None = None
        self._troubled = False
        self._log = logging.getLogger("ringfence.logs")

    def tell(self, box: BoxId, source: Source, text: str) -> None:
        if not _BOX.match(box) or box in self._forgotten:
            return
        if len(self._queue) >= MAX_QUEUE:
            self._dropped[box] += 1
            return
        if lost := self._dropped.pop(box, 0):
            text = f"{text} ({lost} lines before it are not kept)"
        at = self._clock.now()
        if self._last is not None and at <= self._last:
            at = self._last + _TICK
        self._last = at
        self._queue.append((box, LogLine(at.isoformat(), at, source, cleaned(scrubbed(text, self._words)))))
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.get_running_loop().create_task(self._drained())

    async def read(self, box: BoxId, since: datetime | None) -> list[LogLine]:
        await self._drained()
        try:
            found = await asyncio.to_thread(self._read, box) if _BOX.match(box) else []
        except OSError as error:
            raise Failed(f"the log of the box cannot be read: {error.strerror}", remedy="ringfence init") from error
        return [line for line in found if since is None or line.at >= since]

    async def forget(self, box: BoxId) -> None:
        if not _BOX.match(box):
            return
        self._forgotten.add(box)  # its last words may still be on their way, and no other box ever has that id
        async with self._writing:
            self._queue = deque(each for each in self._queue if each[0] != box)
            with suppress(OSError):
                await asyncio.to_thread(self._remove, box)

    async def close(self) -> None:
        """What was told is written."""
        await self._drained()

    async def _drained(self) -> None:
        async with self._writing:
            while self._queue:
                lines = [self._queue.popleft() for _ in range(min(len(self._queue), AT_ONCE))]
                try:
                    await asyncio.to_thread(self._write, lines)
                    self._troubled = False
                except OSError as error:
                    self._dropped.update(box for box, _ in lines)
                    if not self._troubled:
                        self._log.error("what boxes' logs are told is not kept: %s", error)
                    self._troubled = True

    # --- in a thread -----------------------------------------------------------------------------------------------

    def _write(self, lines: Sequence[tuple[BoxId, LogLine]]) -> None:
        texts: dict[Path, list[str]] = {}
        for box, line in lines:
            kind = "guest" if line.source is Source.GUEST else "host"
            texts.setdefault(self._folder / f"{box}.{kind}.jsonl", []).append(as_json(line))
        for path, several in texts.items():
            self._append(path, "".join(f"{text}\n" for text in several).encode())

    def _append(self, path: Path, data: bytes) -> None:
        with suppress(FileNotFoundError):
            if path.lstat().st_size + len(data) > MAX_FILE:
                path.replace(path.with_suffix(".old"))
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = b"\n" + data if torn else data
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)

    def _read(self, box: str) -> list[LogLine]:
        found: list[LogLine] = []
        for kind in _KINDS:
            for end in ("old", "jsonl"):
                found += [
                    line for raw in self._bytes(f"{box}.{kind}.{end}").split(b"\n") if (line := parsed(raw)) is not None
                ]
        return sorted(found, key=lambda line: line.at)

    def _bytes(self, name: str) -> bytes:
        try:
            fd = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        with os.fdopen(fd, "rb") as file:
            return file.read(2 * MAX_FILE)

    def _remove(self, box: str) -> None:
        for kind in _KINDS:
            for end in ("old", "jsonl"):
                (self._folder / f"{box}.{kind}.{end}").unlink(missing_ok=True)
