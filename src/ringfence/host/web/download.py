"""A body that is made while it is sent: always an attachment, as what a box holds must not become a page of ours; no longer than who
asked for it may speak; and over as soon as nobody takes it any more, whatever holds it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ringfence.host.web.ports import Presence

HEADERS = {
    "Content-Disposition": "attachment",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "no-store",
}


class Download(StreamingResponse):
    """Closes its body when it ends, however, begun or not, and what is held for it: a box may stand still for that."""

    def __init__(self, body: AsyncGenerator[bytes, None], media_type: str, held: AsyncExitStack | None = None) -> None:
        super().__init__(body, media_type=media_type, headers=HEADERS)
        self._body, self._held = body, held or AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held, aclosing(self._body):
            await super().__call__(scope, receive, send)


async def while_present(presence: Presence, data: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Unauthenticated, between two pieces."""
    async for piece in data:
        presence.check()
        yield piece
