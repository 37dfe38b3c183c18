"""Requests to providers, in HTTP/1.1. The one place where a provider's key meets the wire.

Where a request goes is the table's to say. No redirect is followed, no environment is read, nothing is sent twice. It
must never log a header, a body or a URL beyond its host. h11 frames it, over connections of our own: httpx2 takes 0.5
ms more of each first word (decision 0060).
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import h11

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.models.ports import Caller, Keys
from ringfence.host.kernel.models.provider_credentials import check_headed
from ringfence.host.kernel.models.upstreams import Kind, Upstream
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models.provider_key import ProviderKey
from ringfence.host.models.provider_keys import NoKey
from ringfence.host.models.upstream_pool import NotReached, Place, Pool, place_of
from ringfence.host.models.upstream_wire import Wire

# A model may think for minutes before its first byte; providers send comments meanwhile only in streams.
_READ_SECONDS = 600.0
_WRITE_SECONDS = 60.0
_SLICE = 256 * 1024  # bytes of a body that are given to a connection at once
_MAX_HEAD = 64 * 1024
ANTHROPIC_VERSION = "2023-06-01"


class BrokeOff(Exception):
    """The provider did, or speaks no HTTP, or says nothing for too long. Its text names no secret."""


class Answer:
    """`headers`: by name in lower case, the first of each."""

    def __init__(self, http: h11.Connection, wire: Wire, head: h11.Response) -> None:
        self.status = head.status_code
        self.headers: dict[str, str] = {}
        for name, value in head.headers:
            self.headers.setdefault(name.decode("ascii"), value.decode("latin-1"))
        self._http, self._wire = http, wire

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, out of its framing. BrokeOff."""
        while isinstance(event := await _next(self._http, self._wire), h11.Data):
            yield bytes(event.data)


class UpstreamClient:
    """To be closed."""

    def __init__(self, keys: Keys, verify: ssl.SSLContext, *, proxy: str = "") -> None:
        """`proxy`: a corporate one, `host:port`. `verify`: a client's, with its roots."""
        self.keys = keys
        self._pool = Pool(verify, _address(proxy))
        self._places: dict[str, Place] = {}  # by base_url, of which a table has a few

    async def close(self) -> None:
        await self._pool.close()

    async def key(self, caller: Caller, upstream: Upstream) -> Secret | None:
        """None: the upstream wants none. Unavailable."""
        return await self.keys(caller, upstream.key) if upstream.key else None

    @asynccontextmanager
    async def post(
        self,
        upstream: Upstream,
        key: Secret | None,
        path: str,
        body: list[bytes],
        headers: Mapping[str, str],
        taken: Callable[[], object] = lambda: None,
    ) -> AsyncIterator[Answer]:
        """The answer, its body unread. `body` is emptied while it is sent, and `taken` called when it is: up to 20 MiB
        are not kept for as long as an answer takes. Until it is empty, no provider has all of it. When the caller
        leaves, the connection ends, unless the answer is over. NotReached: nothing was sent; NoKey: nor can it be;
        BrokeOff."""
        place = self._place(upstream)
        wire, again = await self._pool.take(place), False
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
        try:
            if isinstance(key, ProviderKey) and key.withdrawn:  # looked at behind the last wait before its first byte
                raise NotReached("its key was taken back")
            await _sent(http, wire, self._request(place, upstream, key, path, body, headers), body)
            taken()
            head = await _next(http, wire)
            while isinstance(head, h11.InformationalResponse):
                head = await _next(http, wire)
            if not isinstance(head, h11.Response):
                raise BrokeOff("it ended without an answer")
            yield Answer(http, wire, head)
            again = http.our_state is http.their_state is h11.DONE and not http.trailing_data[0]
        finally:
            self._pool.give(place, wire, again=again)

    def _place(self, upstream: Upstream) -> Place:
        found = self._places.get(upstream.base_url)
        if found is None:
            found = self._places[upstream.base_url] = place_of(upstream.base_url)
        return found

    def _request(
        self,
        place: Place,
        upstream: Upstream,
        key: Secret | None,
        path: str,
        body: list[bytes],
        headers: Mapping[str, str],
    ) -> h11.Request:
        target = place.path + path
        if self._pool.absolute(place):
            target = f"http://{place.authority}{target}"
        fields = {
            "host": place.authority,
            "user-agent": "ringfence",
            "accept": "*/*",
            "accept-encoding": "identity",  # what is compressed cannot be counted
            "content-type": "application/json",
            "content-length": str(sum(len(piece) for piece in body)),
            **headers,
            **_credential(upstream, key),
        }
        try:
            return h11.Request(
                method="POST",
                target=target,
                headers=[(name.encode("ascii"), value.encode("latin-1")) for name, value in fields.items()],
            )
        except (h11.LocalProtocolError, ValueError):  # their texts have the header, the key among it
            raise NotReached("its request cannot be written") from None


async def _sent(http: h11.Connection, wire: Wire, request: h11.Request, body: list[bytes]) -> None:
    """A provider that has heard enough may answer, and close, before it has all: the answer is what counts."""
    data = http.send(request) or b""
    try:
        while body:
            data += http.send(h11.Data(data=body.pop(0))) or b""
            view = memoryview(data)
            for at in range(0, len(data), _SLICE):
                await wire.write(view[at : at + _SLICE], _WRITE_SECONDS)
            data = b""
        if data:
            await wire.write(data, _WRITE_SECONDS)
        http.send(h11.EndOfMessage())
    except TimeoutError:
        raise BrokeOff(f"it takes nothing for {_WRITE_SECONDS:.0f} s") from None
    except OSError:
        body.clear()


async def _next(http: h11.Connection, wire: Wire) -> h11.Event | type[h11.PAUSED]:
    """BrokeOff."""
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await wire.read(_READ_SECONDS))
    except (h11.ProtocolError, OSError, TimeoutError) as error:
        raise BrokeOff(type(error).__name__) from error
    assert not isinstance(event, type) or event is h11.PAUSED
    return event


def _credential(upstream: Upstream, key: Secret | None) -> dict[str, str]:
    """NoKey: it cannot stand in a header."""
    if key is None:
        return {}
    try:
        text = check_headed(key).reveal().strip().decode("ascii")
    except Invalid as error:
        raise NoKey(f"{upstream.key!r}: {error.message}", remedy=error.remedy) from None
    return {"x-api-key": text} if upstream.provider is Kind.ANTHROPIC else {"authorization": f"Bearer {text}"}


def _address(proxy: str) -> tuple[str, int] | None:
    parts = urlsplit(f"//{proxy}")
    return (parts.hostname, parts.port) if parts.hostname and parts.port else None
