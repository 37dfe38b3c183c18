"""Boxes as people and operators see and steer them."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.disk import NO_QUOTA, UNBOUNDED, DiskMeter
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.homes import home_of, is_here
from ringfence.host.engine.links import Links
from ringfence.host.engine.parts import Parts, together, weak
from ringfence.host.kernel.access import Action, Answer, decide, towards_user
from ringfence.host.kernel.boxes import FROM_NEXT_START, Box, BoxKind, Desired, DiskUse, Observed, effective
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, RingfenceError
from ringfence.host.kernel.life.states import State, check_quarantine, state_of
from ringfence.host.kernel.outward.credentials import Use
from ringfence.host.kernel.people import Actor, User
from ringfence.host.kernel.ports import Sight
from ringfence.host.kernel.settings_file import LIMIT_BOUNDS

LET_GO = "end what has the disk, then again: ringfence box stop USER"
TELL = "tell the operator, who sees which process it is"


@dataclass(frozen=True, slots=True)
class BoxView:
    """One box. Sizes in bytes; disk_bytes -1: not measured."""

    user: str
    tenant: str
    driver: str
    desired: str
    observed: str
    image: str
    image_wanted: str  # name or id; empty: what the settings say
    image_bound: str  # what its next start has; empty: not decided yet
    uid: int
    pids: int
    memory_bytes: int
    disk_bytes: int
    disk_limit_bytes: int | None
    disk_by: str  # what bounds it: image, quota, accounting
    disk_full: bool
    inodes: int  # -1: not counted
    inode_limit: int | None  # that holds now
    disk_problem: str  # why its disk cannot be used; empty: nothing is known
    started_at: datetime | None
    last_active_at: datetime | None
    limits: dict[str, int]
    generation: int
    weak: list[str]  # what this host cannot enforce
    box: str
    effective: dict[str, int]  # what holds instead of `limits`, where another limit is lower
    from_next_start: list[str] = field(default_factory=list)  # of the limits just changed, those that do not hold yet
    sessions: list[str] = field(default_factory=list)
    mounted: list[str] = field(default_factory=list)  # credentials that its commands have in clear, by name
    injected: list[str] = field(default_factory=list)  # those that any process of it spends just by asking their host
    egress: dict[str, Any] = field(default_factory=dict)  # its way out; empty: it has none
    rested_at: datetime | None = None  # since when it is paused, stopped or archived
    quarantine: str | None = None  # why; None: it is in none


class BoxKeeper:
    def __init__(self, parts: Parts, doors: Doors, links: Links, bringup: BringUp, meter: DiskMeter) -> None:
        self._parts, self._doors, self._links, self._bringup, self._meter = parts, doors, links, bringup, meter

    async def list(self, actor: Actor, tenant: str | None) -> builtins.list[BoxView]:
        """Every home box that the actor may see. Where disk use is only counted it is not measured here: it walks the tree."""
        self._doors.proven(actor)
        names = [row.name for row in await self._parts.store.tenants.all()] if tenant is None else [tenant]
        if tenant is not None:
            await self._doors.tenant(Action.TENANT_SEE, actor, tenant)
        users: dict[str, User] = {}
        for name in names:
            for user in await self._parts.store.users.all(name):
                if decide(Action.BOX_SEE, actor, towards_user(actor, user)).answer is Answer.ALLOW:
                    users[user.id] = user
        rows = [b for b in await self._parts.store.boxes.all() if b.user in users and b.kind is BoxKind.HOME]
        boxes = [b for b in rows if b.desired is not Desired.REMOVED]
        sights = await asyncio.gather(*(self._sight(box) for box in boxes))
        views = [
            self._view(actor, users[b.user], b, s, s.disk if s is not None else None)
            for b, s in zip(boxes, sights, strict=True)
        ]
        loose = await self._parts.store.credentials.loosely_bound([b.user for b in boxes])
        pairs = zip(views, boxes, strict=True)
        return [replace(view, **await self._loose(b)) if b.user in loose else view for view, b in pairs]

    async def show(self, actor: Actor, tenant: str, user: str) -> BoxView:
        target = await self._doors.user(Action.BOX_SEE, actor, tenant, user)
        return await self._shown(actor, target)

    async def seen(self, actor: Actor, user: User, box: Box) -> BoxView:
        """As `show`, for who was let through for more than a look already, and has just read or written the row."""
        (sight, disk), loose = await asyncio.gather(self._looked(box), self._loose(box))
        return replace(self._view(actor, user, box, sight, disk), **loose)

    async def start(self, actor: Actor, tenant: str, user: str) -> BoxView:
        target = await self._doors.user(Action.BOX_START, actor, tenant, user)
        box = await self._home(target)
        with _told(actor):
            await self._bringup.ensure(box.id)
        return await self._shown(actor, target)

    async def stop(self, actor: Actor, tenant: str, user: str) -> BoxView:
        """Every process of the box ends. A run that is under way is redriven, and starts the box again. Conflict: they
        have ended, and the disk, which an error made read-only, could not be mounted anew; or something else is being done with the
        box. Refused: quarantine, which its operators end."""
        target = await self._doors.user(Action.BOX_STOP, actor, tenant, user)
        box = await self._home(target)
        check_quarantine(box, operator=actor.operator)
        await self._bringup.down(box.id, Desired.STOPPED)
        view = await self._shown(actor, target)
        held = view.disk_problem and view.disk_bytes >= 0  # mounted all the same
        if held and view.observed == State.STOPPED.value:
            raise Conflict(
                f"the box is stopped; {view.disk_problem}", remedy=LET_GO if actor.operator else TELL, stopped=True
            )
        return view

    async def set_limits(self, actor: Actor, tenant: str, user: str, changes: dict[str, int]) -> BoxView:
        """Disk, memory, pids and CPU hold at once, the rest from the next start on. Invalid: no such limit, out of bounds.
        Refused: a disk image that would shrink; Conflict: one that grows in a stopped box only. Nothing changes then."""
        for name, value in changes.items():
            _check_limit(name, value)
        target = await self._doors.user(Action.BOX_LIMITS, actor, tenant, user, changes)
        box = await self._home(target)
        async with self._links.slot(box.id).hold("its limits are being set"):
            box = await self._parts.store.boxes.get(box.id)
            limits = replace(box.limits, **changes)
            if box.uid and box.observed is not Observed.ABSENT:
                with _told(actor):
                    await self._parts.driver.set_limits(box.id, limits)
            await self._parts.store.boxes.update(box.id, limits=limits)
        view = await self._shown(actor, target)
        later = [name for name in FROM_NEXT_START if getattr(limits, name) != getattr(box.limits, name)]
        return replace(
            view, from_next_start=later if view.observed in (State.RUNNING.value, State.PAUSED.value) else []
        )

    async def _home(self, user: User) -> Box:
        return await home_of(self._parts, user)

    async def _shown(self, actor: Actor, user: User) -> BoxView:
        return await self.seen(actor, user, await self._home(user))

    async def _looked(self, box: Box) -> tuple[Sight | None, DiskUse | None]:
        sight = await self._sight(box)
        return sight, await self._meter.use(box, sight)

    async def _loose(self, box: Box) -> dict[str, Any]:
        """Fields of its view: whatever is in the box otherwise than as a placeholder is said wherever the box is shown."""
        credentials = self._parts.store.credentials
        try:
            loose = [each for each in await credentials.bindings(box.user) if each.use is not Use.PLACEHOLDER]
        except NotFound:
            return {}  # the user was removed meanwhile
        names = {each.id: each.name for each in await credentials.visible(box.user)} if loose else {}
        of = {
            use: sorted({names[b.credential] for b in loose if b.use is use and b.credential in names}) for use in Use
        }
        return {"mounted": of[Use.MOUNTED], "injected": of[Use.INJECT]}

    async def _sight(self, box: Box) -> Sight | None:
        if not box.uid or not is_here(self._parts, box):
            return None
        try:
            return await self._parts.driver.observe(box.id)
        except NotFound:
            return None

    def _view(self, actor: Actor, user: User, box: Box, sight: Sight | None, disk: DiskUse | None) -> BoxView:
        disk = disk or DiskUse(UNBOUNDED, 0 if not box.uid else -1)
        lacks, observed = weak(self._parts), _observed(box, sight)
        if box.uid and disk.by == UNBOUNDED and NO_QUOTA not in lacks:  # made before the host could do better
            lacks.append(NO_QUOTA)
        return BoxView(
            user=user.name,
            tenant=user.tenant_name,
            driver=box.driver,
            desired=box.rest.value or box.desired.value,
            observed=observed.value,
            image=box.image,
            image_wanted=box.image_wanted,
            image_bound=box.image_bound,
            uid=sight.uid if sight is not None and sight.uid else box.uid,
            pids=sight.pids if sight is not None else 0,
            memory_bytes=sight.memory_bytes if sight is not None else 0,
            disk_bytes=disk.used,
            disk_limit_bytes=box.limits.disk,
            disk_by=disk.by,
            disk_full=disk.full,
            inodes=disk.inodes,
            inode_limit=disk.inode_limit or box.limits.inodes,
            disk_problem=f"{disk.problem}: {disk.holder}" if disk.holder and actor.operator else disk.problem,
            started_at=box.started_at,
            last_active_at=box.last_active_at,
            limits={name: int(value) for name, value in asdict(box.limits).items()},
            generation=box.generation,
            weak=lacks,
            box=box.id,
            effective=effective(box.limits, together(self._parts)),
            egress=dict(self._parts.egress.facts(box.id)) if self._parts.egress is not None else {},
            rested_at=box.rested_at if observed is not State.RUNNING else None,
            quarantine=box.quarantine if box.quarantined_at is not None else None,
        )


@contextmanager
def _told(actor: Actor) -> Iterator[None]:
    """To an operator a refusal says also what is of the host. A new error: others may wait for the same one."""
    try:
        yield
    except RingfenceError as error:
        if not error.of_host or not actor.operator:
            raise
        raise type(error)(f"{error.message}: {error.of_host}", remedy=error.remedy, **error.details) from error


def _observed(box: Box, sight: Sight | None) -> State:
    """What the driver sees now. The row knows more: that a stopped box was not meant to stop, that its tree is packed."""
    known = state_of(box)
    if sight is None:
        return known
    if sight.state is Observed.RUNNING:
        return State.PAUSED if sight.frozen else State.RUNNING
    if sight.state is Observed.STOPPED and known in (State.LOST, State.ARCHIVED):
        return known
    return State(sight.state.value)


def _check_limit(name: str, value: int) -> None:
    bounds = LIMIT_BOUNDS.get(name)
    if bounds is None:
        raise Invalid(f"no such limit: {name!r}", remedy=f"one of {', '.join(LIMIT_BOUNDS)}")
    low, high = bounds
    if type(value) is not int or not low <= value <= high:
        raise Invalid(f"limit {name} = {value!r} is not allowed", remedy=f"a whole number from {low} to {high}")
