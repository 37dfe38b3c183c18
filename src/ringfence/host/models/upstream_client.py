"""Requests to providers, in HTTP/1.1. The one place where a provider's key meets the wire.

Where a request goes is the table's to say. No redirect is followed, no environment is read, nothing is sent twice. It
must never log a header, a body or a URL beyond its host. Over connections of our own: httpx2 takes 0.5 ms more of each
first word (decision 0060).
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.models.ports import Caller, Keys
from ringfence.host.kernel.models.provider_credentials import check_headed
from ringfence.host.kernel.models.upstreams import Kind, Upstream
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models import framing
from ringfence.host.models.provider_key import ProviderKey
from ringfence.host.models.provider_keys import NoKey
from ringfence.host.models.upstream_answer import Answer, BrokeOff
from ringfence.host.models.upstream_pool import NotReached, Place, Pool, place_of
from ringfence.host.models.upstream_wire import Wire

_WRITE_SECONDS = 60.0
_SLICE = 256 * 1024  # bytes of a body that are given to a connection at once
ANTHROPIC_VERSION = "2023-06-01"


class UpstreamClient:
    """To be closed."""

    def __init__(self, keys: Keys, verify: ssl.SSLContext, *, proxy: str = "") -> None:
        """`proxy`: a corporate one, `host:port`. `verify`: a client's, with its roots."""
        self.keys = keys
        self._pool = Pool(verify, _address(proxy))
        self._places: dict[str, Place] = {}  # by base_url, of which a table has a few

    async def close(self) -> None:
        await self._pool.close()

    def begin(self, upstream: Upstream) -> None:
        """A connection is made, where none waits, while the call that is to go over it is counted. Nothing goes over it before."""
        self._pool.begin(self._place(upstream))

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
        wire, sent = await self._pool.take(place), False
        answer = Answer(wire)
        try:
            if isinstance(key, ProviderKey) and key.withdrawn:  # looked at behind the last wait before its first byte
                raise NotReached("its key was taken back")
            sent = await _sent(wire, self._head(place, upstream, key, path, body, headers), body)
            taken()
            await answer.begin()
            yield answer
        finally:
            self._pool.give(place, wire, again=sent and answer.over)

    def _place(self, upstream: Upstream) -> Place:
        found = self._places.get(upstream.base_url)
        if found is None:
            found = self._places[upstream.base_url] = place_of(upstream.base_url)
        return found

    def _head(
        self,
        place: Place,
        upstream: Upstream,
        key: Secret | None,
        path: str,
        body: list[bytes],
        headers: Mapping[str, str],
    ) -> bytes:
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
            return framing.written(f"POST {target} HTTP/1.1".encode("ascii"), fields.items())
        except ValueError:  # its text may have the field, the key among it
            raise NotReached("its request cannot be written") from None


async def _sent(wire: Wire, head: bytes, body: list[bytes]) -> bool:
    """Whether all of it went. A provider that has heard enough may answer, and close, before it has all: the answer is what counts.
    BrokeOff."""
    data = head
    try:
        while body:
            view = memoryview(data + body.pop(0))
            for at in range(0, len(view), _SLICE):
                await wire.write(view[at : at + _SLICE], _WRITE_SECONDS)
            data = b""
        if data:
            await wire.write(data, _WRITE_SECONDS)
    except TimeoutError:
        raise BrokeOff(f"it takes nothing for {_WRITE_SECONDS:.0f} s") from None
    except OSError:
        body.clear()
        return False
    return True


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
