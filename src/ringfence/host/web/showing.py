"""Tells the engine what each connection showed, before anything of the web decides who that is.

Pure ASGI, so that it holds for WebSockets too. Reads the connection itself and shares nothing with login.py, whose
mistakes it is there to catch. It must never turn a credential into a person.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ringfence.host.web.peer import Peer
from ringfence.host.web.ports import Engine

NOBODY = -1  # no uid: a connection of the operator socket whose peer is not known


class Showing:
    def __init__(self, app: ASGIApp, engine: Engine, operator: bool) -> None:
        """`operator`: the unix socket, where the peer's credentials count; else the bearer token does."""
        self._app, self._engine, self._operator = app, engine, operator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            if self._operator:
                peer: Peer | None = scope.get("state", {}).get("peer")
                self._engine.people.presents(uid=NOBODY if peer is None else peer.uid)
            else:
                self._engine.people.presents(token=_token(Headers(scope=scope)))
        await self._app(scope, receive, send)


def _token(headers: Headers) -> str:
    """ "" unless there is exactly one."""
    given = [value.split(None, 1) for value in headers.getlist("authorization")]
    if len(given) != 1 or len(given[0]) != 2 or given[0][0].lower() != "bearer":
        return ""
    return given[0][1].strip()
