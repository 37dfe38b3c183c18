"""The life of boxes: pause, resume, quarantine, release, upgrade. Shapes only."""

from __future__ import annotations

from fastapi import APIRouter

from ringfence.host.web import shapes, shapes_life, shaping
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name
from ringfence.host.web.routes_boxes import BOX

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["boxes"])


@router.post(f"{BOX}/pause")
async def box_pause(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, wanted: shapes_life.Pause | None = None
) -> shapes.BoxShape:
    return shaping.box(await engine.life.pause(actor, tenant, user, force=wanted is not None and wanted.force))


@router.post(f"{BOX}/resume")
async def box_resume(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.BoxShape:
    return shaping.box(await engine.life.resume(actor, tenant, user))


@router.post(f"{BOX}/quarantine")
async def box_quarantine(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, wanted: shapes_life.Quarantine
) -> shapes.BoxShape:
    return shaping.box(await engine.life.quarantine(actor, tenant, user, wanted.reason))


@router.post(f"{BOX}/release")
async def box_release(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.BoxShape:
    return shaping.box(await engine.life.release(actor, tenant, user))


@router.post(f"{BOX}/upgrade")
async def box_upgrade(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, wanted: shapes_life.Upgrade | None = None
) -> shapes_life.Upgraded:
    asked = wanted or shapes_life.Upgrade()
    view, drifted = await engine.life.upgrade(
        actor, tenant, user, force=asked.force, drain=asked.drain, image=asked.image
    )
    return shapes_life.Upgraded(box=shaping.box(view), drifted=drifted)
