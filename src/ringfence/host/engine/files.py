"""Files of a user's box, through the driver's files helper. The box need not run. Paths are bytes and stay bytes."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.disk import UNBOUNDED, WATCH_SECONDS, DiskMeter, disk_full, within
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.homes import home_of
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.boxes import Box, DiskUse, Rest
from ringfence.host.kernel.errors import DiskFull, Invalid
from ringfence.host.kernel.life.states import check_quarantine
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.ports import BoxFiles, FileInfo

MAX_LIST = 1000  # entries of one answer; the rest by `after`


@asynccontextmanager
async def in_place(parts: Parts, bringup: BringUp, box: Box, *, operator: bool) -> AsyncIterator[Box]:
    """The box with ids and tree, and nobody puts that away or another in its place within. Conflict: it is being done. Refused: it is
    in quarantine, and whoever asks is no operator. To have files of a box that does not run is a use of it: it is archived only so
    long after."""
    slot = bringup.slot(box.id)
    while True:
        check_quarantine(box, operator=operator)  # before anything is made or unpacked for whoever is refused
        box = await bringup.provisioned(box)
        with slot.files():
            box = await parts.store.boxes.get(box.id)
            check_quarantine(box, operator=operator)
            if box.rest is Rest.ARCHIVED:  # since it was looked at
                continue
            try:
                yield box
            finally:
                if slot.wire() is None and not slot.paused:
                    slot.active_at = parts.clock.monotonic()
            return


class Files:
    def __init__(self, parts: Parts, doors: Doors, bringup: BringUp, meter: DiskMeter) -> None:
        self._parts, self._doors, self._bringup, self._meter = parts, doors, bringup, meter

    async def stat(self, actor: Actor, tenant: str, user: str, path: bytes) -> FileInfo:
        async with self._open(Action.FILES_READ, actor, tenant, user) as files:
            return await files.stat(path)

    async def list(
        self, actor: Actor, tenant: str, user: str, path: bytes, after: bytes | None, limit: int
    ) -> builtins.list[FileInfo]:
        if not 1 <= limit <= MAX_LIST:
            raise Invalid(f"a limit of {limit} entries is not allowed", remedy=f"ask for 1 to {MAX_LIST}")
        async with self._open(Action.FILES_READ, actor, tenant, user) as files:
            return await files.list(path, after, limit)

    def get(
        self, actor: Actor, tenant: str, user: str, path: bytes
    ) -> AbstractAsyncContextManager[tuple[FileInfo, AsyncIterator[bytes]]]:
        return self._get(actor, tenant, user, path)

    @asynccontextmanager
    async def _get(
        self, actor: Actor, tenant: str, user: str, path: bytes
    ) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        async with self._open(Action.FILES_READ, actor, tenant, user) as files, files.fetch(path) as opened:
            yield opened

    async def put(
        self, actor: Actor, tenant: str, user: str, path: bytes, data: AsyncIterator[bytes], mode: int
    ) -> FileInfo:
        if not 0 <= mode <= 0o777:
            raise Invalid(f"mode {mode:o} is not allowed", remedy="give permission bits from 0 to 777")
        async with self._opened(Action.FILES_WRITE, actor, tenant, user) as (box, files):
            use = await self._roomy(box)
            try:
                return await files.put(path, within(box, use, data), mode)
            except DiskFull as error:
                raise disk_full(box, await self._meter.of(box)) from error
            finally:
                self._meter.forget(box.id)

    async def _roomy(self, box: Box) -> DiskUse | None:
        """How full its disk is. DiskFull: a tree that is only counted is full, or nobody can tell."""
        use = await self._meter.of(box, fresh=False)
        if use is None or use.by != UNBOUNDED or (use.known and not use.full):
            return use
        # What is remembered may be over: the box or its user has deleted since. What is large takes longer to count.
        use = await self._meter.of(box, seconds=WATCH_SECONDS)
        if use is not None and (use.full or not use.known):
            raise disk_full(box, use)
        return use

    async def remove(self, actor: Actor, tenant: str, user: str, path: bytes, recursive: bool) -> None:
        async with self._open(Action.FILES_WRITE, actor, tenant, user) as files:
            await files.remove(path, recursive)

    @asynccontextmanager
    async def _open(self, action: Action, actor: Actor, tenant: str, user: str) -> AsyncIterator[BoxFiles]:
        async with self._opened(action, actor, tenant, user) as (_, files):
            yield files

    @asynccontextmanager
    async def _opened(
        self, action: Action, actor: Actor, tenant: str, user: str
    ) -> AsyncIterator[tuple[Box, BoxFiles]]:
        target = await self._doors.user(action, actor, tenant, user)
        home = await home_of(self._parts, target)
        place = in_place(self._parts, self._bringup, home, operator=actor.operator)
        async with place as box, self._parts.driver.files(box.id) as files:
            with self._bringup.slot(box.id).cuttable(files.cut):
                yield box, files
