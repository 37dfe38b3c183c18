"""The double as one object, as the web asks for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ringfence.host.kernel.audit import GENESIS, AuditRow, Lane
from ringfence.host.kernel.audit_check import Finding, Report, Wrong
from ringfence.host.kernel.errors import Refused
from ringfence.host.kernel.ids import TenantId
from ringfence.host.kernel.life.backups import Wish
from ringfence.host.kernel.people import Actor, Tenant
from tests.support.double.agent import Agent
from tests.support.double.boxes import BoxKeeper, LifeVerbs
from tests.support.double.commands import Commands
from tests.support.double.copies import Copies
from tests.support.double.debris import Debris
from tests.support.double.files import Files
from tests.support.double.gates import Gates, Holds
from tests.support.double.logs import LogReader
from tests.support.double.outward import EgressKeeper, EgressLog, Secrets, VaultKeeper
from tests.support.double.people import People
from tests.support.double.runs import Runs
from tests.support.double.threads import Threads
from tests.support.double.usage import Exports, UsageReports
from tests.support.double.world import World, now


@dataclass
class Audits:
    """A record of one row, for operators."""

    broken: bool = False
    asked: tuple[Any, ...] = ()  # of `list`, the last time

    async def list(
        self, actor: Actor, lanes: Collection[Lane], since: datetime | None, before: str | None, limit: int
    ) -> list[dict[str, Any]]:
        self._check(actor)
        self.asked = ({lane.value for lane in lanes}, since, before, limit)
        lane = sorted(lanes)[0]
        row = AuditRow("krn_1", 1, now(), lane, None, "box.start", "box:\x1b[31m", None, {}, GENESIS, "h", "m")
        return [row.as_json()]

    async def traffic(self, actor: Actor, limit: int) -> dict[str, Any]:
        self._check(actor)
        seen = {"at": now(), "box": "b", "host": "example.org", "verdict": "allow", "sent": 1, "received": 2}
        return {"newest": [seen], "totals": [], "dropped": 3}

    async def verify(self, actor: Actor) -> Report:
        self._check(actor)
        report = Report(rows=1, chains=1)
        if self.broken:
            report.add(Finding("krn_1", 1, Wrong.CHANGED, "is not what its hash says"))
        return report

    def _check(self, actor: Actor) -> None:
        if not actor.operator:
            raise Refused("only an operator may do this: audit.read", remedy="ask one")


class Backups:
    async def create(self, actor: Actor, wish: Wish) -> AsyncGenerator[bytes, None]:
        if not actor.operator:
            raise Refused("only an operator may do this: backup", remedy="ask one")

        async def parts() -> AsyncGenerator[bytes, None]:
            yield b"a backup"

        return parts()


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
        self.logs = LogReader(self.boxes)
        self.life, self.copies = LifeVerbs(self.boxes), Copies(self.boxes)
        self.commands = Commands(world, self.boxes)
        self.files = Files(world)
        self.agent = Agent(world)
        self.threads = Threads(world, self.agent)
        self.gates, self.holds = Gates(), Holds()
        self.runs = Runs(self.agent)
        self.health = Health(world)
        self.audits, self.debris, self.backups = Audits(), Debris(), Backups()
        self.usage, self.exports = UsageReports(world), Exports(world)
        self.secrets, self.vault = Secrets(), VaultKeeper()
        self.egress, self.egress_log = EgressKeeper(), EgressLog()

    async def start(self) -> None: ...

    async def stop(self) -> None:
        for command in self.commands.started:
            await command.stop(0.1)
            await command.release()
            command.close()
        await self.agent.stop()
