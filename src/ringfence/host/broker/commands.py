"""A command in a box, as the engine holds it: ordered output, stdin, exactly one outcome.

It outlives a wire: when the wire is lost it waits, and goes on over the next one if the guest still knows its key.
Credits (`wire.credits`) bound both directions: the guest sends at most a window of output that was not taken here, and
we send at most a window of stdin that it has not consumed. It must never raise BoxLost (that is an outcome), end twice,
or hold output beyond two windows, whatever the guest sends.
"""

from __future__ import annotations

import asyncio
import binascii
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol

from ringfence.host.broker.outcomes import decode, lost
from ringfence.host.kernel.errors import BoxLost, Conflict, NotFound, RingfenceError
from ringfence.host.kernel.ports import Outcome
from ringfence.wire.credits import CHUNK, GIVE_BACK, WINDOW
from ringfence.wire.framing import RemoteProtocolError

_GAP = "the wire was lost in mid-command: output and input that were under way then may be missing"


class Wire(Protocol):
    """What a command needs of the link that carries it."""

    def say(self, method: str, params: Mapping[str, Any]) -> None: ...
    async def request(self, method: str, params: Mapping[str, Any]) -> Any: ...
    async def room(self) -> None: ...
    def acknowledge(self, seq: int) -> None: ...


class Registry(Protocol):
    def forget(self, command: WireCommand) -> None:
        """Its outcome was acknowledged, or there is none to come."""

    def pace(self, size: int) -> float:
        """Seconds to wait before the guest may send so many bytes more: the box's commands share one rate."""


class WireCommand:
    """ports.Command. `params`: of the cmd.spawn that began it, for attaching again."""

    def __init__(self, key: str, params: Mapping[str, Any], wire: Wire, registry: Registry) -> None:
        self.key = key
        self.params = params
        self.streams = params["output"] == "stream"
        self.pid = 0
        self.attached = False
        self._wire: Wire | None = wire
        self._registry = registry
        self._news = asyncio.Event()  # set at each change that somebody may wait for
        self._started = False
        self._start_error: RingfenceError | None = None
        self._outcome: Outcome | None = None
        self._seq: int | None = None
        self._released = False
        self._gap = False
        self._queue: deque[tuple[Literal[1, 2], bytes]] = deque()
        self._window = WINDOW  # output that the guest may send now
        self._owed = 0  # output taken and not granted again yet
        self._stale = 0  # queued output that came over a wire which is gone: its window has begun anew
        self._read = False  # output() was called
        self._discard = False  # nobody reads output any more
        self._credit = WINDOW  # stdin that we may send now
        self._writing = asyncio.Lock()
        self._eof = False
        self._told: list[Callable[[], None]] = []  # who is called at the end

    # --- ports.Command -------------------------------------------------------------------------------------------

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        if self._read:
            raise Conflict("the output of a command is read once")
        self._read = True
        try:
            while True:
                while self._queue:
                    chunk = self._queue.popleft()
                    self._taken(len(chunk[1]))
                    yield chunk
                if self._outcome is not None:
                    return
                await self._change()
        finally:
            self._drop()

    async def write(self, data: bytes) -> None:
        async with self._writing:
            rest = memoryview(data)
            while rest and not self._eof:
                wire = await self._ready_to_write()
                if wire is None:
                    return
                size = min(len(rest), CHUNK, self._credit)
                self._credit -= size
                wire.say("cmd.stdin", _stdin(self.key, rest[:size], eof=False))
                rest = rest[size:]

    async def close_stdin(self) -> None:
        async with self._writing:
            if self._eof or self._outcome is not None:
                return
            self._eof = True
            if self._wire is not None:  # without one, `rebind` says it
                self._wire.say("cmd.stdin", _stdin(self.key, b"", eof=True))

    async def signal(self, number: int) -> None:
        await self._insist("cmd.signal", {"key": self.key, "signal": number})

    async def stop(self, grace: float) -> None:
        await self._insist("cmd.stop", {"key": self.key, "grace_ms": round(grace * 1000)})

    def on_end(self, call: Callable[[], None]) -> None:
        if self._outcome is None:
            self._told.append(call)
        else:
            call()

    async def outcome(self) -> Outcome:
        while self._outcome is None:
            await self._change()
        if self.streams:
            await self.release()
        return self._outcome

    async def release(self) -> None:
        if (
            self._outcome is None and not self._read
        ):  # who lets go of it before its end will not read what it says until then
            self._drop()
        self._released = True
        self._settle()

    # --- the link's side -----------------------------------------------------------------------------------------

    async def started(self) -> None:
        """Waits for the reply to cmd.spawn. Raises what the guest, or the end of the wire, made of it."""
        while not self._started and self._start_error is None and self._outcome is None:
            await self._change()
        if self._start_error is not None:
            raise self._start_error

    def set_started(self, pid: int, attached: bool) -> None:
        self.pid, self.attached, self._started = pid, attached, True
        self._changed()

    def set_start_error(self, error: RingfenceError) -> None:
        self._start_error = error
        self._changed()

    @property
    def ended(self) -> bool:
        return self._outcome is not None

    def add_output(self, stream: Literal[1, 2], data_b64: str) -> None:
        """RemoteProtocolError: after its end, not asked for, more than was granted, no base64."""
        data = decode(data_b64, CHUNK)
        self._window -= len(data)
        if not self.streams or self._outcome is not None or self._window < 0:
            raise RemoteProtocolError("cmd.output that was not granted")
        if self._discard:
            self._taken(len(data))
        elif data:
            self._queue.append((stream, data))
            self._changed()

    def add_credit(self, size: int) -> None:
        if size < 0:
            raise RemoteProtocolError("cmd.credit of less than nothing")
        self._credit = min(self._credit + size, WINDOW)
        self._changed()

    def finish(self, seq: int, outcome: Outcome) -> None:
        """The first one counts; a repeated report is the same one, sent again."""
        self._seq = seq
        if self._outcome is None:
            self._end(outcome)
        self._settle()

    def lose(self, reason: str) -> None:
        """No guest knows it any more."""
        if self._outcome is None:
            self._end(lost(reason))
        self._registry.forget(self)

    def unbind(self, wire: Wire) -> None:
        """`wire` has ended. Waits for the next one."""
        if self._wire is wire:
            self._wire = None
            self._changed()

    def expect(self) -> None:
        """The guest knows the key still and will be asked to attach: what it sends until then has a fresh window."""
        self._window = WINDOW

    def rebind(self, wire: Wire) -> None:
        """`wire` carries it on: the guest has attached, or its report is sent again."""
        self._wire = wire
        if self._outcome is None:
            self._gap = self.streams
            self._window, self._owed, self._credit = WINDOW, 0, WINDOW
            self._stale = sum(len(data) for _, data in self._queue)
            if self._eof:
                wire.say("cmd.stdin", _stdin(self.key, b"", eof=True))
        self._settle()
        self._changed()

    def abandon(self) -> None:
        """Nobody holds it: whatever comes of it is dropped."""
        self._discard = self._released = True
        self._settle()

    # --- inside --------------------------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Nobody reads its output: it is taken all the same, lest the command stand still on a full pipe."""
        self._discard = True
        while self._queue:
            self._taken(len(self._queue.popleft()[1]))

    def _taken(self, size: int) -> None:
        stale = min(size, self._stale)
        self._stale -= stale
        self._owed += size - stale
        if self._owed >= GIVE_BACK and self._wire is not None and self._outcome is None:
            owed, self._owed = self._owed, 0
            if wait := self._registry.pace(owed):
                asyncio.get_running_loop().call_later(wait, self._grant, self._wire, owed)
            else:
                self._grant(self._wire, owed)

    def _grant(self, wire: Wire, size: int) -> None:
        """Over the wire that it came by: a newer one began with a whole window."""
        if self._wire is wire and self._outcome is None:
            self._window += size
            wire.say("cmd.grant", {"key": self.key, "bytes": size})

    async def _ready_to_write(self) -> Wire | None:
        """The wire, once there is credit and room; None when the command has ended."""
        while self._outcome is None:
            wire = self._wire
            if wire is not None and self._credit > 0:
                await wire.room()
                if wire is self._wire and self._outcome is None:
                    return wire
            else:
                await self._change()
        return None

    async def _insist(self, method: str, params: Mapping[str, Any]) -> None:
        """Over the next wire when this one breaks; nothing once the command has ended."""
        while self._outcome is None:
            wire = self._wire
            if wire is None:
                await self._change()
                continue
            try:
                await wire.request(method, params)
            except BoxLost:
                if self._wire is wire:
                    await self._change()
                continue
            except NotFound:  # it ended while we asked; the report is on its way
                return
            return

    def _end(self, outcome: Outcome) -> None:
        if self._gap:
            message = f"{outcome.message}; {_GAP}" if outcome.message else _GAP
            outcome = replace(outcome, message=message)
        self._outcome = outcome
        told, self._told = self._told, []
        for call in told:
            call()
        self._changed()

    def _settle(self) -> None:
        if not self._released or self._outcome is None or self._seq is None:
            return
        if self._wire is not None:  # between two wires it is kept, and acknowledged over the next one
            self._wire.acknowledge(self._seq)
            self._seq = None
            self._registry.forget(self)

    async def _change(self) -> None:
        await self._news.wait()

    def _changed(self) -> None:
        """Wakes everybody who waits now; who waits afterwards waits for the next change."""
        news, self._news = self._news, asyncio.Event()
        news.set()


def _stdin(key: str, data: bytes | memoryview, *, eof: bool) -> dict[str, Any]:
    return {"key": key, "data_b64": binascii.b2a_base64(data, newline=False).decode("ascii"), "eof": eof}
