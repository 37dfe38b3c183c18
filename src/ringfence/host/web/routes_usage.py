"""What boxes used, day by day. Shapes only: the engine decides who may."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ringfence.host.web import shapes_usage as shapes
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name

router = APIRouter(prefix="/v1/tenants/{tenant}", route_class=KnownFirst, tags=["usage"])
First = Annotated[str | None, Query(alias="from", max_length=40, description="a day of UTC: 2026-01-31")]
Last = Annotated[str | None, Query(alias="to", max_length=40, description="included; without both: the last 30 days")]


@router.get("/users/{user}/usage")
async def usage(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, first: First = None, last: Last = None
) -> shapes.UsageList:
    return shapes.report(await engine.usage.user(actor, tenant, user, first, last))


@router.get("/usage")
async def tenant_usage(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, first: First = None, last: Last = None
) -> shapes.UsageList:
    """Of every user, also of those who are removed: for operators."""
    return shapes.report(await engine.usage.tenant(actor, tenant, first, last))
