"""The connections to providers: made, verified, kept between requests, ended.

Where one leads is the table's to say. A corporate proxy is asked for what is not on this very host: by CONNECT for
TLS. Must never send a byte of a request over TLS that is not verified, nor give one to a second request before the
first is over.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

from ringfence.host.models.upstream_wire import Wire

CONNECT_SECONDS = 10.0  # for all of it: name, connection, proxy, TLS
MOST = 512  # 8 runs, 32 requests of each user's boxes; what is more waits
ROOM_SECONDS = 10.0  # and then no longer: a key that waits may be revoked meanwhile
IDLE = 64
IDLE_SECONDS = 30.0
_HAPPY = 0.25  # seconds: RFC 8305 section 8, before another address is tried beside the first
_HERE = frozenset({"127.0.0.1", "localhost", "::1"})  # no proxy leads to a model of this very host


class NotReached(Exception):
    """There is no connection: nothing was sent. Its text names no secret."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an upstream is. `authority`: for Host; `path`: before that of a request, and no part of where it is."""

    tls: bool
    host: str
    port: int
    authority: str
    path: str = field(compare=False)


def place_of(base_url: str) -> Place:
    parts = urlsplit(base_url)
    tls, host = parts.scheme == "https", parts.hostname or ""
    usual = 443 if tls else 80
    port = parts.port or usual
    shown = f"[{host}]" if ":" in host else host
    return Place(tls, host, port, shown if port == usual else f"{shown}:{port}", parts.path)


class Pool:
    """To be closed. `proxy`: a corporate one, (host, port). `verify`: of a client that asks for certificate and
    name."""

    def __init__(self, verify: ssl.SSLContext, proxy: tuple[str, int] | None) -> None:
        verify.set_alpn_protocols(["http/1.1"])
        self._verify, self._proxy = verify, proxy
        self._room = asyncio.Semaphore(MOST)
        self._idle: deque[tuple[float, Place, Wire]] = deque()  # the longest idle first
        self._there: set[Wire] = set()  # whose sockets are open
        self._begun: dict[Place, asyncio.Task[Wire]] = {}  # that nobody has taken yet

    async def take(self, place: Place) -> Wire:
        """For one request; `give` it back. NotReached."""
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await self._room.acquire()
        except TimeoutError:
            raise NotReached(f"all of {MOST} connections are in use") from None
        try:
            wire = self._kept(place) or await self._half_made(place) or await self._made(place)
        except BaseException:
            self._room.release()
            raise
        wire.idle = False
        return wire

    def begin(self, place: Place) -> None:
        """Who is about to take one finds it made, or half made. One that nobody takes then waits with the others."""
        self._aged()
        waits = place in self._begun or any(at == place and wire.usable for _, at, wire in self._idle)
        if waits or self._room.locked():
            return

        def made(making: asyncio.Task[Wire]) -> None:
            failed = making.cancelled() or making.exception() is not None  # whoever takes one sees it himself
            if self._begun.get(place) is making:
                del self._begun[place]
                if not failed:
                    self._rests(place, making.result())

        self._begun[place] = making = asyncio.create_task(self._unasked(place))
        making.add_done_callback(made)

    def give(self, place: Place, wire: Wire, *, again: bool) -> None:
        """`again`: the answer is over, and nothing of it is still to come."""
        self._room.release()
        if not (again and wire.usable):
            wire.abort()
            return
        self._rests(place, wire)

    def _rests(self, place: Place, wire: Wire) -> None:
        wire.idle = True
        self._idle.append((time.monotonic(), place, wire))
        if len(self._idle) > IDLE:
            self._idle.popleft()[2].abort()

    async def close(self) -> None:
        """Their sockets are closed when it returns."""
        begun = list(self._begun.values())
        self._begun.clear()
        for making in begun:
            making.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        self._idle.clear()
        for wire in list(self._there):
            wire.abort()
            await wire.gone.wait()

    def absolute(self, place: Place) -> bool:
        """Whether a request is to name the whole URL: it goes to a proxy in clear (RFC 9112 3.2.2)."""
        return not place.tls and self._by(place) is not None

    def _by(self, place: Place) -> tuple[str, int] | None:
        return None if place.host in _HERE else self._proxy

    def _kept(self, place: Place) -> Wire | None:
        """The one that was used last."""
        self._aged()
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at][1] == place:
                wire = self._idle[at][2]
                del self._idle[at]
                if wire.usable:
                    return wire
                wire.abort()
        return None

    def _aged(self) -> None:
        until = time.monotonic() - IDLE_SECONDS
        while self._idle and self._idle[0][0] < until:
            self._idle.popleft()[2].abort()

    async def _half_made(self, place: Place) -> Wire | None:
        """The one that was begun. NotReached: it could not be made."""
        making = self._begun.pop(place, None)
        if making is None:
            return None
        try:
            wire = await making
        except asyncio.CancelledError:  # in the turn in which it was made: nobody else has it
            if making.done() and not making.cancelled() and making.exception() is None:
                making.result().abort()
            raise
        if wire.usable:
            return wire
        wire.abort()
        return None

    # --- a new one ---------------------------------------------------------------------------------------------------

    async def _made(self, place: Place) -> Wire:
        wire = Wire(self._there)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect(wire, place)
        except (OSError, TimeoutError, UnicodeError) as error:  # UnicodeError: a name that no resolver takes
            wire.abort()
            raise NotReached(type(error).__name__) from error
        except BaseException:
            wire.abort()
            raise
        return wire

    async def _unasked(self, place: Place) -> Wire:
        wire = await self._made(place)
        wire.idle = True
        return wire

    async def _connect(self, wire: Wire, place: Place) -> None:
        loop, proxy = asyncio.get_running_loop(), self._by(place)
        named = place.host if place.tls else None
        if proxy is None:
            await loop.create_connection(
                lambda: wire,
                place.host,
                place.port,
                ssl=self._verify if place.tls else None,
                server_hostname=named,
                happy_eyeballs_delay=_race(place.host),
            )
            return
        await loop.create_connection(lambda: wire, *proxy, happy_eyeballs_delay=_race(proxy[0]))
        if place.tls:
            await _tunnelled(wire, place)
            begun = await loop.start_tls(wire.transport, wire, self._verify, server_hostname=named)
            assert begun is not None
            wire.transport = begun


def _race(host: str) -> float | None:
    """None: there is one address. asyncio's race leaves a socket to the collector when it is cancelled at its end."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _HAPPY
    return None


async def _tunnelled(wire: Wire, place: Place) -> None:
    """ConnectionError: the proxy does not make one."""
    http = h11.Connection(h11.CLIENT)
    target = f"{place.host}:{place.port}" if ":" not in place.host else f"[{place.host}]:{place.port}"
    await wire.write(
        http.send(h11.Request(method="CONNECT", target=target, headers=[("host", target)])) or b"", CONNECT_SECONDS
    )
    http.send(h11.EndOfMessage())
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await wire.read(CONNECT_SECONDS))
    except h11.ProtocolError as error:
        raise ConnectionError("the proxy speaks no HTTP") from error
    if not isinstance(event, h11.Response) or event.status_code // 100 != 2 or http.trailing_data[0]:
        raise ConnectionError("the proxy refuses the connection")
