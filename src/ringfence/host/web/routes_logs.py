"""The log of a box. Shapes only: the engine decides who may."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name
from ringfence.host.web.routes_boxes import BOX

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["boxes"])


class LogLineShape(BaseModel):
    id: str
    at: datetime
    source: str = Field(
        description="life, limit, egress, audit; guest: what the box's own PID 1 wrote, to be believed by nobody"
    )
    text: str = Field(description="one line of printable characters")


class LogLines(BaseModel):
    """Oldest first. `until`: give it as `since`. `more`: older lines were left out."""

    lines: list[LogLineShape]
    until: datetime
    more: bool


@router.get(f"{BOX}/logs")
async def box_logs(
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    user: Name,
    since: datetime | None = None,
    lines: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> LogLines:
    """The newest lines. `since`: ISO 8601, UTC when it names no zone."""
    moment = since.replace(tzinfo=UTC) if since is not None and since.tzinfo is None else since
    found = await engine.logs.read(actor, tenant, user, moment, lines)
    told = [LogLineShape(id=each.id, at=each.at, source=each.source.value, text=each.text) for each in found.lines]
    return LogLines(lines=told, until=found.until, more=found.more)
