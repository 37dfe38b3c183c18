"""The box's files. Bodies are streamed both ways and never held; paths are bytes and never decoded. A body that lasts
longer than its sender may speak is cut off.

A download is `application/octet-stream` and an attachment, always: what a box holds must not become a page of ours.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from ringfence.host.kernel.errors import Failed, Invalid
from ringfence.host.web import shapes, shaping
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name, file_path, raw_query
from ringfence.host.web.ports import Presence

router = APIRouter(prefix="/v1/tenants/{tenant}/users/{user}/files", route_class=KnownFirst, tags=["files"])
_PATH: dict[str, Any] = {
    "parameters": [
        {
            "name": "path",
            "in": "query",
            "required": True,
            "description": "percent-encoded bytes; relative to HOME unless below /home/user or /workspace",
            "schema": {"type": "string"},
        }
    ]
}
_BYTES: dict[str, Any] = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
_SAFE_HEADERS = {
    "Content-Disposition": "attachment",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "no-store",
}


@router.get(
    "", openapi_extra=_PATH, response_class=StreamingResponse, responses={200: _BYTES | {"description": "the bytes"}}
)
async def file_get(request: Request, engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> Response:
    async with AsyncExitStack() as stack:
        presence = engine.people.presence(actor)
        stack.callback(presence.close)
        opened = engine.files.get(actor, tenant, user, file_path(request))
        info, data = await stack.enter_async_context(opened)
        body = _exactly(info.size, _while_present(presence, data), stack.pop_all())
    headers = {**_SAFE_HEADERS, "Content-Length": str(info.size)}
    return StreamingResponse(body, media_type="application/octet-stream", headers=headers)


async def _exactly(size: int, data: AsyncIterator[bytes], stack: AsyncExitStack) -> AsyncGenerator[bytes, None]:
    """`size` bytes: what a file grew by in between is left out; one that shrank cuts the answer off, visibly."""
    async with stack:
        left = size
        async for chunk in data:
            yield chunk[:left]
            left -= len(chunk[:left])
            if left == 0:
                return
        if left:
            raise Failed(f"the file shrank while it was read: {left} bytes are missing")


@router.put("", openapi_extra=_PATH | {"requestBody": _BYTES | {"required": True}}, response_model_exclude_none=True)
async def file_put(
    request: Request,
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    user: Name,
    mode: Annotated[str, Query(description="permission bits in octal")] = "644",
) -> shapes.FileShape:
    path, bits = file_path(request), _mode(mode)
    presence = engine.people.presence(actor)
    try:
        data = _while_present(presence, request.stream())
        info = await engine.files.put(actor, tenant, user, path, data, bits)
    except ClientDisconnect:
        raise Invalid("the upload ended early; nothing was changed", remedy="send it again") from None
    finally:
        presence.close()
    return shapes.FileShape(**shaping.file(info))


async def _while_present(presence: Presence, data: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Unauthenticated, between two pieces. Asks the store nothing: files are minutes at the most."""
    async for piece in data:
        presence.check()
        yield piece
    presence.check()


def _mode(text: str) -> int:
    if not re.fullmatch("0?[0-7]{1,3}", text):
        raise Invalid(f"mode {text[:20]!r} is not an octal number up to 777", remedy="for example mode=644")
    return int(text, 8)


@router.delete("", status_code=204, openapi_extra=_PATH)
async def file_remove(
    request: Request, engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, recursive: bool = False
) -> None:
    await engine.files.remove(actor, tenant, user, file_path(request), recursive)


@router.get("/stat", openapi_extra=_PATH, response_model_exclude_none=True)
async def file_stat(
    request: Request, engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name
) -> shapes.FileShape:
    return shapes.FileShape(**shaping.file(await engine.files.stat(actor, tenant, user, file_path(request))))


@router.get("/list", openapi_extra=_PATH)
async def file_list(
    request: Request,
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    user: Name,
    after: Annotated[str | None, Query(description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> shapes.FileList:
    given = raw_query(request, "after")
    after_name = shaping.unb64(given.decode("ascii", "replace"), "after") if given else None
    found = await engine.files.list(actor, tenant, user, file_path(request), after_name, limit)
    entries = [shapes.FileShape(**shaping.file(each)) for each in found]
    return shapes.FileList(entries=entries, next=shaping.b64(found[-1].name) if len(found) == limit else None)
