"""A backup of the whole installation, as a stream. Shapes only: the engine decides who may.

What goes wrong before the first byte is an answer like any other; later it is the end of the stream, which whoever reads it
takes for no backup.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.life.backups import Wish
from ringfence.host.web import shapes_backup as shapes
from ringfence.host.web.download import Download
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst

router = APIRouter(prefix="/v1/backup", route_class=KnownFirst, tags=["backup"])
_TAR: dict[str, Any] = {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}


@router.post("", response_class=StreamingResponse, responses={200: _TAR | {"description": "the file"}})
async def backup_create(
    engine: CurrentEngine, actor: CurrentActor, wanted: shapes.BackupWish | None = None
) -> Response:
    wish = Wish(**(wanted or shapes.BackupWish()).model_dump())
    parts = await engine.backups.create(actor, wish)
    try:
        first = await anext(parts)
    except BaseException:
        await parts.aclose()
        raise
    return Download(_all(first, parts), "application/x-tar")


async def _all(first: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        yield first
        try:
            async for part in parts:
                yield part
        except RingfenceError:
            return  # its last member says what it was
