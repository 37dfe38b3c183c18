"""Who asks: turns a connection into an Actor. Never takes an identity from a body, a URL or a cookie.

Operator socket: the peer's credentials. TCP: `Authorization: Bearer <token>`, and nothing else. `Ringfence-As` (and
`Ringfence-Tenant`) let an operator act as a user; their values are percent-encoded UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ringfence.host.kernel.errors import Invalid, Refused, Unauthenticated
from ringfence.host.kernel.people import Actor
from ringfence.host.web.peer import Admission, Peer
from ringfence.host.web.ports import Engine

DEFAULT_TENANT = "default"
_ACTOR = "ringfence.actor"  # in the scope of a request, which no other request shares
# RFC 9110 11.4, RFC 6750 2.1: one or more spaces, then token68; no other white space counts as one.
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*) *\Z", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Door:
    """What an application was made with; kept as `app.state.door`."""

    engine: Engine
    operator: bool
    admission: Admission


def door_of(connection: HTTPConnection) -> Door:
    door: Door = connection.app.state.door
    return door


def engine_of(connection: HTTPConnection) -> Engine:
    return door_of(connection).engine


async def actor_of(connection: HTTPConnection) -> Actor:
    """Unauthenticated; Refused: acting as somebody else without being an operator."""
    door = door_of(connection)
    actor = _by_peer(door, connection) if door.operator else await _by_token(door.engine, connection)
    return await _acting(door.engine, actor, connection)


def _by_peer(door: Door, connection: HTTPConnection) -> Actor:
    peer: Peer | None = connection.scope.get("state", {}).get("peer")
    if peer is None or not door.admission.admits(peer):
        who = "unknown" if peer is None else f"uid {peer.uid}"
        raise Unauthenticated(
            f"not an operator: {who}",
            remedy="root, the server's own account and members of its group are; others use TCP and a token",
        )
    return door.engine.people.operator(peer.uid, peer.gid, peer.pid)


async def _by_token(engine: Engine, connection: HTTPConnection) -> Actor:
    given = connection.headers.getlist("authorization")
    found = _BEARER.match(given[0]) if len(given) == 1 else None
    if found is None:
        raise Unauthenticated(
            "no token", remedy="send the header Authorization: Bearer TOKEN; make one: ringfence token add --user NAME"
        )
    return await engine.people.authenticate(found[1])


async def _acting(engine: Engine, actor: Actor, connection: HTTPConnection) -> Actor:
    name, place = _once(connection, "Ringfence-As"), _once(connection, "Ringfence-Tenant")
    if name is None:
        return actor
    user = text_of(name, "the header Ringfence-As")
    tenant = text_of(DEFAULT_TENANT if place is None else place, "the header Ringfence-Tenant")
    if actor.operator:
        return await engine.people.act_as(actor, tenant, user)
    if actor.user is not None and (actor.user.tenant_name, actor.user.name) == (tenant, user):
        return actor
    raise Refused("only an operator acts as somebody else", remedy="leave --as out: the token says who you are")


def _once(connection: HTTPConnection, name: str) -> str | None:
    """Invalid: said twice, so that nobody before us and we can each take another one of them."""
    given = connection.headers.getlist(name)
    if len(given) > 1:
        raise Invalid(f"the header {name} is there {len(given)} times", remedy="send it once")
    return given[0] if given else None


def text_of(encoded: str, what: str) -> str:
    """Percent-encoded UTF-8 to text, once."""
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise Invalid(f"{what} is not UTF-8", remedy="percent-encode the UTF-8 bytes of the name") from None


async def proven(request: Request) -> Actor:
    """Whom KnownFirst found. KeyError: the route is of another class. Async, though nothing is waited for: FastAPI sends what is
    not into a thread and back, a sleeping one to wake each way, for every request."""
    actor: Actor = request.scope[_ACTOR]
    return actor


class KnownFirst(APIRoute):
    """Who speaks is asked before a byte of the body is read: whom nobody knows is told so, and nothing of what they sent.
    A dependency alone would come after the body's JSON. Each route that has a CurrentActor is of this class."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if all(each.call is not proven for each in self.dependant.dependencies):
            return handle

        async def known(request: Request) -> Response:
            request.scope[_ACTOR] = await actor_of(request)
            return await handle(request)

        return known


async def _engine(connection: HTTPConnection) -> Engine:
    """Async: as `proven`."""
    return engine_of(connection)


CurrentActor = Annotated[Actor, Depends(proven)]
CurrentEngine = Annotated[Engine, Depends(_engine)]
