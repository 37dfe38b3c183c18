"""Saying something: an answer at once, or the turn as it happens. Shapes only."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ringfence.host.kernel.errors import TooLarge
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES
from ringfence.host.web import feed, shapes
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["threads"])
STREAM = "text/event-stream"
_ANSWERS: dict[int | str, dict[str, Any]] = {
    202: {
        "model": shapes.AcceptedShape,
        "description": "accepted and durable. Asked for as text/event-stream: an event `accepted` with the same JSON, "
        "then the turn's events and what happens live, to the end of the turn",
        "content": {STREAM: {"schema": {"type": "string"}}},
    }
}


@router.post(
    "/tenants/{tenant}/threads/{thread}/messages",
    status_code=202,
    responses=_ANSWERS,
    response_model=shapes.AcceptedShape,
)
async def say(
    request: Request,
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    thread: Name,
    new: shapes.NewMessage,
) -> Any:
    _check_size(new.text)
    done = await engine.threads.say(actor, tenant, thread, new.text, new.mode, new.key, new.attachments)
    accepted = shapes.AcceptedShape(
        thread=thread,
        message=done.message.id,
        turn=done.turn.id,
        run=done.run.id,
        cursor=done.message.cursor,
        repeated=done.repeated,
        steered=done.steered,
    )
    if not _wants_stream(request):
        return accepted
    return _streamed(request, feed.Reader(engine, actor, tenant, thread, accepted.cursor, accepted.turn), accepted)


def _streamed(request: Request, reader: feed.Reader, accepted: shapes.AcceptedShape) -> Response:
    return feed.answer(reader, [], request.app.state.stopping, 202, accepted=accepted.model_dump())


def _check_size(text: str) -> None:
    size = len(text.encode())
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"the message has {size} bytes; the limit is {MAX_MESSAGE_BYTES}",
            remedy="put it into a file of the box and attach it: ringfence files put, then say --attach PATH",
            size=size,
            limit=MAX_MESSAGE_BYTES,
        )


def _wants_stream(request: Request) -> bool:
    """Named with a weight above 0 (RFC 9110 section 12.5.1); a wildcard is answered with JSON."""
    for line in request.headers.getlist("accept"):
        for each in line.split(","):
            kind, *parameters = (part.strip().lower() for part in each.split(";"))
            if kind == STREAM and not any(part.strip("0.") == "q=" for part in parameters):
                return True
    return False
