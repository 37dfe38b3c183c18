"""How full a box's disk is, and the hard stop where nothing bounds it.

An image and a quota are enforced by the host's kernel; here they are only read. A tree that is merely counted is walked
from time to time, and its box is stopped while it is above its limit: weak, for what is written between two walks is
written. So is one whose size nobody could tell for a minute: a limit must never end where a tree is too large to walk.
Such a box can be started again and has until the next walk to delete something; its files are served meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from ringfence.host.engine.links import Links
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, DiskUse
from ringfence.host.kernel.errors import DiskFull, NotFound, RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import Sight

UNBOUNDED = "accounting"
NO_QUOTA = "no-disk-quota"
USAGE_SECONDS = 2.0  # for who looks; a tree of a million files takes longer: its size is said to be unknown (-1)
WATCH_SECONDS = 60.0  # for who decides: thirty million files, 60 times what a box may have by default
WALKS = 4  # of the watch at once: each is a process of the box's own id that reads folders
FREE_IT = "remove files (ringfence files rm), or raise the limit: ringfence box limits USER --disk SIZE"


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    use: DiskUse


class DiskMeter:
    """Remembers what a walk found for `disk_seconds`, so that looking twice does not walk twice."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._seen: dict[BoxId, _Seen] = {}

    async def use(
        self, box: Box, sight: Sight | None, *, fresh: bool = True, seconds: float = USAGE_SECONDS
    ) -> DiskUse | None:
        """None: not provisioned. `fresh`: walk now, whatever is remembered. Not known: a walk failed, or takes longer
        than `seconds`."""
        if not box.uid or sight is None:
            return None
        if sight.disk is not None and (sight.disk.known or sight.disk.by != UNBOUNDED):
            return sight.disk
        seen = self._seen.get(box.id)
        if not fresh and seen is not None and self._holds(seen):
            return seen.use
        return await self._walk(box, seconds)

    async def _walk(self, box: Box, seconds: float) -> DiskUse:
        try:
            async with asyncio.timeout(seconds), self._parts.driver.files(box.id) as files:
                size, inodes = await files.usage()
        except (TimeoutError, RingfenceError):
            return DiskUse(UNBOUNDED, inode_limit=box.limits.inodes)
        use = DiskUse(UNBOUNDED, size, max(0, box.limits.disk - size), inodes, box.limits.inodes)
        self._seen[box.id] = _Seen(self._parts.clock.monotonic(), use)
        return use

    async def of(self, box: Box, *, fresh: bool = True, seconds: float = USAGE_SECONDS) -> DiskUse | None:
        """As `use`, of what the driver sees now."""
        try:
            return await self.use(box, await self._parts.driver.observe(box.id), fresh=fresh, seconds=seconds)
        except NotFound:
            return None

    def forget(self, box: BoxId) -> None:
        self._seen.pop(box, None)

    def tidy(self) -> None:
        """Nothing is kept of boxes that are gone: what is too old to be asked for is dropped."""
        self._seen = {box: seen for box, seen in self._seen.items() if self._holds(seen)}

    def _holds(self, seen: _Seen) -> bool:
        return self._parts.clock.monotonic() - seen.at < self._parts.config.disk_seconds


def disk_full(box: Box, use: DiskUse | None) -> DiskFull:
    """With the limit and the use in words and in `details`; a use that is not known counts as too much."""
    use = use or DiskUse(UNBOUNDED)
    inode_limit = use.inode_limit or box.limits.inodes
    if use.known and not use.full:
        what = f"has no room for that: {use.used} of {box.limits.disk} bytes and {use.inodes} of {inode_limit} inodes are used"
    elif use.known:
        what = f"is full: {use.used} of {box.limits.disk} bytes, {use.inodes} of {inode_limit} inodes"
    else:
        what = (
            f"counts as full: nobody could tell its use; the limits are {box.limits.disk} bytes, {inode_limit} inodes"
        )
    return DiskFull(
        f"the disk of the box {what}",
        remedy=FREE_IT,
        used_bytes=use.used,
        limit_bytes=box.limits.disk,
        inodes=use.inodes,
        inode_limit=inode_limit,
        enforced_by=use.by,
    )


async def within(box: Box, use: DiskUse | None, data: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """`data`, cut by DiskFull where it would pass the limit of a tree that is only counted."""
    room = use.free if use is not None and use.by == UNBOUNDED and use.known else None
    async for chunk in data:
        if room is not None:
            room -= len(chunk)
            if room < 0:
                raise disk_full(box, use)
        yield chunk


class DiskWatch:
    def __init__(
        self, parts: Parts, links: Links, meter: DiskMeter, stop: Callable[[BoxId], Awaitable[object]]
    ) -> None:
        """`stop`: ends every process of a box."""
        self._parts, self._links, self._meter, self._stop = parts, links, meter, stop
        self._bounded: set[BoxId] = set()  # by the host's kernel: for good, so looked at once
        self._walked: set[BoxId] = set()  # a look at them is under way
        self._untold: dict[BoxId, float] = {}  # monotonic: since when nobody could tell their size
        self._log = logging.getLogger("ringfence.engine")

    async def loop(self) -> None:
        gate = asyncio.Semaphore(WALKS)
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._parts.config.disk_seconds)
                self._tidy()
                for box in [slot.box for slot in self._links if slot.wire() is not None]:
                    if box not in self._bounded and box not in self._walked:
                        self._walked.add(box)
                        group.create_task(self._looked(box, gate))

    def _tidy(self) -> None:
        there = {slot.box: slot.wire() is not None for slot in self._links}
        self._bounded &= there.keys()
        self._untold = {box: since for box, since in self._untold.items() if there.get(box)}
        self._meter.tidy()

    async def _looked(self, box: BoxId, gate: asyncio.Semaphore) -> None:
        try:
            async with gate:
                await self._look(box)
        except RingfenceError as error:
            self._log.warning("box %s: its disk was not measured: %s", box, error)
        finally:
            self._walked.discard(box)

    async def _look(self, box: BoxId) -> None:
        row, began = await self._parts.store.boxes.get(box), self._parts.clock.monotonic()
        use = await self._meter.of(row, seconds=WATCH_SECONDS)
        if use is None:
            return
        if use.by != UNBOUNDED:
            self._bounded.add(box)
        elif use.full or (not use.known and self._too_long(box, began)):
            await self._end(row, use)
        if use.known:
            self._untold.pop(box, None)

    def _too_long(self, box: BoxId, began: float) -> bool:
        """One look that took it all, or several that were refused: by a helper that died, by too many transfers."""
        return self._parts.clock.monotonic() - self._untold.setdefault(box, began) >= WATCH_SECONDS

    async def _end(self, row: Box, use: DiskUse) -> None:
        self._untold.pop(row.id, None)
        slot = self._links.find(row.id)
        if slot is None or slot.wire() is None:  # stopped or removed while it was walked
            return
        error = disk_full(row, use)
        self._log.warning("box %s is stopped, reason disk_full: %s", row.id, error.message)
        await self._parts.store.audit.record(None, "box.disk_full", f"box:{row.id}", error.details)
        slot.full = error  # for whoever is told that the box, or a command in it, is gone
        await self._stop(row.id)
