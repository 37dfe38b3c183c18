"""A command as the engine hands it on: the guest's, with the ends told that a guest cannot know of: by the out-of-memory
killer, on a full disk, by a box that was stopped for one. Each comes with the limit and what was used.

Must never ask the driver after a command that ended well: that is the hot path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Literal

from ringfence.host.engine.links import Slot
from ringfence.host.engine.oom import SIGKILL, suspicious
from ringfence.host.kernel.boxes import DiskUse
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ports import Clock, Command, Driver, Outcome


class Watched:
    """ports.Command around another."""

    __slots__ = ("_asked", "_began", "_clock", "_driver", "_inner", "_outcome", "_slot", "_timeout")

    def __init__(
        self, inner: Command, slot: Slot, driver: Driver, clock: Clock, began: float, timeout: float | None
    ) -> None:
        """`began`: monotonic. `timeout`: seconds that it was given."""
        self._inner, self._slot, self._driver, self._clock = inner, slot, driver, clock
        self._began, self._timeout = began, timeout
        self._asked = False
        self._outcome: Outcome | None = None

    @property
    def pid(self) -> int:
        return self._inner.pid

    @property
    def attached(self) -> bool:
        return self._inner.attached

    def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        return self._inner.output()

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)

    async def close_stdin(self) -> None:
        await self._inner.close_stdin()

    async def signal(self, number: int) -> None:
        self._asked = self._asked or number == SIGKILL
        await self._inner.signal(number)

    async def stop(self, grace: float) -> None:
        self._asked = True
        await self._inner.stop(grace)

    def on_end(self, call: Callable[[], None]) -> None:
        self._inner.on_end(call)

    async def outcome(self) -> Outcome:
        """The same object each time."""
        if self._outcome is None:
            ended = await self._inner.outcome()
            self._outcome = await self._judged(ended)
        return self._outcome

    async def release(self) -> None:
        await self._inner.release()

    async def _judged(self, ended: Outcome) -> Outcome:
        if ended.reason == "timeout":
            return replace(ended, timeout_seconds=self._timeout)
        if ended.reason == "box_lost" and (stopped := self._slot.full) is not None:
            used, limit = stopped.details["used_bytes"], stopped.details["limit_bytes"]
            return _full(ended, f"the box was stopped: {stopped.message}", used, limit)
        kill = suspicious(ended, self._asked)
        failed = ended.reason == "exit" and (ended.code != 0 or ended.signal is not None)
        if not kill and not failed:
            return ended
        try:
            sight = await self._driver.observe(self._slot.box)
        except RingfenceError:
            return ended
        if kill and self._slot.kills.grew(self._began, self._clock.monotonic(), sight.oom_kills):
            return _oom(ended, sight.memory_peak_bytes, sight.memory_limit_bytes)
        if failed and sight.disk is not None and sight.disk.short:
            return _full(ended, *_words(sight.disk))
        return ended


def unknown(ended: Outcome) -> bool:
    """Whether nobody knows what became of it: its box went away under it."""
    return ended.reason == "box_lost" or (ended.reason == "disk_full" and ended.code is None and ended.signal is None)


def _oom(ended: Outcome, peak: int, limit: int) -> Outcome:
    return replace(
        ended,
        reason="oom",
        message=f"out of memory: the box's commands used {peak} bytes at most, the limit is {limit}",
        memory_limit_bytes=limit,
        memory_peak_bytes=peak,
    )


def _words(disk: DiskUse) -> tuple[str, int, int]:
    """(message, bytes used, bytes that it may have)."""
    limit = disk.used + disk.free
    what = f"{disk.used} of {limit} bytes, {disk.inodes} of {disk.inode_limit} inodes"
    return f"the command failed, and the disk of the box is as good as full: {what}", disk.used, limit


def _full(ended: Outcome, message: str, used: int, limit: int) -> Outcome:
    return replace(ended, reason="disk_full", message=message, disk_used_bytes=used, disk_limit_bytes=limit)
