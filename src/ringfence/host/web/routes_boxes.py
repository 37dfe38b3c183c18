"""Boxes: what they are, start, stop, limits. Shapes only."""

from __future__ import annotations

from fastapi import APIRouter

from ringfence.host.web import shapes, shaping
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["boxes"])
BOX = "/tenants/{tenant}/users/{user}/box"


@router.get("/boxes")
async def boxes(engine: CurrentEngine, actor: CurrentActor, tenant: str | None = None) -> shapes.BoxList:
    return shapes.BoxList(boxes=[shaping.box(each) for each in await engine.boxes.list(actor, tenant)])


@router.get(BOX)
async def box_show(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.BoxShape:
    return shaping.box(await engine.boxes.show(actor, tenant, user))


@router.post(f"{BOX}/start")
async def box_start(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.BoxShape:
    return shaping.box(await engine.boxes.start(actor, tenant, user))


@router.post(f"{BOX}/stop")
async def box_stop(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.BoxShape:
    return shaping.box(await engine.boxes.stop(actor, tenant, user))


@router.patch(f"{BOX}/limits")
async def box_limits(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, new: shapes.NewLimits
) -> shapes.BoxShape:
    return shaping.box(await engine.boxes.set_limits(actor, tenant, user, new.model_dump()))
