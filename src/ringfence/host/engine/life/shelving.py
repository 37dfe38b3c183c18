"""Copies of trees as they are made and kept: row, file and tree in step, whatever ends in between.

    made    row `making` -> file, whole and synced -> row `whole`. Killed before the last: the next start takes row and file away.
    gone    row tombstoned -> file deleted. Killed between: the file of a removed row, which the duty takes away.

Nothing here decides who may, or keeps the box from moving: callers have done both.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, suppress
from typing import NoReturn

from ringfence.host.engine.crew import uncut
from ringfence.host.engine.homes import is_here
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, Desired, Rest
from ringfence.host.kernel.errors import Failed, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId, UserId
from ringfence.host.kernel.life.copies import Copied, CopyKind, Kept, Packing, Shelf, Snapshot
from ringfence.host.kernel.life.states import Verb

ANEW = (
    "put its file back (snapshots/ of the state, from a backup), or a copy in its place: ringfence box restore U S --no-keep, "
    "or begin anew: ringfence box reset U --no-keep"
)
# Verbs that were under way with a tree when a server died: what they left beside it is of no use. (A start is no such row: what it leaves
# is found by the sweep.)
OF_TREES = frozenset({Verb.ARCHIVE.value, Verb.RESET.value, Verb.RESTORE.value, Verb.RECOVER.value})


class Shelving:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._making: set[str] = set()
        self.packing: set[BoxId] = set()  # whose archive is their tree in a moment
        self._log = logging.getLogger("ringfence.engine")

    @property
    def shelf(self) -> Shelf:
        if self._parts.shelf is None:
            raise Unavailable("this server keeps no copies of trees", remedy="ringfence init, then ringfence serve")
        return self._parts.shelf

    async def copy(self, box: Box, kind: CopyKind, name: str = "") -> tuple[Snapshot, Copied]:
        """Of a box that stands still. DiskFull, Conflict; nothing is left then."""
        shelf, rows = self.shelf, self._parts.store.snapshots
        copy = self._parts.ids.new("snp")
        self._making.add(copy)
        try:
            await rows.begin(copy, box, kind, name)
            try:
                copied, kept = await self._kept(shelf, copy, box)
                return await rows.whole(copy, copied, kept), copied
            except BaseException:
                with suppress(RingfenceError):
                    await uncut(self.remove(copy))
                raise
        finally:
            self._making.discard(copy)

    async def _kept(self, shelf: Shelf, copy: str, box: Box) -> tuple[Copied, Kept]:
        if box.rest is Rest.ARCHIVED:
            archive = await self.archive_of(box)
            async with aclosing(self.archived(box)) as content:
                kept = await shelf.keep(copy, content)
            return Copied(archive.entries, archive.bytes), kept
        async with self._parts.driver.pack(box.id) as packing:
            kept = await shelf.keep(copy, _bytes(packing))
            return packing.copied, kept

    async def archive_of(self, box: Box) -> Snapshot:
        """Failed: there is none."""
        found = await self._parts.store.snapshots.archive(box.id)
        if found is None:
            raise Failed("the box is archived, and its archive is gone", remedy=ANEW)
        return found

    async def archived(self, box: Box) -> AsyncGenerator[bytes, None]:
        """What is in the archive of a box. Failed: it is lost, or not what was kept."""
        archive = await self.archive_of(box)
        try:
            async with aclosing(self.content(archive)) as content:
                async for piece in content:
                    yield piece
        except (NotFound, Failed) as error:
            await self._lost(error)

    async def check_archive(self, box: Box) -> None:
        """As `archived`."""
        archive = await self.archive_of(box)
        try:
            await self.check(archive)
        except (NotFound, Failed) as error:
            await self._lost(error)

    async def _lost(self, error: RingfenceError) -> NoReturn:
        """A volume that is not mounted has lost nothing."""
        await self.shelf.ready()
        raise Failed(f"the box is archived, and its archive is no good: {error.message}", remedy=ANEW) from error

    async def check(self, copy: Snapshot) -> None:
        """NotFound, Failed: it is not what was kept, so that nobody begins to put it anywhere. Unavailable."""
        self._check_here(copy)
        await self.shelf.check(copy.id, copy.digest)

    def content(self, copy: Snapshot) -> AsyncGenerator[bytes, None]:
        """Unavailable: it is on another installation."""
        self._check_here(copy)
        return self.shelf.read(copy.id, copy.digest)

    def _check_here(self, copy: Snapshot) -> None:
        if copy.installation not in ("", self._parts.config.installation):
            raise Unavailable(f"the file of this copy is on installation {copy.installation}", remedy="ask there")

    async def remove(self, copy: str) -> None:
        """Idempotent."""
        await self._parts.store.snapshots.remove(copy)
        await self.shelf.drop(copy)

    async def drop_older(self, box: Box, newest: Snapshot) -> None:
        """Of those that were made before a change of the tree, all but the newest."""
        for each in await self._parts.store.snapshots.of(box.user):
            if each.kind is CopyKind.BEFORE and each.box == box.id and each.id != newest.id:
                await self.remove(each.id)

    async def forget(self, user: UserId) -> None:
        """Of a user who was removed. What may be all that there is of a box's files stays as its tree does: until that is purged."""
        for each in await self._parts.store.snapshots.here():
            if each.user == user and each.kind is not CopyKind.ARCHIVE:
                await self.remove(each.id)

    async def purge(self, box: BoxId) -> None:
        """Of a box whose files are to go. Idempotent."""
        if self._parts.shelf is None:
            return
        for each in await self._parts.store.snapshots.here():
            if each.box == box:
                await self.remove(each.id)

    # --- what was cut short -------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """At the server's start, before anything is asked of a box: what a server that died left half done is undone. A place for
        copies that cannot be used keeps no server from starting: `status` says so, and whoever needs a copy."""
        if self._parts.shelf is None:
            return
        await self._tried(self._parts.shelf.tidy(), "what was left of copies is not taken away")
        for box in await self._parts.store.boxes.all():
            if box.verb and is_here(self._parts, box):
                if box.verb in OF_TREES:
                    await self._tried(
                        self._parts.driver.forget_copy(box.id, box.limits), f"what is beside the tree of {box.id} stays"
                    )
                await self._parts.store.boxes.end(box.id, box.verb)
        await self._tried(self.look(), "copies were not looked through")

    async def _tried(self, work: Awaitable[None], what: str) -> None:
        """What fails is logged, and left for the next time."""
        try:
            await work
        except NotFound as error:
            self._log.debug("%s: %s", what, error)
        except RingfenceError as error:
            self._log.error("%s: %s; %s", what, error.message, error.remedy)

    async def look(self) -> None:
        """Rows that nobody makes whole any more, copies of boxes that are gone, and files of rows that are removed go away. A file
        that no row ever named is told by `sweep` and left: the database may be an older one than the copy."""
        if self._parts.shelf is None:
            return
        files = await self._parts.shelf.ids()
        rows = await self._parts.store.snapshots.here()
        for row in rows:
            if await self._left(row.id):
                await self.remove(row.id)
                self._log.info("copy %s of box %s is taken away: nobody can have it", row.id, row.box)
        for copy in await self._parts.store.snapshots.removed(files - {row.id for row in rows} - self._making):
            await self._parts.shelf.drop(copy)
            self._log.info("the file of copy %s is taken away: it was removed", copy)

    async def _left(self, copy: str) -> bool:
        """Whether nobody can have it, nor will. Its row is read once nobody makes it any more: one that was read before may have
        become whole since, and be all that there is of a tree."""
        if copy in self._making:
            return False
        try:
            row = await self._parts.store.snapshots.get(copy)
        except NotFound:
            return False
        if row.box in self.packing and row.whole:
            return False
        box = await self._box(row.box)
        if box is None or not row.whole:
            return True
        if row.kind is not CopyKind.ARCHIVE:
            return box.desired is Desired.REMOVED  # of a user: `forget` was cut short
        return box.rest is not Rest.ARCHIVED and not box.verb

    async def _box(self, box: BoxId) -> Box | None:
        try:
            return await self._parts.store.boxes.get(box)
        except NotFound:
            return None


async def begun(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same, once its first piece is there: what is checked before that takes its time, and whoever takes it waits for no bytes."""
    first = await anext(content, b"")
    return _from(first, content)


async def _from(first: bytes, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in content:
        yield piece


async def _bytes(packing: Packing) -> AsyncIterator[bytes]:
    async for piece in packing:
        yield piece
