"""Boxes at rest whose tree is packed: put away, and put back by the next start.

away   archive whole (row and file) -> the box is `archived`, and full -> its tree is emptied -> it is not full any more. Killed
       after the first: the tree is the truth, and the archive goes. Killed after the second: the archive is the truth; the next
       look empties the tree, if the archive is whole still.
back   archive unpacked in the tree's place -> the box is not archived any more -> the archive goes. Killed after the first: it is
       unpacked once more. No process of the box ran in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from ringfence.host.engine.homes import is_here
from ringfence.host.engine.life.shelving import Shelving, begun
from ringfence.host.engine.life.standing import Standing
from ringfence.host.engine.links import Slot
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Box, Desired, Rest
from ringfence.host.kernel.errors import Conflict, Failed, NotFound, RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.copies import CopyKind
from ringfence.host.kernel.life.states import Verb

DUTY_SECONDS = 3600.0  # between two looks at copies
FULL = "full"  # of Box.made_of: it is archived, and its tree is yet to be emptied
FILES_SECONDS = 10.0  # for files that are being sent or taken: one of some MB takes less, and a start waits meanwhile
CUT_SECONDS = (
    1.0  # for who was cut off: the wire of a files helper is closed at once, which its other end sees in some ms
)


class Archives:
    def __init__(self, parts: Parts, standing: Standing, shelving: Shelving, slot: Callable[[BoxId], Slot]) -> None:
        self._parts, self._standing, self._shelving, self._slot = parts, standing, shelving, slot
        self._log = logging.getLogger("ringfence.engine")

    async def put_away(
        self, box: BoxId, *, generation: int | None = None, force: bool = False, drain: float = 0.0
    ) -> Box:
        """Conflict: it is at work, or its files are in use, or it is under another verb, or was started anew since `generation`.
        DiskFull: there is no room for the archive; the box stays as it is. Failed: it is archived, and its archive is no good: the tree
        stays as it is."""
        row = await self._parts.store.boxes.get(box)
        down = self._standing.down(row, Verb.ARCHIVE, force=force, drain=drain, generation=generation)
        async with down as slot, alone(slot, force=force):
            row = await self._parts.store.boxes.get(box)
            if row.rest is Rest.ARCHIVED:
                if (kept := await self._kept(row)) is not None:
                    return kept
                await self._shelving.check_archive(row)  # or its tree is all that there is
            else:
                before = await self._parts.store.snapshots.archive(box)
                if before is not None:  # of a putting away that was cut short
                    await self._shelving.remove(before.id)
                row = await self._packed(row)
            await self._parts.driver.reset(box, row.limits)
            made_of = {name: value for name, value in (row.made_of or {}).items() if name != FULL}
            return await self._parts.store.boxes.update(box, made_of=made_of)

    async def _packed(self, row: Box) -> Box:
        self._shelving.packing.add(row.id)
        try:
            await self._shelving.copy(row, CopyKind.ARCHIVE)
            await self._shelving.archive_of(row)  # or the tree is all that there is
            made_of = {**(row.made_of or {}), FULL: True}
            return await self._parts.store.boxes.update(row.id, rest=Rest.ARCHIVED, made_of=made_of)
        finally:
            self._shelving.packing.discard(row.id)

    async def when_idle(self, box: Box) -> None:
        await self.put_away(box.id, generation=box.generation)

    async def loop(self) -> None:
        """What a server or a verb that was cut short has left, at once and every hour."""
        while True:
            await self.finish()
            await asyncio.sleep(DUTY_SECONDS)
            try:
                await self._shelving.look()
            except RingfenceError as error:
                self._log.warning("copies were not looked through: %s", error)

    async def finish(self) -> None:
        """Trees that were packed and not emptied are emptied. Never raises."""
        for row in await self._all():
            if row.rest is not Rest.ARCHIVED or row.desired is Desired.REMOVED or not is_here(self._parts, row):
                continue
            if not (row.made_of or {}).get(FULL):
                continue
            try:
                await self.put_away(row.id)
                self._log.info("box %s was archived, and its tree is emptied now", row.id)
            except (Conflict, NotFound) as error:
                self._log.debug("the tree of box %s is not emptied yet: %s", row.id, error)
            except RingfenceError as error:
                self._log.error("box %s is archived, and its tree is not emptied: %s", row.id, error)

    async def _all(self) -> list[Box]:
        try:
            return await self._parts.store.boxes.all()
        except RingfenceError as error:
            self._log.warning("archived boxes were not looked through: %s", error)
            return []

    async def ready(self, box: Box) -> Box:
        """The box with its tree, for who holds its lock and wants to start it, or to have its files. Failed: its archive is gone.
        DiskFull: it has no room any more under the limits that hold now."""
        if box.rest is not Rest.ARCHIVED:
            return box
        async with alone(self._slot(box.id)):
            if (kept := await self._kept(box)) is not None:
                return kept
            async with aclosing(self._shelving.archived(box)) as archived:
                content = await begun(archived)
                async with self._parts.driver.unpack(box.id, box.limits) as put:
                    await put(content)
            return await self.emptied(box)

    async def _kept(self, box: Box) -> Box | None:
        """The box with the tree that it has still, where it was archived and not emptied and its archive is no good. Unavailable."""
        if not (box.made_of or {}).get(FULL):
            return None
        try:
            await self._shelving.check_archive(box)
            return None
        except Failed as error:
            self._log.error("box %s was not emptied, and has its tree: %s", box.id, error)
        made_of = {name: value for name, value in (box.made_of or {}).items() if name != FULL}
        return await self.emptied(await self._parts.store.boxes.update(box.id, rest=Rest.NONE, made_of=made_of))

    async def emptied(self, box: Box) -> Box:
        """It has a tree again, and needs its archive no more."""
        if box.rest is Rest.ARCHIVED:
            box = await self._parts.store.boxes.update(box.id, rest=Rest.NONE)
        archive = await self._parts.store.snapshots.archive(box.id)
        if archive is not None:
            await self._shelving.remove(archive.id)
        return box


@asynccontextmanager
async def alone(slot: Slot, *, force: bool = False) -> AsyncIterator[None]:
    """For who has the slot's lock and puts its tree away, or another one in its place: nobody has files of it within, so that what
    was put and acknowledged is in the tree that is kept. Conflict: somebody has them for longer than is waited. `force`: they are cut
    off, and whoever does not even notice, as a reader who takes no more, is not waited for."""
    slot.replacing = True
    try:
        for cut in list(slot.cuts) if force else ():
            cut()
        if not await _free(slot, CUT_SECONDS if force else FILES_SECONDS) and not force:
            raise Conflict(
                "files of the box are being sent or taken, or its data is exported",
                remedy="wait until that is over, and try again",
            )
        yield
    finally:
        slot.replacing = False


async def _free(slot: Slot, seconds: float) -> bool:
    """Whether nobody has files of it, in that time."""
    try:
        async with asyncio.timeout(seconds):
            while slot.using_files:
                await slot.files_free.wait()
    except TimeoutError:
        return False
    return True
