"""`sweep`: what this installation has left behind, found and taken away; at the server's start, every hour, and when asked.

The driver proves what is nobody's and the store says which boxes exist; here the two are brought together. A box that is being
started, stopped, changed or removed is left for the next time: its lock is held, or a verb is under way. Each thing is taken away
by itself, so that a server which dies in between leaves the rest for its next start. Must never start anything, nor take away a
box by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.homes import is_here
from ringfence.host.engine.links import Links
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.boxes import Box, Desired, Observed
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.debris import Deed, Found, Left, Report, Seen, lost, withheld, without_box, without_row
from ringfence.host.kernel.people import Actor

AT_WORK = "something is being done with the box; it is looked at again the next time"
SUBJECT = "installation"
Taking = Callable[[Left], Awaitable[bool]]


class Debris:
    def __init__(self, parts: Parts, doors: Doors, links: Links, bringup: BringUp) -> None:
        self._parts, self._doors, self._links, self._bringup = parts, doors, links, bringup
        self._one = asyncio.Lock()
        self._told: set[tuple[str, BoxId | None, str]] = set()  # in the log, and not again while it is so
        self._log = logging.getLogger("ringfence.engine")

    async def loop(self) -> None:
        """At once, then every `debris_seconds`."""
        while True:
            try:
                await self._swept(None, dry_run=False, boxes=())
            except RingfenceError as error:
                self._log.error("sweep: %s", error)
            await asyncio.sleep(self._parts.config.debris_seconds)

    async def sweep(self, actor: Actor, *, dry_run: bool, boxes: Collection[str] = ()) -> Report:
        """`boxes`: of those without an owner the ones that are to go, with all that is in them. Invalid: one that is none. Of
        several at once each waits for the one before."""
        if dry_run and boxes:
            raise Invalid("a dry run takes nothing away, and boxes are named", remedy="leave one of the two out")
        await self._doors.operator_only(Action.SWEEP, actor, SUBJECT)
        return await self._swept(actor, dry_run=dry_run, boxes=boxes)

    async def _swept(self, actor: Actor | None, *, dry_run: bool, boxes: Collection[str]) -> Report:
        async with self._one:
            seen = await self._parts.driver.debris()
            rows = await self._parts.store.boxes.all()
            strays = [each for each in without_row(seen.boxes, rows) if await self._is_there(each)]
            if unknown := sorted(set(boxes) - {each.box for each in strays if each.box}):
                what = f"not a box without an owner: {', '.join(unknown)[:200]}"
                raise Invalid(what, remedy="ringfence sweep --dry-run")
            found = await self._all(seen, rows, strays, dry_run, boxes)
            report = Report(found, dry_run, seen.ids)
            await self._say(actor, report)
            return report

    async def _all(
        self, seen: Seen, rows: list[Box], strays: list[Left], dry_run: bool, boxes: Collection[str]
    ) -> list[Found]:
        by_id = {row.id: row for row in rows}
        here = [row for row in rows if is_here(self._parts, row)]
        suspects = without_box(seen.boxes, here)
        kept = {
            row.id for row in suspects if row.desired is not Desired.REMOVED
        }  # also of what runs on, or is being made
        missing = [row for row in suspects if await self._is_missing(row)]
        for row in missing:
            if row.id in kept and row.observed is not Observed.LOST and not dry_run:
                await self._lose(row)
        todo: list[tuple[Left, Taking]] = [(lost(row), self._row) for row in missing]
        todo += [(each, self._of_driver) for each in map(lambda left: _kept_back(left, kept), seen.found)]
        todo += [(replace(each, ours=each.box in boxes), self._box) for each in strays]
        todo += [(each, self._user) for each in await self._ownerless(here, seen.boxes)]
        todo += [(each, self._parts.store.references.end) for each in await self._parts.store.references.broken()]
        todo += [(each, self._box) for each in await self._copies()]
        found = [await self._each(left, take, by_id, dry_run) for left, take in todo]
        return [each for each in found if each is not None]

    async def _each(self, left: Left, take: Taking, rows: dict[BoxId, Box], dry_run: bool) -> Found | None:
        """None: whoever has the box has ended it meanwhile."""
        owner = await self._owner(rows.get(left.box)) if left.box else ""
        if dry_run or not left.ours:
            return Found(left, owner, Deed.REPORTED)
        try:
            done = await take(left)
            return Found(left, owner, Deed.REMOVED if done else Deed.REPORTED)
        except NotFound:
            return None
        except Conflict as error:
            return Found(left, owner, Deed.REPORTED, _words(error))
        except RingfenceError as error:
            return Found(left, owner, Deed.FAILED, _words(error))

    async def _owner(self, row: Box | None) -> str:
        if row is None:
            return ""
        with suppress(NotFound):
            user = await self._parts.store.users.by_id(row.user)
            return f"{user.tenant_name}/{user.name}"
        return ""

    # --- what is taken away -------------------------------------------------------------------------------------------

    async def _of_driver(self, left: Left) -> bool:
        """What is not there any more went with something else, such as what was in a cgroup."""
        if left.box is None:
            await self._parts.driver.clear(None, left.kind)
            return True
        async with self._quiet(left.box, running=left.kind in ("worker", "temporary")):
            await self._parts.driver.clear(left.box, left.kind)
        return True

    async def _box(self, left: Left) -> bool:
        """With its tree. Asked for by its id, and still in no row."""
        assert left.box is not None
        async with self._quiet(left.box, running=False):
            with suppress(NotFound):
                await self._parts.store.boxes.get(left.box)
                raise Conflict("the store knows it by now")
            await self._parts.driver.remove(left.box)
        return True

    async def _row(self, left: Left) -> bool:
        """Wanted removed and seen absent: that ends it (kernel.registry)."""
        assert left.box is not None
        async with self._quiet(left.box, running=False):
            sight = await self._parts.driver.observe(left.box)
            if sight.state is not Observed.ABSENT:
                raise Conflict("its directory is there again")
            await self._parts.store.boxes.update(left.box, observed=Observed.ABSENT)
        return True

    async def _user(self, left: Left) -> bool:
        """A user was removed and the server died before his box was: it ends now, its tree stays until it is purged."""
        assert left.box is not None
        await self._bringup.down(left.box, Desired.REMOVED)
        return True

    def _quiet(self, box: BoxId, *, running: bool) -> _Quiet:
        return _Quiet(self._parts, self._links, box, running)

    async def _lose(self, row: Box) -> None:
        """So that whoever looks is told. Nothing else changes: with its directory back it is the box that it was."""
        with suppress(RingfenceError):
            async with self._quiet(row.id, running=False):
                await self._parts.store.boxes.update(row.id, observed=Observed.LOST)

    # --- what is found ------------------------------------------------------------------------------------------------

    async def _is_missing(self, row: Box) -> bool:
        """Once more, for it may have been made since the driver was asked."""
        with suppress(RingfenceError):
            async with self._quiet(row.id, running=False):
                sight = await self._parts.driver.observe(row.id)
                return sight.state is Observed.ABSENT
        return False

    async def _is_there(self, stray: Left) -> bool:
        """Once more: its row may have gone with it since the driver was asked."""
        assert stray.box is not None
        with suppress(NotFound):
            sight = await self._parts.driver.observe(stray.box)
            return sight.state is not Observed.ABSENT
        return False

    async def _ownerless(self, here: list[Box], boxes: Collection[BoxId]) -> list[Left]:
        found = []
        gone: dict[str, bool] = {}
        for row in here:
            if row.desired is Desired.REMOVED or row.id not in boxes:
                continue
            if row.user not in gone:
                gone[row.user] = await self._is_gone(row)
            if gone[row.user]:
                why = "its user is removed, and it was not taken down: the server died in between"
                found.append(Left("user", row.id, "a box of a removed user", why))
        return found

    async def _copies(self) -> list[Left]:
        """Files of copies of trees that no row names: looked at before the rows, which are made first. Told and left: who takes
        them away is shelving.py."""
        shelf = self._parts.shelf
        if shelf is None:
            return []
        try:
            files = await shelf.ids()
        except RingfenceError as error:  # the rest is swept all the same
            return [Left("snapshot", None, "the folder of copies", error.message, ours=False)]
        known = {row.id for row in await self._parts.store.snapshots.here()}
        why = "no row of the store names it"
        return [Left("snapshot", None, f"the file of copy {each}", why, ours=False) for each in sorted(files - known)]

    async def _is_gone(self, row: Box) -> bool:
        try:
            await self._parts.store.users.by_id(row.user)
        except NotFound:
            return True
        return False

    # --- what is said -------------------------------------------------------------------------------------------------

    async def _say(self, actor: Actor | None, report: Report) -> None:
        """In the audit what was taken away; in the log that, and once what was not."""
        told = {(each.left.kind, each.left.box, each.error) for each in report.found if each.deed is not Deed.REMOVED}
        for each in report.found:
            key = (each.left.kind, each.left.box, each.error)
            if each.deed is Deed.REMOVED or (actor is None and key not in self._told):
                text = f"{each.left.what}: {each.error or each.left.why}"
                self._log.warning("sweep: %s %s of box %s: %s", each.deed, each.left.kind, each.left.box or "-", text)
        if actor is None:
            self._told = told
        removed = [each.as_json() for each in report.found if each.deed is Deed.REMOVED]
        if removed:
            names = [{"kind": each["kind"], "box": each["box"], "what": each["what"][:100]} for each in removed[:50]]
            await self._parts.store.audit.record(
                actor, "sweep.removed", SUBJECT, {"count": len(removed), "first": names}
            )


class _Quiet:
    """A box with which nothing is being done, for as long as this holds; it keeps starts and stops waiting. Conflict: something
    is, or it runs and must not (`running`)."""

    def __init__(self, parts: Parts, links: Links, box: BoxId, running: bool) -> None:
        self._parts, self._links, self._box, self._running = parts, links, box, running
        self._slot = links.slot(box)

    async def __aenter__(self) -> None:
        slot = self._slot
        if slot.lock.locked() or slot.flight is not None or (slot.wire() is not None and not self._running):
            raise Conflict(AT_WORK)
        await slot.lock.acquire()
        slot.doing = "what is left behind of it is looked at"
        try:
            await self._verbless()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._slot.doing = ""
        self._slot.lock.release()

    async def _verbless(self) -> None:
        """A slot is kept for as long as its box has a row: who waits for its lock, or has asked for it, must meet the others there."""
        try:
            row = await self._parts.store.boxes.get(self._box)
        except NotFound:
            self._links.drop(self._slot)  # and nobody can start it
        else:
            if row.verb and row.verb_until is not None and row.verb_until > self._parts.onward.now():
                raise Conflict(f"{row.verb} of the box is under way; it is looked at again the next time")


def _kept_back(left: Left, missing: Collection[BoxId]) -> Left:
    why = withheld(left, missing)
    return replace(left, ours=False, why=why) if why else left


def _words(error: RingfenceError) -> str:
    more = f" ({error.of_host})" if error.of_host else ""
    return f"{error.message}{more}"
