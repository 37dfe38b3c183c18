"""Requests and their replies over one wire, notifications, acknowledgements: the saying half of a link.

A request ends exactly once: by its reply, by a guest's error, or by the end of the wire. At most 64 are in flight, the
65th waits. It must never raise anything but BoxLost to a caller once the wire has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ringfence.host.broker.bounds import Bounds
from ringfence.host.broker.channel import Channel, Sink
from ringfence.host.broker.validation import Shapes
from ringfence.host.kernel.errors import (
    BoxLost,
    Conflict,
    Failed,
    Invalid,
    NotFound,
    RingfenceError,
    TooLarge,
    Unavailable,
)
from ringfence.host.kernel.ids import BoxId
from ringfence.wire.framing import LocalProtocolError, RemoteProtocolError
from ringfence.wire.messages import METHODS
from ringfence.wire.state import HOST, MAX_IN_FLIGHT, Connection, Event

_ACKS_A_FRAME = 2000  # numbers of up to 20 digits and a comma: 42 KB, below the 64 KiB of the row
_ERRORS: dict[str, type[RingfenceError]] = {
    "not_found": NotFound,
    "invalid": Invalid,
    "conflict": Conflict,
    "busy": Conflict,
    "unavailable": Unavailable,
}
Then = Callable[[Any, RingfenceError | None], None]
"""(result, None) or (None, error)."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    future: asyncio.Future[Any]
    deadline: float
    then: Then | None  # called when the answer is read, before anything after it is

    def fail(self, error: RingfenceError) -> None:
        if self.then is not None:
            self.then(None, error)
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # taken: a caller that was cancelled leaves nobody to hear it


class Exchange:
    def __init__(self, box: BoxId, sink: Sink, shapes: Shapes, loop: asyncio.AbstractEventLoop, bounds: Bounds) -> None:
        self.box = box
        self.channel = Channel(sink, loop, bounds)
        self.connection = Connection(HOST)
        self._shapes = shapes
        self._reply_seconds = bounds.reply_seconds
        self._loop = loop
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._waiters: dict[int, _Waiter] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._acks: list[int] = []
        self._still = False
        self._reason = "not connected"

    @property
    def alive(self) -> bool:
        return self.channel.alive

    def still(self, still: bool) -> None:
        """The box stands still, or goes on: until then it owes no answer."""
        self._still = still
        self.channel.still(still)
        if not still:
            due = self._loop.time() + self._reply_seconds
            self._waiters = {number: replace(waiter, deadline=due) for number, waiter in self._waiters.items()}

    # --- notifications -------------------------------------------------------------------------------------------

    def say(self, method: str, params: Mapping[str, Any]) -> None:
        """Nothing once the wire has ended."""
        if self.channel.alive:
            self.connection.notify(method, dict(params))
            self.channel.write(self.connection.data_to_send())

    def relay(self, run: str, frame: bytes) -> None:
        """A frame for an agent loop."""
        if self.channel.alive:
            self.connection.relay(run, frame)
            self.channel.write(self.connection.data_to_send())

    def acknowledge(self, seq: int) -> None:
        """All of one turn in one frame."""
        if not self._acks:
            self._loop.call_soon(self._flush_acks)
        self._acks.append(seq)

    def _flush_acks(self) -> None:
        seqs, self._acks = self._acks, []
        for start in range(0, len(seqs), _ACKS_A_FRAME):
            self.say("ack", {"seqs": seqs[start : start + _ACKS_A_FRAME]})

    async def room(self) -> None:
        """Waits while the box is behind with reading."""
        await self.channel.room()

    # --- requests ------------------------------------------------------------------------------------------------

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """The validated result. BoxLost; TooLarge; NotFound, Invalid, Conflict, Unavailable, Failed by the guest's
        word."""
        await self.clear()
        return await self.send(method, params)

    async def clear(self) -> None:
        """Waits until one more request may be sent. The caller then holds a slot, which `send` takes over."""
        await self._slots.acquire()
        try:
            await self.channel.room()
        except BaseException:
            self._slots.release()
            raise

    def send(self, method: str, params: Mapping[str, Any], then: Then | None = None) -> asyncio.Future[Any]:
        """After `clear`. Raises BoxLost and TooLarge at once, without `then`."""
        try:
            if not self.channel.alive:
                raise self.lost()
            number = self.connection.request(method, dict(params))
        except LocalProtocolError as error:
            self._slots.release()
            raise TooLarge(f"{method} cannot be sent to the box: {error}") from error
        except BoxLost:
            self._slots.release()
            raise
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiters[number] = _Waiter(future, self._loop.time() + self._reply_seconds, then)
        if self._timer is None:
            self._timer = self._loop.call_later(self._reply_seconds, self._check_replies)
        self.channel.write(self.connection.data_to_send())
        self.channel.flush()  # its caller waits: one turn of the loop less
        return future

    def replied(self, event: Event) -> None:
        """A reply was read. RemoteProtocolError: it is not of the row's type, or `then` finds that it breaks a rule."""
        waiter = self._waiters.pop(event.id)
        self._slots.release()
        if event.ok is None:
            waiter.fail(_ERRORS.get(event.code, Failed)(f"the box answered: {event.message[:1000]}", box=self.box))
            return
        try:
            result = self._shapes.result(METHODS[event.method], event.ok)
            if waiter.then is not None:
                waiter.then(result, None)
        except RemoteProtocolError as error:
            waiter.fail(BoxLost(f"box {self.box} broke a rule of the wire: {error}", box=self.box))
            raise
        if not waiter.future.done():
            waiter.future.set_result(result)

    def _check_replies(self) -> None:
        self._timer = None
        if not self._waiters or not self.channel.alive:
            return
        deadline = next(iter(self._waiters.values())).deadline
        left = self._reply_seconds if self._still else deadline - self._loop.time()
        if left <= 0:
            self.channel.abort("silent", f"a request was not answered within {self._reply_seconds:g} s")
        else:
            self._timer = self._loop.call_later(left, self._check_replies)

    # --- the end -------------------------------------------------------------------------------------------------

    def over(self, reason: str) -> None:
        """The channel has ended: so has each request in flight."""
        self._reason = reason
        self.connection.close()
        if self._timer is not None:
            self._timer.cancel()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            self._slots.release()
            waiter.fail(self.lost())

    def lost(self) -> BoxLost:
        return BoxLost(f"the wire to box {self.box} has ended: {self._reason}", box=self.box)
