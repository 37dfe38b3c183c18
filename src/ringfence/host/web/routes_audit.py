"""The audit, for operators. Shapes only: the engine decides who may."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from ringfence.host.kernel.audit import Lane
from ringfence.host.web import shapes_audit as shapes
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst

router = APIRouter(prefix="/v1/audit", route_class=KnownFirst, tags=["audit"])
_ALL = frozenset(Lane) - {Lane.TRAFFIC}
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("")
async def audit(
    engine: CurrentEngine,
    actor: CurrentActor,
    lane: shapes.LaneName | None = None,
    since: datetime | None = None,
    before: Annotated[str | None, Query(max_length=100)] = None,
    limit: Limit = 100,
) -> shapes.AuditList:
    """Newest first, of one lane or of all. `since`: ISO 8601, UTC when it names no zone. `before`: the id of a row."""
    lanes = _ALL if lane is None else {Lane(lane)}
    rows = await engine.audits.list(actor, lanes, _utc(since), before, limit)
    return shapes.AuditList.model_validate({"rows": rows})


@router.get("/traffic")
async def traffic(engine: CurrentEngine, actor: CurrentActor, limit: Limit = 100) -> shapes.TrafficList:
    """What this server remembers of what its boxes sent, newest first. In memory, and no evidence."""
    return shapes.TrafficList.model_validate(await engine.audits.traffic(actor, limit))


@router.get("/verify")
async def verify(engine: CurrentEngine, actor: CurrentActor) -> shapes.AuditReport:
    """Walks every chain: about a second for 20,000 rows."""
    return shapes.AuditReport.model_validate((await engine.audits.verify(actor)).as_json())


def _utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
