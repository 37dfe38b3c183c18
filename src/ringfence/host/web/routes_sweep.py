"""What was left behind, found and taken away, for operators. Shapes only: the engine decides who may."""

from __future__ import annotations

from fastapi import APIRouter

from ringfence.host.web import shapes_sweep as shapes
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst

router = APIRouter(prefix="/v1/sweep", route_class=KnownFirst, tags=["sweep"])


@router.post("")
async def sweep(
    engine: CurrentEngine, actor: CurrentActor, wanted: shapes.SweepWish | None = None
) -> shapes.SweepShape:
    """As the server does by itself at its start and every hour; `boxes` takes away what that only tells."""
    wish = wanted or shapes.SweepWish()
    report = await engine.debris.sweep(actor, dry_run=wish.dry_run, boxes=wish.boxes)
    return shapes.SweepShape.model_validate(report.as_json())
