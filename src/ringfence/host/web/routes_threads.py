"""Threads and their members, messages, turns and events, as pages and as a stream. Shapes only."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from sse_starlette import EventSourceResponse
from starlette.requests import Request

from ringfence.host.kernel.errors import Invalid
from ringfence.host.web import feed, shapes, shaping
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["threads"])
THREAD = "/tenants/{tenant}/threads/{thread}"
PAGE = 200
_Limit = Annotated[int, Query(ge=1, le=1000)]
_After = Annotated[int, Query(ge=0)]


@router.get("/tenants/{tenant}/threads")
async def threads(engine: CurrentEngine, actor: CurrentActor, tenant: Name) -> shapes.ThreadList:
    return shapes.ThreadList(threads=[shaping.thread(each) for each in await engine.threads.list(actor, tenant)])


@router.post("/tenants/{tenant}/threads", status_code=201)
async def thread_add(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, new: shapes.NewThread
) -> shapes.ThreadShape:
    await engine.threads.add(actor, tenant, new.name, new.members, new.parallel)
    return shaping.thread(*await engine.threads.show(actor, tenant, new.name))


@router.get(THREAD)
async def thread_show(engine: CurrentEngine, actor: CurrentActor, tenant: Name, thread: Name) -> shapes.ThreadShape:
    return shaping.thread(*await engine.threads.show(actor, tenant, thread))


@router.put(f"{THREAD}/members/{{user}}", status_code=204)
async def member_add(engine: CurrentEngine, actor: CurrentActor, tenant: Name, thread: Name, user: Name) -> None:
    await engine.threads.set_member(actor, tenant, thread, user, True)


@router.delete(f"{THREAD}/members/{{user}}", status_code=204)
async def member_remove(engine: CurrentEngine, actor: CurrentActor, tenant: Name, thread: Name, user: Name) -> None:
    await engine.threads.set_member(actor, tenant, thread, user, False)


@router.post(f"{THREAD}/break-glass")
async def break_glass(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, thread: Name, new: shapes.NewBreakGlass
) -> shapes.BreakGlassShape:
    return shapes.BreakGlassShape(until=await engine.threads.break_glass(actor, tenant, thread, new.reason))


@router.get(f"{THREAD}/messages")
async def messages(
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    thread: Name,
    before: Annotated[int | None, Query(ge=0)] = None,
    limit: _Limit = PAGE,
) -> shapes.MessageList:
    found = await engine.threads.messages(actor, tenant, thread, before, limit)
    return shapes.MessageList(messages=[shaping.message(each) for each in found])


@router.get(f"{THREAD}/events")
async def events(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, thread: Name, after: _After = 0, limit: _Limit = PAGE
) -> shapes.EventList:
    return shapes.EventList(events=await engine.threads.events(actor, tenant, thread, after, limit))


@router.get(f"{THREAD}/events/stream", response_class=EventSourceResponse)
async def event_stream(
    request: Request, engine: CurrentEngine, actor: CurrentActor, tenant: Name, thread: Name, after: _After = 0
) -> EventSourceResponse:
    """Resumes behind `Last-Event-ID`, else behind `after`. Durable events have their cursor as id; events `delta` and
    `progress` have none: they are live, for the actor's own runs, and are not kept. A comment each 15 s. An event `error` is
    the last when the actor may not read the thread any more, or the token is revoked or expires."""
    reader = feed.Reader(engine, actor, tenant, thread, _last_id(request, after))
    first = await reader.page(reader.cursor)  # errors are answered before it opens
    return feed.answer(reader, first, request.app.state.stopping)


def _last_id(request: Request, after: int) -> int:
    given = request.headers.get("last-event-id")
    if given is None:
        return after
    if not (given.isascii() and given.isdecimal()) or len(given) > 18:
        raise Invalid("Last-Event-ID is not a cursor", remedy="send the id of the last event that you saw")
    return int(given)


@router.get("/turns/{turn}", tags=["runs"])
async def turn_show(engine: CurrentEngine, actor: CurrentActor, turn: Name) -> shapes.TurnShape:
    found = await engine.threads.turn(actor, turn)
    return shapes.TurnShape(
        turn=found.id,
        thread=found.thread,
        state=found.state,
        reason=found.reason,
        reply=found.reply,
        run=found.run,
        message=found.message,
    )
