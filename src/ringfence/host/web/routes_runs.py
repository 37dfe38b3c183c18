"""Runs, health and status. Shapes only."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ringfence.host.web import shapes, shaping
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["runs"])


@router.get("/health", tags=["health"])
async def health(engine: CurrentEngine) -> shapes.HealthAnswer:
    """The one route that asks nobody who they are, and tells nothing worth knowing."""
    return shapes.HealthAnswer(**await engine.health.ping())


@router.get("/status", tags=["health"])
async def status(engine: CurrentEngine, actor: CurrentActor) -> shapes.StatusAnswer:
    return shapes.StatusAnswer(**await engine.health.status(actor))


@router.get("/tenants/{tenant}/runs", response_model_exclude_none=False)
async def runs(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> shapes.RunList:
    found = await engine.runs.list(actor, tenant, limit)
    return shapes.RunList(runs=[shaping.run(each, steps=False) for each in found])


@router.get("/runs/{run}")
async def run_show(engine: CurrentEngine, actor: CurrentActor, run: Name) -> shapes.RunShape:
    return shaping.run(await engine.runs.show(actor, run), steps=True)


@router.post("/runs/{run}/cancel", status_code=202)
async def run_cancel(engine: CurrentEngine, actor: CurrentActor, run: Name) -> shapes.RunShape:
    """The run ends as soon as its loop does. One that has ended is answered as it is."""
    await engine.runs.cancel(actor, run)
    return shaping.run(await engine.runs.show(actor, run), steps=False)


@router.post("/runs/{run}/redrive", status_code=202)
async def run_redrive(engine: CurrentEngine, actor: CurrentActor, run: Name) -> shapes.RunShape:
    """A failed run is tried again, with what it has done so far. 409 when it would end the same way."""
    await engine.runs.redrive(actor, run)
    return shaping.run(await engine.runs.show(actor, run), steps=False)
