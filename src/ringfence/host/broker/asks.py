"""What agent loops ask: each run's own dialogue, checked, and answered by the engine.

A frame comes wrapped by PID 1 with the run that it is from. Inside one box that is scoping; so an ask counts only for a
run that this box was given, and with its token. For any other run the answer is the one for a run that does not exist
(threats G09). It must never pass anything to the engine that is not of the type in METHODS and within its bounds, wait
for the engine while it holds up the wire, or let one loop's asks be another's trouble.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringfence.host.broker.frames import check_frame
from ringfence.host.broker.limits import check
from ringfence.host.broker.rate import Buckets
from ringfence.host.broker.record import BoxRecord
from ringfence.host.broker.tasks import Tasks
from ringfence.host.broker.validation import Shapes
from ringfence.host.kernel.errors import Exhausted, Failed, NotFound, RingfenceError, TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.ports import LoopHost
from ringfence.wire.framing import MAX_FRAME, MAX_LOOP_FRAME, LocalProtocolError, RemoteProtocolError
from ringfence.wire.messages import METHODS, Method, Side
from ringfence.wire.state import LOOP_HOST, REQUEST, Connection, Event

_MAX_DIALOGUES = 256  # runs that speak over one wire; beyond it the oldest silent one is begun anew
_MAX_OPEN = 64 * MAX_FRAME  # bytes of asks without an answer: of each of PID 1's 64 loops the largest
_LEAST = 4096  # what an ask counts at least: its task and its values

Relay = Callable[[str, bytes], None]
"""(run, frame with its newline): to that loop."""


class _TooMuchOpen(RemoteProtocolError):
    """By a box whose loops ask more than is answered; which of them was said already."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """One ask on its way through the host."""

    dialogue: Connection
    run: str
    event: Event
    method: Method
    relay: Relay


class Asks:
    """Of one link."""

    def __init__(self, record: BoxRecord, host: LoopHost, shapes: Shapes, tasks: Tasks, buckets: Buckets) -> None:
        self._record = record
        self._host = host
        self._shapes = shapes
        self._tasks = tasks
        self._buckets = buckets
        self._dialogues: dict[str, Connection] = {}
        self._open: dict[str, int] = {}  # run, "" for all that are not known -> bytes of its asks without an answer
        self._log = logging.getLogger("ringfence.broker")

    def receive(self, run: str, frame: bytes, relay: Relay) -> None:
        """RemoteProtocolError: a rule was broken. The loop that broke it is not heard again: it would end the next wire
        as well, with its first word, and no run of the box would ever get to work."""
        if self._record.runs.is_broken(run):
            return
        try:
            self._receive(run, frame, relay)
        except _TooMuchOpen:
            raise
        except RemoteProtocolError:
            self._record.runs.broke(run)
            raise

    def ended(self, run: str) -> None:
        """The loop is gone: a new one of the same run begins anew, and answers to the old one are dropped."""
        self._dialogues.pop(run, None)
        self._buckets.forget(run)

    def _receive(self, run: str, frame: bytes, relay: Relay) -> None:
        known = run in self._record.runs
        dialogue = self._dialogue(run) if known else Connection(LOOP_HOST)
        check_frame(frame)
        event = dialogue.receive(frame)
        method = METHODS.get(event.method)
        if method is None or method.side is not Side.LOOP or event.kind != REQUEST:
            raise RemoteProtocolError(f"a loop may not say {event.method[:40]!r} as a {event.kind}")
        refusal, params = None, None
        if len(frame) > method.max_bytes:
            refusal = TooLarge(f"{method.name} of {len(frame)} bytes; the limit is {method.max_bytes}")
        else:
            params = self._shapes.params(method, event.params)
        speaker = run if known else ""
        # Without a dialogue nothing counts what a stranger has in flight: each ask counts as the largest.
        size = max(len(frame), _LEAST) if known else MAX_FRAME
        self._hold(speaker, size)
        wait = self._buckets.take(speaker, method.name, method.per_second)
        ask = _Ask(dialogue, run, event, method, relay)
        self._tasks.go(self._answer(ask, params, refusal, wait, (speaker, size)), f"{method.name} of {run}")

    def _hold(self, speaker: str, size: int) -> None:
        """The loop that holds the most is the one to blame, not the one that asks last."""
        if sum(self._open.values()) + size > _MAX_OPEN:
            self._record.runs.broke(max(self._open, key=self._open.__getitem__))
            raise _TooMuchOpen(f"more than {_MAX_OPEN} bytes of asks without an answer")
        self._open[speaker] = self._open.get(speaker, 0) + size

    def _release(self, speaker: str, size: int) -> None:
        self._open[speaker] -= size
        if not self._open[speaker]:
            del self._open[speaker]

    def _dialogue(self, run: str) -> Connection:
        found = self._dialogues.get(run)
        if found is None:
            if len(self._dialogues) >= _MAX_DIALOGUES:
                del self._dialogues[next(iter(self._dialogues))]
            found = self._dialogues[run] = Connection(LOOP_HOST)
        return found

    async def _answer(
        self, ask: _Ask, params: Any, refusal: RingfenceError | None, wait: float, held: tuple[str, int]
    ) -> None:
        try:
            if wait:  # over its rate: an honest loop waits for each answer, so it is slowed down, not cut off
                await asyncio.sleep(wait)
            if refusal is not None:
                raise refusal
            result = await self._ask(ask.run, ask.method, params)
        except RingfenceError as error:
            self._refuse(ask, error)
        except Exception:
            self._log.exception("%s of %s failed", ask.method.name, ask.run)
            self._refuse(ask, Failed("the host failed; its log says why"))
        else:
            self._reply(ask, result)
        finally:
            self._release(*held)

    async def _ask(self, run: str, method: Method, params: Any) -> dict[str, Any]:
        if not self._record.runs.proves(run, params.token):
            raise NotFound(f"no such run: {run!r}")
        check(params)
        if not self._record.runs.spend(run, method.name):
            raise Exhausted(f"{method.name} was asked {method.budget} times, the budget of a run")
        answer = await self._host.ask(self._record.box, RunId(run), method.name, params)
        try:
            result = self._shapes.answer(method, answer)
        except Failed as error:
            self._log.error("%s of %s: %s", method.name, run, error.message)
            raise
        if method.name == "run.finish" and not result["steers"]:
            self._record.runs.over(run)
        return result

    # --- answers -------------------------------------------------------------------------------------------------

    def _reply(self, ask: _Ask, result: dict[str, Any]) -> None:
        try:
            ask.dialogue.reply(ask.event.id, result)
        except LocalProtocolError as error:
            self._refuse(ask, TooLarge(f"the answer cannot be sent: {error}"))
            return
        self._send(ask)

    def _refuse(self, ask: _Ask, error: RingfenceError) -> None:
        ask.dialogue.reply_error(ask.event.id, error.code, error.message[:4096])
        self._send(ask)

    def _send(self, ask: _Ask) -> None:
        frame = ask.dialogue.data_to_send()
        known = self._dialogues.get(ask.run)
        if known is not ask.dialogue and (known is not None or ask.run in self._record.runs):
            return  # the loop that asked is gone
        if len(frame) > MAX_LOOP_FRAME:
            frame = _too_large(ask.event.id, len(frame))
        ask.relay(ask.run, frame)


def _too_large(number: int, size: int) -> bytes:
    """The reply in place of one that was said already, and does not fit."""
    short = Connection(LOOP_HOST)
    short.receive(b'{"id":%d,"m":"over","p":{}}' % number)
    short.reply_error(number, TooLarge.code, f"an answer of {size} bytes; the limit is {MAX_LOOP_FRAME}")
    return short.data_to_send()
