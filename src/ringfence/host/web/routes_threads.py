"""Threads, messages, turns and their events, as pages and as a stream. Shapes only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request

from ringfence.host.kernel.errors import Invalid, RingfenceError, TooLarge
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES
from ringfence.host.web import shapes, shaping
from ringfence.host.web.login import CurrentActor, CurrentEngine
from ringfence.host.web.names import Name
from ringfence.host.web.ports import Engine
from ringfence.host.web.race import race

router = APIRouter(prefix="/v1", tags=["threads"])
THREAD = "/tenants/{tenant}/threads/{thread}"
PAGE = 200
HEARTBEAT_SECONDS = 15
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


@router.post(f"{THREAD}/messages", status_code=202)
async def say(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, thread: Name, new: shapes.NewMessage
) -> shapes.AcceptedShape:
    size = len(new.text.encode("utf-8", "surrogatepass"))
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"the message has {size} bytes; the limit is {MAX_MESSAGE_BYTES}",
            remedy="put it into a file of the box and name the file: ringfence files put",
            size=size,
            limit=MAX_MESSAGE_BYTES,
        )
    done = await engine.threads.say(actor, tenant, thread, new.text, new.mode, new.key)
    return shapes.AcceptedShape(
        thread=thread,
        message=done.message.id,
        turn=done.turn.id,
        run=done.run.id,
        cursor=done.message.cursor,
        repeated=done.repeated,
    )


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
    """Resumes behind `Last-Event-ID`, else behind `after`; a comment each 15 s while nothing happens."""
    cursor = _last_id(request, after)
    first = await engine.threads.events(actor, tenant, thread, cursor, PAGE)  # errors are answered before it opens
    stopping: asyncio.Event = request.app.state.stopping
    body = _stream(engine, actor, (tenant, thread), cursor, first, stopping)
    return EventSourceResponse(body, ping=HEARTBEAT_SECONDS, sep="\n", ping_message_factory=_heartbeat)


def _heartbeat() -> ServerSentEvent:
    return ServerSentEvent(comment="alive", sep="\n")


def _last_id(request: Request, after: int) -> int:
    given = request.headers.get("last-event-id")
    if given is None:
        return after
    if not given.isdecimal() or len(given) > 18:
        raise Invalid("Last-Event-ID is not a cursor", remedy="send the id of the last event that you saw")
    return int(given)


async def _stream(
    engine: Engine,
    actor: Actor,
    where: tuple[str, str],
    cursor: int,
    page: list[dict[str, object]],
    stopping: asyncio.Event,
) -> AsyncIterator[ServerSentEvent]:
    """Ends when the server stops, or with an event `error` when the actor may no longer read the thread."""
    try:
        while not stopping.is_set():
            for event in page:
                cursor = int(str(event["cursor"]))
                data = json.dumps(event, ensure_ascii=False, default=str)
                yield ServerSentEvent(data, event=str(event["kind"]), id=str(cursor), sep="\n")
            if not page:
                await _news(engine, actor, where, cursor, stopping)
            page = await engine.threads.events(actor, *where, cursor, PAGE)
    except RingfenceError as error:
        yield ServerSentEvent(json.dumps({"error": error.as_json()}), event="error", sep="\n")


async def _news(engine: Engine, actor: Actor, where: tuple[str, str], cursor: int, stopping: asyncio.Event) -> None:
    """Returns when there is something after the cursor, when the server stops, or after a while."""
    await race(engine.threads.wait(actor, *where, cursor, float(HEARTBEAT_SECONDS)), stopping.wait())


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
