"""A user's own data as one archive, and what a removal would take. Shapes only: the engine decides who may.

The archive lasts no longer than who asked for it may speak (download.py); one that is cut off has no end that gzip would take.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from ringfence.host.web import shapes_usage as shapes
from ringfence.host.web.download import Download, while_present
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name

router = APIRouter(prefix="/v1/tenants/{tenant}/users/{user}", route_class=KnownFirst, tags=["export"])
_BYTES: dict[str, Any] = {"content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}}


@router.get(
    "/export", response_class=StreamingResponse, responses={200: _BYTES | {"description": "a .tar.gz, as it is made"}}
)
async def export(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> Response:
    """What the user said and may read, runs and steps of theirs, files of their box; names of credentials, never a value."""
    async with AsyncExitStack() as stack:
        presence = engine.people.presence(actor)
        stack.callback(presence.close)
        data = await stack.enter_async_context(engine.exports.open(actor, tenant, user))
        return Download(while_present(presence, data), "application/gzip", stack.pop_all())


@router.get("/removal")
async def removal(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.RemovalShape:
    """What removing the user would take, and what would stay. Changes nothing; for operators, and recorded."""
    found = await engine.exports.removal(actor, tenant, user)
    return shapes.RemovalShape.model_validate({"tenant": tenant, "user": user, **asdict(found)})
