"""What boxes used, exports and rehearsals of the double: made up, for whoever may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ringfence.host.engine.life.usage import Report
from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.life.exporting import Removal
from ringfence.host.kernel.life.usage import Amount, DayUse, span
from ringfence.host.kernel.people import Actor
from tests.support.double.world import World, now

HOUR = 3_600_000
USED = Amount(1500, 60_000, 2500, 1024 * HOUR, 2 * 1024 * HOUR, 10, 2048)


@dataclass
class UsageReports:
    world: World
    names: list[str] = field(default_factory=lambda: ["alice", "zoë"])

    async def user(self, actor: Actor, tenant: str, user: str, first: str | None, last: str | None) -> Report:
        return self._report(tenant, [self.world.user(actor, tenant, user).name], first, last)

    async def tenant(self, actor: Actor, tenant: str, first: str | None, last: str | None) -> Report:
        self.world.operator(actor)
        return self._report(tenant, self.names, first, last)

    def _report(self, tenant: str, names: list[str], first: str | None, last: str | None) -> Report:
        begin, end = span(first, last, now().date())
        rows = [DayUse(begin, UserId(f"usr_{name}"), name, USED, 2, 1, 95) for name in names]
        return Report(tenant, begin, end, rows)


@dataclass
class Exports:
    world: World
    data: bytes = b"an archive"
    broken: bool = False

    @asynccontextmanager
    async def open(self, actor: Actor, tenant: str, user: str) -> AsyncIterator[AsyncIterator[bytes]]:
        self.world.user(actor, tenant, user)
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield self.data
        if self.broken:
            raise Failed("the disk under it is gone")

    async def removal(self, actor: Actor, tenant: str, user: str) -> Removal:
        self.world.operator(actor)
        self.world.user(actor, tenant, user)
        box = {"box": "b" * 16, "observed": "running", "disk_bytes": 1536, "inodes": 7}
        return Removal(box, ["alone"], ["#team"], ["run_1"], 2, ["key"], ["lent"], 3, 1, 12)
