"""How full a box's disk is, and the hard stop where nothing bounds it.

An image and a quota are enforced by the host's kernel; here they are only read. A tree that is merely counted is walked
from time to time, and its box is stopped while it is above its limit: weak, for what is written between two walks is
written. Such a box can be started again and has until the next walk to delete something; its files are served meanwhile.
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
USAGE_SECONDS = 2.0  # a tree of a million files takes longer: its size is then said to be unknown (-1)
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

    async def use(self, box: Box, sight: Sight | None, *, fresh: bool = True) -> DiskUse | None:
        """None: not provisioned. `fresh`: walk now, whatever is remembered."""
        if not box.uid or sight is None:
            return None
        if sight.disk is not None and (sight.disk.known or sight.disk.by != UNBOUNDED):
            return sight.disk
        seen = self._seen.get(box.id)
        if not fresh and seen is not None and self._parts.clock.monotonic() - seen.at < self._parts.config.disk_seconds:
            return seen.use
        return await self._walk(box)

    async def _walk(self, box: Box) -> DiskUse:
        try:
            async with asyncio.timeout(USAGE_SECONDS), self._parts.driver.files(box.id) as files:
                size, inodes = await files.usage()
        except (TimeoutError, RingfenceError):
            return DiskUse(UNBOUNDED, inode_limit=box.limits.inodes)
        use = DiskUse(UNBOUNDED, size, max(0, box.limits.disk - size), inodes, box.limits.inodes)
        self._seen[box.id] = _Seen(self._parts.clock.monotonic(), use)
        return use

    async def of(self, box: Box, *, fresh: bool = True) -> DiskUse | None:
        try:
            return await self.use(box, await self._parts.driver.observe(box.id), fresh=fresh)
        except NotFound:
            return None

    def forget(self, box: BoxId) -> None:
        self._seen.pop(box, None)


def disk_full(box: Box, use: DiskUse | None) -> DiskFull:
    """With the limit and the use in words and in `details`."""
    use = use or DiskUse(UNBOUNDED)
    what = f"{use.used} of {box.limits.disk} bytes, {use.inodes} of {use.inode_limit or box.limits.inodes} inodes"
    return DiskFull(
        f"the disk of the box is full: {what}",
        remedy=FREE_IT,
        used_bytes=use.used,
        limit_bytes=box.limits.disk,
        inodes=use.inodes,
        inode_limit=use.inode_limit or box.limits.inodes,
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
        self._log = logging.getLogger("ringfence.engine")

    async def loop(self) -> None:
        while True:
            await asyncio.sleep(self._parts.config.disk_seconds)
            for box in [slot.box for slot in self._links if slot.wire() is not None]:
                if box in self._bounded:
                    continue
                try:
                    await self._look(box)
                except RingfenceError as error:
                    self._log.warning("box %s: its disk was not measured: %s", box, error)

    async def _look(self, box: BoxId) -> None:
        row = await self._parts.store.boxes.get(box)
        use = await self._meter.of(row)
        if use is not None and use.by != UNBOUNDED:
            self._bounded.add(box)
        elif use is not None and use.full:
            error = disk_full(row, use)
            self._log.warning("box %s is stopped, reason disk_full: %s", box, error.message)
            await self._parts.store.audit.record(None, "box.disk_full", f"box:{box}", error.details)
            self._links.slot(box).full = error  # for whoever is told that the box, or a command in it, is gone
            await self._stop(box)
