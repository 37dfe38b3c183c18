"""Boxes of the double: a state and a generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.people import Actor
from tests.support.double.world import World, now


@dataclass
class BoxView:
    user: str
    tenant: str
    observed: str = "stopped"
    desired: str = "stopped"
    generation: int = 0
    driver: str = "double"
    image: str = "host"
    image_wanted: str = ""
    image_bound: str = "host"
    uid: int = 70001
    pids: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    disk_limit_bytes: int | None = None
    disk_by: str = "image"
    disk_full: bool = False
    inodes: int = 0
    inode_limit: int | None = None
    disk_problem: str = ""
    started_at: datetime | None = None
    last_active_at: datetime | None = None
    sessions: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=lambda: {"memory": 1 << 30, "pids": 512, "cpu_milli": 2000})
    effective: dict[str, int] = field(default_factory=dict)
    from_next_start: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    mounted: list[str] = field(default_factory=list)
    injected: list[str] = field(default_factory=list)
    egress: dict[str, Any] = field(default_factory=dict)
    box: str = "abcdefghijklmnop"
    rested_at: datetime | None = None
    quarantine: str | None = None


@dataclass
class BoxKeeper:
    world: World
    views: dict[tuple[str, str], BoxView] = field(default_factory=dict)

    async def list(self, actor: Actor, tenant: str | None) -> list[BoxView]:
        seen = [key for key, user in self.world.users.items() if actor.operator or user == actor.user]
        return [await self.show(actor, *key) for key in seen if tenant in (None, key[0])]

    async def show(self, actor: Actor, tenant: str, user: str) -> BoxView:
        self.world.user(actor, tenant, user)
        return self.views.setdefault((tenant, user), BoxView(user, tenant))

    async def start(self, actor: Actor, tenant: str, user: str) -> BoxView:
        view = await self.show(actor, tenant, user)
        if view.observed != "running":
            view.observed = view.desired = "running"
            view.generation += 1
            view.started_at = now()
        return view

    async def stop(self, actor: Actor, tenant: str, user: str) -> BoxView:
        view = await self.show(actor, tenant, user)
        view.observed = view.desired = "stopped"
        return view

    async def set_limits(self, actor: Actor, tenant: str, user: str, changes: dict[str, int]) -> BoxView:
        self.world.operator(actor)
        view = await self.show(actor, tenant, user)
        unknown = set(changes) - set(view.limits)
        if unknown:
            raise Invalid(f"no such limit: {sorted(unknown)[0]!r}", remedy=f"one of {sorted(view.limits)}")
        view.limits.update(changes)
        return view


@dataclass
class LifeVerbs:
    keeper: BoxKeeper

    async def pause(self, actor: Actor, tenant: str, user: str, *, force: bool = False) -> BoxView:
        view = await self.keeper.show(actor, tenant, user)
        view.observed = view.desired = "paused"
        return view

    async def resume(self, actor: Actor, tenant: str, user: str) -> BoxView:
        return await self.keeper.start(actor, tenant, user)

    async def quarantine(self, actor: Actor, tenant: str, user: str, why: str) -> BoxView:
        view = await self.keeper.show(actor, tenant, user)
        view.quarantine = why
        return view

    async def release(self, actor: Actor, tenant: str, user: str) -> BoxView:
        view = await self.keeper.show(actor, tenant, user)
        view.quarantine = None
        return view

    async def upgrade(
        self,
        actor: Actor,
        tenant: str,
        user: str,
        *,
        force: bool = False,
        drain: float = 0.0,
        image: str | None = None,
    ) -> tuple[BoxView, list[str]]:
        return await self.keeper.show(actor, tenant, user), []
