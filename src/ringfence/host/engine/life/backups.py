"""Makes a backup of the whole installation, as a stream, while people work: the rows first, then box after box.

A running box stands still for as long as its tree is read, and goes on; commands that want to begin meanwhile wait. Where the host
cannot freeze, a box that is at work is refused before the first byte, waited for when it begins later, or stopped when forced. Where
a box's content lies is looked up while nothing of it moves: it may have been archived or started since the rows were read. Whoever
takes the bytes may be slow, but not for ever (ahead.py). A server that dies in between leaves a stream without its end, and a frozen
box that the next start lets go on (adoption.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.crew import Crew
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.life.ahead import LEAST, Ahead, Gone
from ringfence.host.engine.life.presence import Presence
from ringfence.host.engine.life.shelving import Shelving
from ringfence.host.engine.life.standing import Standing
from ringfence.host.engine.links import Links
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.boxes import Box, Observed, Rest
from ringfence.host.kernel.errors import Conflict, Failed, NotFound, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.backup_tar import PART, Writing
from ringfence.host.kernel.life.backups import (
    BOXES,
    DATABASE,
    SNAPSHOTS,
    Dumped,
    Held,
    State,
    Wish,
    held_of,
    tree_item,
)
from ringfence.host.kernel.life.copies import CopyKind
from ringfence.host.kernel.life.states import Verb, freezes
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.ports import Driver

BUSY_SECONDS = 600.0  # for a box of which another tree is being made, or that is at work and cannot be frozen
_LOOK = 0.2


@dataclass(frozen=True, slots=True)
class Content:
    """Of a box that stands still. `archive`: the copy that it lies in; "": in its tree. `tree` gives it in either case; None: the archive
    is gone."""

    archive: str
    tree: AbstractAsyncContextManager[AsyncIterable[bytes]] | None


Still = Callable[[Held], AbstractAsyncContextManager[Content]]


class Maker:
    """One backup. Also without a server: `still` makes a box stand still as it can be done there."""

    def __init__(
        self,
        state: State,
        still: Still,
        facts: Mapping[str, Any],
        wish: Wish,
        now: Callable[[], datetime],
    ) -> None:
        self._state, self._still = state, still
        self._facts, self._wish, self._now = facts, wish, now
        self._out = Writing()
        self._gone: list[str] = []  # boxes that were removed after the rows were read
        self._lacks: list[str] = []  # copies without their file; boxes that are archived, and have no archive

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """From the first byte on, an error is in the stream as its end, so that whoever reads it knows why."""
        dumped = await self._state.dump()
        try:
            boxes = [held_of(each) for each in dumped.seen["boxes"]]
            yield self._out.manifest(self._manifest(dumped, boxes))
            try:
                async with aclosing(self._content(dumped, boxes)) as parts:
                    async for part in parts:
                        yield part
            except RingfenceError as error:
                yield self._out.failed(error.as_json())
                raise
            ended = self._now().isoformat(timespec="seconds")
            yield self._out.end({"gone": self._gone, "lacks": self._lacks, "ended_at": ended})
        finally:
            dumped.file.close()

    def _manifest(self, dumped: Dumped, boxes: list[Held]) -> dict[str, Any]:
        return {
            **self._facts,
            "created_at": dumped.facts["made_at"],
            "database": dumped.facts,
            "spent": dumped.seen["spent"],
            "images": dumped.seen["images"],
            "boxes": len(boxes),
            "with_key": self._wish.with_key,
            "snapshots": self._wish.snapshots,
        }

    async def _content(self, dumped: Dumped, boxes: list[Held]) -> AsyncGenerator[bytes, None]:
        while data := await asyncio.to_thread(dumped.file.read, PART):
            yield await self._part(DATABASE, data, pack=False)
        for item, content in await self._state.small(self._wish.with_key):
            yield await self._part(item, content)
        listed = Pieces()
        for box in boxes:
            for piece in listed.add(_line(box)):
                yield await self._part(BOXES, piece)
        yield await self._part(BOXES, listed.rest())
        copies = {row["id"]: row["kind"] for row in dumped.seen["snapshots"]}
        for box in boxes:
            async with aclosing(self._box(box, copies)) as parts:
                async for part in parts:
                    yield part
        for copy, kind in copies.items():
            if self._wish.snapshots and kind != CopyKind.ARCHIVE.value:
                async with aclosing(self._copy(copy)) as parts:
                    async for part in parts:
                        yield part

    async def _box(self, box: Held, copies: Collection[str]) -> AsyncGenerator[bytes, None]:
        """As its archive where the rows that are in the backup name that; else as its tree."""
        try:
            async with AsyncExitStack() as stack:
                still = await stack.enter_async_context(AsyncExitStack())
                content = await still.enter_async_context(self._still(box))
                known = content.archive in copies
                made = self._copy(content.archive) if known else self._tree(box, content)
                parts = await stack.enter_async_context(aclosing(made))
                async for part in parts:
                    if known:
                        await still.aclose()  # its file is open: whoever needs the box may take it away
                    yield part
        except NotFound:  # removed since: its row goes with it when the backup is put back
            if self._out.begun(tree_item(box.id)):
                raise Failed(
                    f"box {box.id} was removed while its tree was read", remedy="make the backup again"
                ) from None
            self._gone.append(box.id)

    async def _tree(self, box: Held, content: Content) -> AsyncGenerator[bytes, None]:
        if content.tree is None:
            self._lacks.append(box.id)
            return
        async with content.tree as data:
            pieces = Pieces()
            async for chunk in data:
                for piece in pieces.add(chunk):
                    yield await self._part(tree_item(box.id), piece)
            yield await self._part(tree_item(box.id), pieces.rest())

    async def _copy(self, snapshot: str) -> AsyncGenerator[bytes, None]:
        name = await self._state.file_of(snapshot)
        if name is None:
            self._lacks.append(snapshot)
            return
        async with aclosing(self._state.snapshot(name)) as data:
            async for piece in data:
                yield await self._part(SNAPSHOTS + name, piece, pack=False)

    async def _part(self, item: str, data: bytes, *, pack: bool = True) -> bytes:
        return await asyncio.to_thread(self._out.part, item, data, pack=pack)


class Pieces:
    """Of PART bytes, of a stream in chunks of any size."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def add(self, chunk: bytes) -> list[bytes]:
        self._kept += chunk
        pieces = []
        while len(self._kept) >= PART:
            pieces.append(bytes(self._kept[:PART]))
            del self._kept[:PART]
        return pieces

    def rest(self) -> bytes:
        return bytes(self._kept)


def _line(box: Held) -> bytes:
    return json.dumps(box.as_json(), separators=(",", ":")).encode() + b"\n"


class Backups:
    """Of a server that runs."""

    def __init__(
        self,
        parts: Parts,
        crew: Crew,
        doors: Doors,
        links: Links,
        bringup: BringUp,
        presence: Presence,
        standing: Standing,
        shelving: Shelving,
    ) -> None:
        self._parts, self._crew, self._doors = parts, crew, doors
        self._links, self._bringup = links, bringup
        self._presence, self._standing, self._shelving = presence, standing, shelving
        self._one = asyncio.Lock()
        self._log = logging.getLogger("ringfence.engine")

    async def create(self, actor: Actor, wish: Wish) -> AsyncGenerator[bytes, None]:
        """The file's bytes. Refused: who asks may not have everybody's files. Conflict: another one is being made, or boxes are at
        work that this host cannot freeze. Recorded before anything is read."""
        await self._doors.operator_only(Action.BACKUP, actor, "installation")
        state = self._parts.whole
        if state is None:
            raise Unavailable("this server makes no backups", remedy="ringfence db backup FILE")
        if actor.via not in {f"socket:{uid}" for uid in state.owners}:
            raise Refused(
                "a backup has everybody's words, files and rows in it: only root, or the account that runs the server, makes one",
                remedy="on the server's host, as root: ringfence backup create",
            )
        self._check_one()
        if not wish.force:
            self._check_work()
        details = {"with_key": wish.with_key, "snapshots": wish.snapshots, "force": wish.force}
        await self._parts.store.audit.record(actor, Action.BACKUP.value, "installation", details)
        config = self._parts.config
        facts = {"release": config.version, "installation": config.installation, "mode": config.mode}
        ahead = Ahead(self._crew, "backup", least=LEAST)
        maker = Maker(
            state, lambda box: self._still(box, force=wish.force, left=ahead.left), facts, wish, self._parts.clock.now
        )
        return ahead.of(maker.stream(), self._alone())

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Conflict."""
        self._check_one()
        async with self._one:
            yield

    def _check_one(self) -> None:
        if self._one.locked():
            raise Conflict("a backup is being made", remedy="wait until it is done")

    def _check_work(self) -> None:
        """Conflict."""
        if freezes(self._parts.facts):
            return
        busy = [slot.box for slot in self._links if slot.wire() is not None and self._presence.at_work(slot)]
        if busy:
            raise Conflict(
                f"{len(busy)} boxes are at work, and this host cannot freeze them",
                remedy="wait for them, or end what they do: --force",
                boxes=busy[:100],
            )

    @asynccontextmanager
    async def _still(self, box: Held, *, force: bool, left: asyncio.Event) -> AsyncIterator[Content]:
        """Nothing of the box moves within, and nobody starts it, or puts its tree away. NotFound. Conflict: something else is being done
        with it, or it is at work and would have to be stopped for this, for too long. Gone: nobody waits for it any more."""
        async with AsyncExitStack() as stack:
            row = await self._entered(stack, box.id, left, force=force)
            if row.rest is Rest.ARCHIVED:
                archive = await self._parts.store.snapshots.archive(box.id)
                gone = Content("", None)
                yield gone if archive is None else Content(archive.id, aclosing(self._shelving.archived(row)))
            else:
                yield Content("", self._parts.driver.pack(box.id))

    async def _entered(self, stack: AsyncExitStack, box: BoxId, left: asyncio.Event, *, force: bool) -> Box:
        """Its row, once the box stands still, for as long as `stack` is not left."""
        boxes, until = self._parts.store.boxes, self._parts.clock.monotonic() + BUSY_SECONDS
        while True:
            row = await boxes.get(box)
            if row.observed is Observed.ABSENT:
                raise NotFound(f"no such box: {box!r}")
            try:
                async with AsyncExitStack() as tried:
                    if not (force or freezes(self._parts.facts)):
                        self._standing.check_idle(self._bringup.slot(box))  # before others are kept from it
                    await tried.enter_async_context(self._standing.under(row, Verb.SNAPSHOT))
                    await tried.enter_async_context(self._standing.still(row, force=force))
                    row = await boxes.get(box)
                    if (
                        await self._parts.driver.observe(box)
                    ).state is Observed.ABSENT:  # as without a server: `still_alone`
                        raise NotFound(f"box {box} has no directory")
                    await stack.enter_async_context(tried.pop_all())
                    return row
            except Conflict as error:
                if self._parts.clock.monotonic() >= until:
                    raise Conflict(
                        f"box {box} was waited for {BUSY_SECONDS:.0f} s: {error.message}",
                        remedy="make the backup when that is over; or end what is at work: --force",
                    ) from error
            with suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), _LOOK)
            if left.is_set():
                raise Gone


@asynccontextmanager
async def still_alone(driver: Driver, box: Held, *, freezes: bool, force: bool) -> AsyncIterator[Content]:
    """Where no server runs. A box that a server left running goes on afterwards."""
    content = Content(box.archive, driver.pack(box.id))
    sight = await driver.observe(box.id)
    if sight.state is Observed.ABSENT:
        raise NotFound(f"no such box: {box.id}")
    if sight.state is not Observed.RUNNING or sight.frozen:
        yield content
        return
    if not freezes:
        if not force:
            raise Conflict(f"box {box.id} runs, and this host cannot freeze it", remedy="end what it does: --force")
        await driver.stop(box.id)
        yield content
        return
    await driver.freeze(box.id)
    try:
        yield content
    finally:
        await driver.thaw(box.id)
