"""The double as one object, as the web asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence.host.kernel.ids import TenantId
from ringfence.host.kernel.people import Actor, Tenant
from tests.support.double.agent import Agent
from tests.support.double.boxes import BoxKeeper
from tests.support.double.commands import Commands
from tests.support.double.files import Files
from tests.support.double.people import People
from tests.support.double.runs import Runs
from tests.support.double.threads import Threads
from tests.support.double.world import World, now


@dataclass
class Health:
    world: World
    broken: bool = False

    async def ping(self) -> dict[str, Any]:
        if self.broken:
            raise RuntimeError("the inside of a failure, with a secret")
        return {"ok": True, "version": "0"}

    async def status(self, actor: Actor) -> dict[str, Any]:
        parts = {"store": {"ok": True}, "driver": {"ok": True}}
        return {"ok": True, "version": "0", "mode": "root", "parts": parts, "boxes": {"running": 0, "total": 0}}


class Engine:
    """Starts with the tenants `default` and `other`."""

    def __init__(self, folder: Path) -> None:
        world = World(folder)
        for name in ("default", "other"):
            world.tenants[name] = Tenant(TenantId(world.id("ten")), name, now())
        self.world = world
        self.people = People(world)
        self.boxes = BoxKeeper(world)
        self.commands = Commands(world, self.boxes)
        self.files = Files(world)
        self.agent = Agent(world)
        self.threads = Threads(world, self.agent)
        self.runs = Runs(self.agent)
        self.health = Health(world)

    async def start(self) -> None: ...

    async def stop(self) -> None:
        for command in self.commands.started:
            await command.stop(0.1)
            await command.release()
            command.close()
        await self.agent.stop()
