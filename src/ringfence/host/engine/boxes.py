"""Boxes as people and operators see and steer them."""

from __future__ import annotations

import asyncio
import builtins
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.links import Links
from ringfence.host.engine.parts import Parts, weak
from ringfence.host.kernel.access import Action, Answer, decide, towards_user
from ringfence.host.kernel.boxes import Box, Desired, Observed
from ringfence.host.kernel.errors import Invalid, NotFound, RingfenceError
from ringfence.host.kernel.people import Actor, User
from ringfence.host.kernel.ports import Sight
from ringfence.host.kernel.settings import LIMIT_BOUNDS

USAGE_SECONDS = 2.0  # a tree of a million files takes longer: its size is then said to be unknown (-1)


@dataclass(frozen=True, slots=True)
class BoxView:
    """One box. Sizes in bytes; disk_bytes -1: not measured."""

    user: str
    tenant: str
    driver: str
    desired: str
    observed: str
    image: str
    uid: int
    pids: int
    memory_bytes: int
    disk_bytes: int
    disk_limit_bytes: int | None
    started_at: datetime | None
    last_active_at: datetime | None
    limits: dict[str, int]
    generation: int
    weak: list[str]  # what this host cannot enforce
    box: str
    sessions: list[str] = field(default_factory=list)


class BoxKeeper:
    def __init__(self, parts: Parts, doors: Doors, links: Links, bringup: BringUp) -> None:
        self._parts, self._doors, self._links, self._bringup = parts, doors, links, bringup

    async def list(self, actor: Actor, tenant: str | None) -> builtins.list[BoxView]:
        """Every box that the actor may see. Disk use is not measured here: it walks the tree."""
        names = [row.name for row in await self._parts.store.tenants.all()] if tenant is None else [tenant]
        if tenant is not None:
            await self._doors.tenant(Action.TENANT_SEE, actor, tenant)
        users: dict[str, User] = {}
        for name in names:
            for user in await self._parts.store.users.all(name):
                if decide(Action.BOX_SEE, actor, towards_user(actor, user)).answer is Answer.ALLOW:
                    users[user.id] = user
        boxes = [b for b in await self._parts.store.boxes.all() if b.user in users and b.desired is not Desired.REMOVED]
        sights = await asyncio.gather(*(self._sight(box) for box in boxes))
        return [self._view(users[b.user], b, s, -1) for b, s in zip(boxes, sights, strict=True)]

    async def show(self, actor: Actor, tenant: str, user: str) -> BoxView:
        target = await self._doors.user(Action.BOX_SEE, actor, tenant, user)
        return await self._shown(target)

    async def start(self, actor: Actor, tenant: str, user: str) -> BoxView:
        target = await self._doors.user(Action.BOX_START, actor, tenant, user)
        box = await self._home(target)
        await self._bringup.ensure(box.id)
        return await self._shown(target)

    async def stop(self, actor: Actor, tenant: str, user: str) -> BoxView:
        """Every process of the box ends. A run that is under way is redriven, and starts the box again."""
        target = await self._doors.user(Action.BOX_STOP, actor, tenant, user)
        box = await self._home(target)
        await self._bringup.down(box.id, Desired.STOPPED)
        return await self._shown(target)

    async def set_limits(self, actor: Actor, tenant: str, user: str, changes: dict[str, int]) -> BoxView:
        """Memory, pids and CPU hold at once, the rest from the next start on. Invalid: no such limit, out of bounds."""
        for name, value in changes.items():
            _check_limit(name, value)
        target = await self._doors.user(Action.BOX_LIMITS, actor, tenant, user)
        box = await self._home(target)
        async with self._links.slot(box.id).lock:
            box = await self._parts.store.boxes.get(box.id)
            box = await self._parts.store.boxes.update(box.id, limits=replace(box.limits, **changes))
            if box.observed is Observed.RUNNING:
                await self._parts.driver.set_limits(box.id, box.limits)
        return await self._shown(target)

    async def _home(self, user: User) -> Box:
        return await self._parts.store.boxes.home_of(user, self._parts.driver.name, self._parts.config.limits)

    async def _shown(self, user: User) -> BoxView:
        box = await self._home(user)
        return self._view(user, box, await self._sight(box), await self._usage(box))

    async def _sight(self, box: Box) -> Sight | None:
        if not box.uid:
            return None
        try:
            return await self._parts.driver.observe(box.id)
        except NotFound:
            return None

    async def _usage(self, box: Box) -> int:
        if not box.uid:
            return 0
        try:
            async with asyncio.timeout(USAGE_SECONDS), self._parts.driver.files(box.id) as files:
                return (await files.usage())[0]
        except (TimeoutError, RingfenceError):
            return -1

    def _view(self, user: User, box: Box, sight: Sight | None, disk: int) -> BoxView:
        return BoxView(
            user=user.name,
            tenant=user.tenant_name,
            driver=box.driver,
            desired=box.desired.value,
            observed=_observed(box, sight).value,
            image=box.image,
            uid=sight.uid if sight is not None and sight.uid else box.uid,
            pids=sight.pids if sight is not None else 0,
            memory_bytes=sight.memory_bytes if sight is not None else 0,
            disk_bytes=disk,
            disk_limit_bytes=None,
            started_at=box.started_at,
            last_active_at=box.last_active_at,
            limits={name: int(value) for name, value in asdict(box.limits).items()},
            generation=box.generation,
            weak=weak(self._parts),
            box=box.id,
        )


def _observed(box: Box, sight: Sight | None) -> Observed:
    """What the driver sees now; the row knows one thing more: that a stopped box was not meant to stop."""
    if sight is None:
        return box.observed
    if sight.state is Observed.STOPPED and box.observed is Observed.LOST:
        return Observed.LOST
    return sight.state


def _check_limit(name: str, value: int) -> None:
    bounds = LIMIT_BOUNDS.get(name)
    if bounds is None:
        raise Invalid(f"no such limit: {name!r}", remedy=f"one of {', '.join(LIMIT_BOUNDS)}")
    low, high = bounds
    if type(value) is not int or not low <= value <= high:
        raise Invalid(f"limit {name} = {value!r} is not allowed", remedy=f"a whole number from {low} to {high}")
