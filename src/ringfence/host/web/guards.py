"""What is refused before any route is reached: foreign hosts and origins, tokens in a URL, oversize bodies.

Pure ASGI, so that it holds for WebSockets too. Never buffers more than the limit of the route.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.host.kernel.errors import Refused, RingfenceError, TooLarge, Unauthenticated
from ringfence.host.web.answers import answer

JSON_LIMIT = 1 << 20
# argv and environment together may be 2 MiB (a quarter of the 8 MiB stack, man 2 execve); in base64 that is 2.67 MiB.
EXEC_LIMIT = 4 << 20
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_SECRET_WORDS = frozenset({"token", "access_token", "api_key", "apikey", "authorization", "bearer"})
_EXEC = re.compile(r"/v1/tenants/[^/]+/users/[^/]+/exec")
_FILES = re.compile(r"/v1/tenants/[^/]+/users/[^/]+/files")


class Guards:
    """`hosts` None: any Host (the operator socket has none worth checking)."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        # Routes match the path as it was sent and decode each segment once: a name with %2F stays one segment.
        scope["path"] = scope["raw_path"].decode("ascii", "replace")
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            self._check_origin(headers)
            _check_query(scope["query_string"])
            limit = _limit(scope)
            if limit is not None:
                receive = _bounded(receive, headers, limit)
        except RingfenceError as error:
            await answer(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        """Against DNS rebinding: a page of evil.example whose name now points to 127.0.0.1 still sends its own name."""
        if self._hosts is None:
            return
        host = _without_port(headers.get("host", ""))
        if host not in self._hosts:
            raise Refused(f"this server does not answer to the name {host[:100]!r}", remedy="use http://127.0.0.1:PORT")

    def _check_origin(self, headers: Headers) -> None:
        """RFC 6455 section 10.2; and for plain requests too, as no other site has any business here."""
        for origin in headers.getlist("origin"):
            host = headers.get("host", "")
            if self._hosts is None or origin not in (f"http://{host}", f"https://{host}"):
                raise Refused(f"requests from the site {origin[:100]!r} are refused", remedy="call from a program")


def _without_port(host: str) -> str:
    return re.sub(r":\d*$", "", host.lower())


def _check_query(query: bytes) -> None:
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name.lower() in _SECRET_WORDS:
            raise Unauthenticated(
                "a token in a URL is refused: URLs end up in logs and histories",
                remedy="send it in the header Authorization: Bearer TOKEN, and revoke the one that was in the URL",
            )


def _limit(scope: Scope) -> int | None:
    """None: a streamed upload, or no body at all."""
    if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
        return None
    if scope["method"] == "PUT" and _FILES.fullmatch(scope["path"]):
        return None
    return EXEC_LIMIT if _EXEC.fullmatch(scope["path"]) else JSON_LIMIT


def _bounded(receive: Receive, headers: Headers, limit: int) -> Receive:
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(int(declared[:20]), limit)
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise _too_large(seen, limit)
        return message

    return bounded


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"the body has {size} bytes or more; the limit is {limit}",
        remedy="put large data into a file of the box: ringfence files put",
        size=size,
        limit=limit,
    )
