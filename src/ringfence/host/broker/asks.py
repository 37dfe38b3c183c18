"""What agent loops ask: each run's own dialogue, checked, and answered by the engine.

A frame comes wrapped by PID 1 with the run that it is from. Inside one box that is scoping; so an ask counts only for a
run that this box was given, and with its token. For any other run the answer is the one for a run that does not exist
(threats G09). It must never pass anything to the engine that is not of the type in METHODS, or wait for the engine
while it holds up the wire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any

from ringfence.host.broker.rate import Buckets
from ringfence.host.broker.record import BoxRecord
from ringfence.host.broker.tasks import Tasks
from ringfence.host.broker.validation import Shapes
from ringfence.host.kernel.errors import Failed, NotFound, RingfenceError, TooLarge, Unavailable
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.ports import LoopHost
from ringfence.wire.framing import MAX_LOOP_FRAME, LocalProtocolError, RemoteProtocolError
from ringfence.wire.messages import METHODS, Method, Side
from ringfence.wire.state import LOOP_HOST, MAX_IN_FLIGHT, REQUEST, Connection, Event

_MAX_DIALOGUES = 256  # runs that speak over one wire; beyond it the oldest silent one is begun anew

Relay = Callable[[str, bytes], None]
"""(run, frame with its newline): to that loop."""


class Asks:
    """Of one link."""

    def __init__(self, record: BoxRecord, host: LoopHost, shapes: Shapes, tasks: Tasks, buckets: Buckets) -> None:
        self._record = record
        self._host = host
        self._shapes = shapes
        self._tasks = tasks
        self._buckets = buckets
        self._dialogues: dict[str, Connection] = {}
        self._open = 0  # asks of all runs without an answer
        self._log = logging.getLogger("ringfence.broker")

    def receive(self, run: str, frame: bytes, relay: Relay) -> None:
        """RemoteProtocolError: a rule was broken. The loop that broke it is not heard again: it would end the next wire
        as well, with its first word, and no run of the box would ever get to work."""
        if self._record.is_broken(run):
            return
        try:
            self._receive(run, frame, relay)
        except RemoteProtocolError:
            self._record.broke(run)
            raise

    def _receive(self, run: str, frame: bytes, relay: Relay) -> None:
        known = self._record.has_run(run)
        dialogue = self._dialogue(run) if known else Connection(LOOP_HOST)
        event = dialogue.receive(frame)
        method = METHODS.get(event.method)
        if method is None or method.side is not Side.LOOP or event.kind != REQUEST:
            raise RemoteProtocolError(f"a loop may not say {event.method[:40]!r} as a {event.kind}")
        if len(frame) > method.max_bytes:
            size = TooLarge(f"{method.name} of {len(frame)} bytes; the limit is {method.max_bytes}")
            self._refuse(dialogue, run, event, size, relay)
            return
        params = self._shapes.params(method, event.params)
        if self._open >= MAX_IN_FLIGHT:
            raise RemoteProtocolError(f"more than {MAX_IN_FLIGHT} asks in flight")
        wait = self._buckets.take(run if known else "", method.name, method.per_second)
        self._open += 1
        self._tasks.go(self._answer(dialogue, run, event, method, params, relay, wait), f"{method.name} of {run}")

    def ended(self, run: str) -> None:
        """The loop is gone: a new one of the same run begins anew, and answers to the old one are dropped."""
        self._dialogues.pop(run, None)

    def _dialogue(self, run: str) -> Connection:
        found = self._dialogues.get(run)
        if found is None:
            if len(self._dialogues) >= _MAX_DIALOGUES:
                del self._dialogues[next(iter(self._dialogues))]
            found = self._dialogues[run] = Connection(LOOP_HOST)
        return found

    async def _answer(
        self, dialogue: Connection, run: str, event: Event, method: Method, params: Any, relay: Relay, wait: float
    ) -> None:
        try:
            if wait:  # over its rate: an honest loop waits for each answer, so it is slowed down, not cut off
                await asyncio.sleep(wait)
            result = await self._ask(run, method, params)
        except RingfenceError as error:
            self._refuse(dialogue, run, event, error, relay)
        except Exception:
            self._log.exception("%s of %s failed", method.name, run)
            self._refuse(dialogue, run, event, Failed("the host failed; its log says why"), relay)
        else:
            self._reply(dialogue, run, event, result, relay)
        finally:
            self._open -= 1

    async def _ask(self, run: str, method: Method, params: Any) -> dict[str, Any]:
        if not self._record.proves(run, params.token):
            raise NotFound(f"no such run: {run!r}")
        if not self._record.spend(run, method.name):
            raise Unavailable(f"{method.name} was asked {method.budget} times, the budget of a run")
        result = await self._host.ask(self._record.box, RunId(run), method.name, params)
        if result is None:
            return {}
        if is_dataclass(result) and not isinstance(result, type):
            return asdict(result)
        return dict(result)

    def _reply(self, dialogue: Connection, run: str, event: Event, result: dict[str, Any], relay: Relay) -> None:
        try:
            dialogue.reply(event.id, result)
        except LocalProtocolError as error:
            self._refuse(dialogue, run, event, TooLarge(f"the answer cannot be sent: {error}"), relay)
            return
        self._send(dialogue, run, event, relay)

    def _refuse(self, dialogue: Connection, run: str, event: Event, error: RingfenceError, relay: Relay) -> None:
        dialogue.reply_error(event.id, error.code, error.message[:4096])
        self._send(dialogue, run, event, relay)

    def _send(self, dialogue: Connection, run: str, event: Event, relay: Relay) -> None:
        frame = dialogue.data_to_send()
        known = self._dialogues.get(run)
        if known is not dialogue and (known is not None or self._record.has_run(run)):
            return  # the loop that asked is gone
        if len(frame) > MAX_LOOP_FRAME:
            short = Connection(LOOP_HOST)
            short.receive(b'{"id":%d,"m":"over","p":{}}' % event.id)
            short.reply_error(
                event.id, TooLarge.code, f"an answer of {len(frame)} bytes; the limit is {MAX_LOOP_FRAME}"
            )
            frame = short.data_to_send()
        relay(run, frame)
