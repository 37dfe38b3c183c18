"""What people and operators ask of a box's whole tree: copies, putting them back, another user's, beginning anew, mending.

The order is the same in each: who may; is it the state for it; nobody else's verb under way; nothing at work; the copy of before;
the new tree whole beside the old one; every run that had begun is told of another tree (boxes.new_tree); the new tree in place; the
end of the verb. Killed before the last but one, the box has its old tree, and runs that are told of another one in vain start from
their last checkpoint; killed after it, the new one. What lies around then goes at the next start (shelving.py). Must never change a
tree before that of its copy is on disk, unless that copy was refused by who asks.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ringfence.host.engine.boxes import BoxKeeper, BoxView
from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.crew import Crew, uncut
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.homes import home_of
from ringfence.host.engine.life.ahead import LEAST, Ahead
from ringfence.host.engine.life.archives import Archives, alone
from ringfence.host.engine.life.mending import Mended, Mending
from ringfence.host.engine.life.shelving import Shelving, begun
from ringfence.host.engine.life.standing import Standing
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.boxes import Box, Rest
from ringfence.host.kernel.errors import Conflict, DiskFull, Invalid, NameInvalid, Refused, RingfenceError
from ringfence.host.kernel.life.copies import CopyKind, How, Snapshot, is_name
from ringfence.host.kernel.life.states import Verb, check_quarantine, step
from ringfence.host.kernel.people import Actor

MOST_NAME = 64  # characters of a name that somebody gave, in the audit
AHEAD = 16  # pieces of an export that are made before somebody takes them: 4 MiB


@dataclass(frozen=True, slots=True)
class Taken:
    """`left_out`: what no copy has, by kind (fifo, socket, device, special_bits, too_deep, mount), with how many there were."""

    snapshot: Snapshot
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changed:
    """A box with another tree. `before`: the copy of the one that it had."""

    box: BoxView
    before: Snapshot | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Before:
    """The copy of a tree that goes; None: who asked wants none. `needed`: the tree is gone by now, or may be."""

    copy: Snapshot | None = None
    needed: bool = False

    @contextmanager
    def unless_refused(self) -> Iterator[None]:
        """Around what puts another tree in its place: those errors come before anything has changed."""
        try:
            yield
        except (Conflict, DiskFull, Refused):
            self.needed = False
            raise


class Copies:
    def __init__(
        self,
        parts: Parts,
        crew: Crew,
        doors: Doors,
        keeper: BoxKeeper,
        bringup: BringUp,
        standing: Standing,
        shelving: Shelving,
        archives: Archives,
    ) -> None:
        self._parts, self._crew, self._doors = parts, crew, doors
        self._keeper, self._bringup = keeper, bringup
        self._standing, self._shelving, self._archives = standing, shelving, archives
        self._mending = Mending(parts)

    async def snapshot(self, actor: Actor, tenant: str, user: str, name: str = "", *, force: bool = False) -> Taken:
        """A running box stands still meanwhile. Conflict: it has no files yet, a copy of that name is there, too many are kept; or it
        would have to be stopped and is at work. DiskFull."""
        _check_name(name)
        box = await self._of(Action.BOX_SNAPSHOT, actor, tenant, user, {"verb": "make", "name": name, "force": force})
        async with self._standing.under(box, Verb.SNAPSHOT), self._standing.still(box, force=force):
            box = await self._parts.store.boxes.get(box.id)
            copy, copied = await self._shelving.copy(box, CopyKind.ASKED, name)
            return Taken(copy, copied.left_out)

    async def list(self, actor: Actor, tenant: str, user: str) -> builtins.list[Snapshot]:
        """Oldest first."""
        target = await self._doors.user(Action.BOX_SNAPSHOT, actor, tenant, user, {"verb": "list"})
        return await self._parts.store.snapshots.of(target.id)

    async def remove(self, actor: Actor, tenant: str, user: str, wanted: str) -> None:
        told = {"verb": "remove", "copy": wanted[:MOST_NAME]}
        target = await self._doors.user(Action.BOX_SNAPSHOT, actor, tenant, user, told)
        check_quarantine(await home_of(self._parts, target), operator=actor.operator)
        copy = await self._parts.store.snapshots.find(target.id, wanted)
        await self._shelving.remove(copy.id)

    async def restore(self, actor: Actor, tenant: str, user: str, wanted: str, how: How) -> Changed:
        """The box is left stopped, with the tree of the copy. Refused: something in the archive is not to be had. DiskFull: it is more
        than the box may have now. Conflict. The tree of before stays as it is then."""
        told = {"verb": "restore", "copy": wanted[:MOST_NAME], **_asked(how)}
        target = await self._doors.user(Action.BOX_TREE, actor, tenant, user, told)
        box = await home_of(self._parts, target)
        step(box, Verb.RESTORE)
        copy = await self._parts.store.snapshots.find(target.id, wanted)
        _check_room(box, copy)
        await self._shelving.check(copy)
        box = await self._with_a_tree(box)
        async with self._down(box, Verb.RESTORE, how) as box, self._before(box, how) as before:
            async with aclosing(self._shelving.content(copy)) as content:
                left_out = await self._put(box, content, before)
            await self._kept(box, before)
        return Changed(await self._keeper.show(actor, tenant, user), before.copy, left_out)

    async def clone(self, actor: Actor, tenant: str, user: str, to: str, wanted: str | None, how: How) -> Changed:
        """The tree of one user's box, or of a copy of it, in the place of another's: an operator's. The other box keeps its id, its
        machine-id, its name and its secrets, none of which are in a tree."""
        told = {"from": user[:MOST_NAME], "to": to[:MOST_NAME], "copy": (wanted or "")[:MOST_NAME], **_asked(how)}
        target = await self._doors.user(Action.BOX_CLONE, actor, tenant, user, told)
        other = await self._doors.user(Action.BOX_CLONE, actor, tenant, to, told)
        if target.id == other.id:
            raise Invalid("a box is no clone of itself", remedy="ringfence box restore U S")
        source, box = await home_of(self._parts, target), await home_of(self._parts, other)
        step(box, Verb.RESTORE)
        box = await self._with_a_tree(box)
        copy = None if wanted is None else await self._parts.store.snapshots.find(target.id, wanted)
        if copy is not None:
            _check_room(box, copy)
            await self._shelving.check(copy)
        down = self._down(box, Verb.RESTORE, how, source=source if copy is None else None)
        async with down as box, self._before(box, how) as before:
            content = self._content_of(source, force=how.force) if copy is None else self._read(copy)
            async with content as data:  # a source that runs stands still for this, and no longer
                left_out = await self._put(box, data, before)
            await self._kept(box, before)
        return Changed(await self._keeper.show(actor, tenant, to), before.copy, left_out)

    async def reset(self, actor: Actor, tenant: str, user: str, how: How, *, keep_files: bool = False) -> Changed:
        """Left stopped: with an empty tree, or `keep_files`, with home and workspace as they are; processes, /tmp and /run go in
        either case."""
        told = {"verb": "reset", "keep_files": keep_files, **_asked(how)}
        box, copy = await self._of(Action.BOX_TREE, actor, tenant, user, told), None
        async with self._down(box, Verb.RESET, how) as box:
            if not keep_files:
                async with self._before(box, how) as before:
                    await self._parts.store.boxes.new_tree(box.id)
                    with before.unless_refused():
                        before.needed = True
                        await self._parts.driver.reset(box.id, box.limits)
                    await self._kept(box, before)
                copy = before.copy
        return Changed(await self._keeper.show(actor, tenant, user), copy)

    async def archive(self, actor: Actor, tenant: str, user: str, how: How) -> BoxView:
        """Stopped, and its tree packed, until its next start. Idempotent."""
        box = await self._of(Action.BOX_PAUSE, actor, tenant, user, {"verb": "archive", **_asked(how)})
        await self._archives.put_away(box.id, force=how.force, drain=how.drain)
        return await self._keeper.show(actor, tenant, user)

    async def recover(self, actor: Actor, tenant: str, user: str, action: str, how: How) -> tuple[BoxView, Mended]:
        """`fsck` or `free-space`. Left stopped."""
        told = {"verb": action[:MOST_NAME], **_asked(how)}
        box = await self._of(Action.BOX_RECOVER, actor, tenant, user, told)
        work = self._mending.of(action)
        async with self._down(box, Verb.RECOVER, how) as box:
            mended = await work(box)
        return await self._keeper.show(actor, tenant, user), mended

    def export(
        self, actor: Actor, tenant: str, user: str, *, force: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A tar of the tree of a box, also one that is in quarantine or cannot be started: an operator's."""
        return self._export(actor, tenant, user, force)

    @asynccontextmanager
    async def _export(self, actor: Actor, tenant: str, user: str, force: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        box = await self._of(Action.BOX_RECOVER, actor, tenant, user, {"verb": "export", "force": force})
        ahead = Ahead(self._crew, "export", parts=AHEAD, least=LEAST)
        async with aclosing(ahead.of(self._exported(box, force))) as content:
            yield await begun(content)

    async def _exported(self, box: Box, force: bool) -> AsyncGenerator[bytes, None]:
        async with self._standing.under(box, Verb.SNAPSHOT), self._content_of(box, force=force) as content:
            async for piece in content:
                yield piece

    # --- the tree -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _read(self, copy: Snapshot) -> AsyncIterator[AsyncIterator[bytes]]:
        async with aclosing(self._shelving.content(copy)) as content:
            yield content

    @asynccontextmanager
    async def _content_of(self, box: Box, *, force: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._standing.still(box, force=force):
            box = await self._parts.store.boxes.get(box.id)
            if box.rest is Rest.ARCHIVED:
                async with aclosing(self._shelving.archived(box)) as content:
                    yield content
                return
            async with self._parts.driver.pack(box.id) as packing:
                yield aiter(packing)

    @asynccontextmanager
    async def _down(self, box: Box, verb: Verb, how: How, *, source: Box | None = None) -> AsyncIterator[Box]:
        """Its row, once nothing of it runs and nobody has files of it."""
        down = self._standing.down(box, verb, force=how.force, drain=how.drain, source=source)
        async with down as slot, alone(slot, force=how.force):
            yield await self._parts.store.boxes.get(box.id)

    async def _with_a_tree(self, box: Box) -> Box:
        """One that is archived has an empty one, and needs no other to be given another: its archive may be lost."""
        return box if box.rest is Rest.ARCHIVED else await self._bringup.provisioned(box)

    @asynccontextmanager
    async def _before(self, box: Box, how: How) -> AsyncIterator[_Before]:
        """Where nothing comes of the change the copy is of no use, and goes."""
        before = _Before((await self._shelving.copy(box, CopyKind.BEFORE))[0] if how.keep else None)
        try:
            yield before
        except BaseException:
            if before.copy is not None and not before.needed:
                with suppress(RingfenceError):
                    await uncut(self._shelving.remove(before.copy.id))
            raise

    async def _put(self, box: Box, content: AsyncIterator[bytes], before: _Before) -> Mapping[str, int]:
        """Refused, Conflict, DiskFull: nothing has changed. After any other error it has, or not."""
        data = await begun(content)
        with before.unless_refused():
            async with self._parts.driver.unpack(box.id, box.limits) as put:
                copied = await put(data)
                await self._parts.store.boxes.new_tree(box.id)
                before.needed = True
        return copied.left_out

    async def _kept(self, box: Box, before: _Before) -> None:
        """After the change."""
        if box.rest is Rest.ARCHIVED:
            await self._archives.emptied(box)
        if before.copy is not None:
            await self._shelving.drop_older(box, before.copy)

    async def _of(self, action: Action, actor: Actor, tenant: str, user: str, told: Mapping[str, Any]) -> Box:
        """`told`: in the audit, so that it says which act it was; one permission is for several."""
        box = await home_of(self._parts, await self._doors.user(action, actor, tenant, user, told))
        check_quarantine(box, operator=actor.operator)
        return box


def _asked(how: How) -> dict[str, Any]:
    """For the audit, which is JSON and comes before what is asked for is looked at."""
    return {**asdict(how), "drain": how.drain if math.isfinite(how.drain) else str(how.drain)}


def _check_name(name: str) -> None:
    if name and not is_name(name):
        raise NameInvalid(
            f"{name[:80]!r} is no name of a copy", remedy="1 to 64 letters, digits, . _ - and no . _ - at its begin"
        )


def _check_room(box: Box, copy: Snapshot) -> None:
    """Before anything is touched."""
    limits = box.limits
    if copy.bytes > limits.disk or copy.entries > limits.inodes:
        raise DiskFull(
            f"the copy has {copy.bytes} bytes in {copy.entries} files and folders, the box may have {limits.disk} and {limits.inodes}",
            remedy="raise the limits: ringfence box limits U --disk SIZE --inodes N",
        )
