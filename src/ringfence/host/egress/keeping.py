"""Connections to upstreams: so many of one host at once, and those that wait for a next request. One box's; no clock but the loop's.

A connection is used again for the very host, port and kind that it was verified for, never for another name that its
certificate would cover too. It must never give the same connection to two.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ringfence.host.egress import streams

# A connection that an upstream is about to close loses the request that is sent on it, and nothing is sent twice here. The
# shortest common keep-alive is Node's 5 s; one second less leaves room for the way.
IDLE = 4.0
MOST_IDLE = 64  # of all hosts together. A worker has 1,024 descriptors: 128 connections of the box with one upstream each, and these
PATIENCE = (
    30.0  # seconds that a connection waits for its turn: tools open 16 to 50 at once and are content with their turn
)


@dataclass(frozen=True, slots=True)
class Way:
    host: str
    port: int
    tls: bool


@dataclass(eq=False, slots=True)
class Held:
    """An open connection. `used`: the loop's time when its last exchange ended."""

    way: Way
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: float = 0.0

    def good(self, now: float) -> bool:
        ended = self.writer.is_closing() or self.reader.at_eof() or self.reader.exception() is not None
        # Bytes that nobody asked for would be read as the next request's answer. The reader keeps them to itself.
        unasked = bool(self.reader._buffer)  # type: ignore[attr-defined]
        return not ended and not unasked and now - self.used < IDLE

    def drop(self) -> None:
        streams.abort(self.writer)


@dataclass(slots=True)
class _Host:
    open: int = 0
    idle: list[Held] = field(default_factory=list)
    waiting: deque[tuple[Way, asyncio.Future[Held | None]]] = field(default_factory=deque)


class Keeping:
    def __init__(self, most: int, patience: float = PATIENCE) -> None:
        self._most = most
        self._patience = patience
        self._hosts: dict[str, _Host] = {}
        self._idling: OrderedDict[Held, None] = OrderedDict()  # the oldest first
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    async def place(self, way: Way) -> Held | None:
        """A connection that waits for this; None: a new one may be made, and `leave` is called once when it has ended.
        TimeoutError: no place came free."""
        host = self._hosts.setdefault(way.host, _Host())
        if (held := self._idle(host, way)) is not None:
            return held
        if host.open < self._most:
            host.open += 1
            return None
        if host.idle:
            self._taken(host.idle[0]).drop()  # its end gives its place to the first that waits
        return await self._wait(host, way)

    def keep(self, held: Held) -> None:
        """Its exchange is over and left nothing behind."""
        host = self._hosts.get(held.way.host)
        loop = asyncio.get_running_loop()
        held.used = loop.time()
        if host is None or self._closed or not held.good(held.used):
            held.drop()
            return
        alike = next((each for each in host.waiting if each[0] == held.way and not each[1].done()), None)
        if alike is not None:
            host.waiting.remove(alike)
            alike[1].set_result(held)
        elif any(not each[1].done() for each in host.waiting):
            held.drop()
        else:
            host.idle.append(held)
            self._idling[held] = None
            if len(self._idling) > MOST_IDLE:
                self._taken(next(iter(self._idling))).drop()
            if self._expiry is None:
                self._expiry = loop.call_later(IDLE, self._expire)

    def leave(self, name: str) -> None:
        host = self._hosts[name]
        while host.waiting:
            _, future = host.waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        host.open -= 1
        if host.open == 0:
            del self._hosts[name]

    def close(self) -> None:
        """Those that are idle; and none is kept from now on."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for host in list(self._hosts.values()):
            while host.idle:
                self._taken(host.idle[-1]).drop()

    def open(self, name: str) -> int:
        """How many connections there are to it, idle ones and those being made among them."""
        return self._hosts[name].open if name in self._hosts else 0

    def _idle(self, host: _Host, way: Way) -> Held | None:
        now = asyncio.get_running_loop().time()
        for held in [each for each in reversed(host.idle) if each.way == way]:
            self._taken(held)
            if held.good(now):
                return held
            held.drop()
        return None

    def _taken(self, held: Held) -> Held:
        """Idle no more. Its host may have gone before it: all its connections had ended."""
        self._idling.pop(held, None)
        host = self._hosts.get(held.way.host)
        if host is not None and held in host.idle:
            host.idle.remove(held)
        return held

    def _expire(self) -> None:
        """One timer for all of them: it runs on for the oldest that is left."""
        self._expiry = None
        loop = asyncio.get_running_loop()
        for held in list(self._idling):
            if held.good(loop.time()):
                self._expiry = loop.call_at(held.used + IDLE, self._expire)
                return
            self._taken(held).drop()

    async def _wait(self, host: _Host, way: Way) -> Held | None:
        future: asyncio.Future[Held | None] = asyncio.get_running_loop().create_future()
        host.waiting.append((way, future))
        try:
            async with asyncio.timeout(self._patience):
                return await future
        except BaseException:
            if future.done() and not future.cancelled():  # it came, and nobody is here to take it
                held = future.result()
                if held is None:
                    self.leave(way.host)
                else:
                    self.keep(held)
            raise
