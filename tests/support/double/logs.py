"""Logs of boxes, as the web asks for them: what a test has put there."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ringfence.host.kernel.life.logs import LogLine, newest
from ringfence.host.kernel.people import Actor
from tests.support.double.boxes import BoxKeeper
from tests.support.double.world import now


@dataclass(frozen=True)
class LogView:
    lines: list[LogLine]
    until: datetime
    more: bool


@dataclass
class LogReader:
    keeper: BoxKeeper
    kept: list[LogLine] = field(default_factory=list)
    asked: list[datetime | None] = field(default_factory=list)

    async def read(self, actor: Actor, tenant: str, user: str, since: datetime | None, lines: int) -> LogView:
        await self.keeper.show(actor, tenant, user)
        self.asked.append(since)
        found, more = newest([line for line in self.kept if since is None or line.at >= since], lines)
        return LogView(found, now(), more)
