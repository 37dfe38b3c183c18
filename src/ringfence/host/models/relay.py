"""An upstream's answer on its way to a client: the bytes as they come, and beside them what they say of use.

A stream's bytes are relayed before anything looks at them. Two exceptions: an event of usage that we asked for and
the client did not is left out, so that stream goes on by whole events; and a provider's key in an answer is masked.
"""

from __future__ import annotations

import json

from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models import spoken_errors
from ringfence.host.models.asked import Asked
from ringfence.host.models.front import Front
from ringfence.host.models.hiding import Hiding
from ringfence.host.models.meters import Meter
from ringfence.host.models.spoken_errors import Wrong
from ringfence.host.models.sse import Event, Events, first_end
from ringfence.host.models.upstream_answer import Answer, BrokeOff

_MAX_WHOLE = 32 << 20  # bytes of an answer that is one object; nobody reads the use in a larger one
STREAM = "text/event-stream"


class Relay:
    """`outcome` and `meter`: how it ended and what it used. `costs`: it may have reached the provider, and was not
    refused."""

    def __init__(self, asked: Asked, output: int, front: Front, key: Secret | None) -> None:
        """`output`: tokens that were granted."""
        assert asked.route.spelling is not None
        self.meter: Meter = asked.route.spelling.meter()
        self.outcome, self.costs = "failed", False
        self._asked, self._output, self._front = asked, output, front
        self._hiding = Hiding(key)
        self._events = Events()
        self._whole = bytearray()
        self._stream, self._read = asked.stream, False

    async def run(self, answer: Answer) -> None:
        """Left. BrokeOff: the upstream broke off, and the client has not been told."""
        self._stream = answer.headers.get("content-type", "").partition(";")[0].strip().lower() == STREAM
        take = self._streamed if self._stream else self._plain
        try:
            async for piece in answer.pieces(self._front.flush):
                await take(self._hiding.take(piece))
                if self.outcome == "cut":
                    break
            else:
                await take(self._hiding.rest())
                await self._front.piece(self._events.rest if self._asked.ours else b"")
                self.outcome = "done"
        except BrokeOff:
            if not self._stream or self._events.within or not self._front.begun:
                raise
            await self._told(Wrong(502, "upstream_failed", "the provider broke off", retry=True))
        finally:
            if not self._stream:
                self._read_whole()
        await self._front.end()

    @property
    def unseen(self) -> int:
        """Tokens of output that there may be beside what was seen of them. One object is finished, and billed, whether
        anybody waits for it or not."""
        if self._read or (self._stream and self.outcome == "done"):
            return 0
        if not self._stream or self.meter.thought:
            return self._output
        return self._asked.unseen

    # --- one object

    async def _plain(self, data: bytes) -> None:
        if len(self._whole) <= _MAX_WHOLE:
            self._whole += data
        await self._front.piece(data)

    def _read_whole(self) -> None:
        try:
            said = json.loads(bytes(self._whole)) if len(self._whole) <= _MAX_WHOLE else None
        except (ValueError, RecursionError):
            said = None
        if isinstance(said, dict):
            self._read = True
            self.meter.take(said)

    # --- a stream

    async def _streamed(self, data: bytes) -> None:
        if self.over:
            await self._cut(data)
        elif self._asked.ours:
            events = self._events.take(data)
            await self._front.piece(b"".join(each.raw for each in events if not _only_usage(each)))
            self._counted(events)
        else:
            await self._front.piece(data)
            self._counted(self._events.take(data))
        if self.over and not self._partly:
            await self._cut(b"")

    @property
    def over(self) -> bool:
        """More has been written than was granted: the upstream does not keep to its limit."""
        return self.meter.least > self._output

    @property
    def _partly(self) -> bool:
        """The client has the beginning of an event."""
        return self._events.within and not self._asked.ours

    def _counted(self, events: list[Event]) -> None:
        for each in events:
            if each.data is not None:
                self.meter.take(each.data)

    async def _cut(self, data: bytes) -> None:
        """At the end of an event, so that a client can read what comes then."""
        if self._partly:
            length = first_end(data)
            await self._front.piece(data[: length or len(data)])
            if not length:
                return
        self.outcome = "cut"
        await self._told(Wrong(429, "budget_exhausted", "the budget for this model is used up: the answer was cut off"))

    async def _told(self, wrong: Wrong) -> None:
        await self._front.piece(spoken_errors.event(self._asked.route.kind, self._asked.route.path, wrong))


def _only_usage(event: Event) -> bool:
    """The last event of a chat's stream, which is there only when it was asked for."""
    said = event.data
    return said is not None and said.get("choices") == [] and isinstance(said.get("usage"), dict)
