"""Reaches a failpoint before and after the answer to each request that may have changed something.

Pure ASGI. It must never change an answer.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.host.kernel.failpoints import Failpoints, Point

_LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})


class Acknowledging:
    def __init__(self, app: ASGIApp, failpoints: Failpoints) -> None:
        self._app, self._failpoints = app, failpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _LOOKS:
            await self._app(scope, receive, send)
            return
        detail = f"{scope['method']} {scope['path']}"

        async def reaching(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._failpoints.areach(Point.HTTP_ANSWER_BEFORE, detail)
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await self._failpoints.areach(Point.HTTP_ANSWER_AFTER, detail)

        await self._app(scope, receive, reaching)
