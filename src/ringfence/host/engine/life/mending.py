"""A box that cannot be used, mended as far as that loses nothing: its disk checked, room made on it. Nothing of it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, Refused

# What programs keep only to be faster, and make again (of XDG_CACHE_HOME, and of those that have places of their own).
CACHES = (
    b".cache",
    b".npm/_cacache",
    b".cargo/registry/cache",
    b".gradle/caches",
    b".local/share/Trash",
    b"go/pkg/mod/cache/download",
)


@dataclass(frozen=True, slots=True)
class Mended:
    action: str
    found: str  # fsck: clean, mended, limits, nothing. free-space: freed, nothing
    freed: int = 0  # bytes
    removed: tuple[str, ...] = ()  # below HOME


class Mending:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def of(self, action: str) -> Callable[[Box], Awaitable[Mended]]:
        works = {"fsck": self._fsck, "free-space": self._free_space}
        if action not in works:
            raise Invalid(f"no such way to recover: {action[:40]!r}", remedy=f"one of {', '.join(works)}, or export")
        return works[action]

    async def _fsck(self, box: Box) -> Mended:
        return Mended("fsck", await self._parts.driver.repair(box.id, box.limits))

    async def _free_space(self, box: Box) -> Mended:
        """/tmp is empty since the box stopped; then caches go, which nothing is lost with."""
        before, removed = await self._used(box), []
        async with self._parts.driver.files(box.id) as files:
            for path in CACHES:
                with suppress(NotFound, Refused, Conflict):  # not there, or a link or a file of the box's own
                    if (await files.stat(path)).kind == "directory":
                        await files.remove(path, recursive=True)
                        removed.append(path.decode())
        freed = max(0, before - await self._used(box))
        return Mended("free-space", "freed" if removed else "nothing", freed, tuple(removed))

    async def _used(self, box: Box) -> int:
        disk = (await self._parts.driver.observe(box.id)).disk
        if disk is not None and disk.known:
            return disk.used
        async with self._parts.driver.files(box.id) as files:
            return (await files.usage())[0]
