"""The wire to one running box: what the engine asks of it, and what of a guest's frames reaches the host.

Everything that arrives has passed `Connection` (order, ids, in flight), the row of METHODS (who may say it, how large,
how often) and the types, in this order, before anything acts on it. Whatever breaks a rule ends the link. It must never
act for a guest that has not said hello.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringfence.host.broker.asks import Asks
from ringfence.host.broker.bounds import Bounds
from ringfence.host.broker.carry import carry_over
from ringfence.host.broker.commands import WireCommand
from ringfence.host.broker.exchange import Exchange
from ringfence.host.broker.frames import check_frame
from ringfence.host.broker.rate import Buckets
from ringfence.host.broker.record import BoxRecord
from ringfence.host.broker.tasks import Tasks
from ringfence.host.broker.validation import Shapes
from ringfence.host.broker.violations import Violations
from ringfence.host.kernel.errors import BoxLost, RingfenceError
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.ports import CommandSpec, GuestHello, LoopHost
from ringfence.wire.framing import RemoteProtocolError, is_wrapped
from ringfence.wire.messages import (
    GENERATION,
    METHODS,
    CmdCredit,
    CmdEnded,
    CmdOutput,
    CmdStarted,
    HelloReply,
    Kind,
    LoopEnded,
    RunStarted,
)
from ringfence.wire.state import NOTIFY, REPLY, RUN, Event

_MAX_LOOPS = 64  # PID 1 starts no more (guest.loops.MAX_LOOPS); each that is not wanted costs a question and an order


@dataclass(frozen=True, slots=True)
class Parts:
    """What every link of a broker shares."""

    shapes: Shapes
    tasks: Tasks
    violations: Violations
    loop: asyncio.AbstractEventLoop
    bounds: Bounds


class WireLink:
    """ports.Link. `bind` gives the record of the guest that greets; `ended` is told of the end of a greeted link."""

    def __init__(
        self,
        box: BoxId,
        host: LoopHost,
        parts: Parts,
        bind: Callable[[WireLink, HelloReply], BoxRecord],
        ended: Callable[[WireLink, BoxRecord], None],
    ) -> None:
        self.box = box
        self.host = host
        self.deliberate = False  # closed by us: nobody is told
        self.exchange = Exchange(box, self, parts.shapes, parts.loop, parts.bounds)
        self._parts = parts
        self._bind = bind
        self._ended = ended
        self._buckets = Buckets(parts.loop.time, {"run.event": parts.bounds.events})
        self._hello: GuestHello | None = None
        self._record: BoxRecord | None = None
        self._asks: Asks | None = None
        self._hear: dict[str, Callable[[Event, Any, int], None]] = {
            "cmd.output": self._hear_output,
            "cmd.credit": self._hear_credit,
            "cmd.ended": self._hear_ended,
            "loop.ended": self._hear_loop_ended,
        }

    # --- ports.Link ----------------------------------------------------------------------------------------------

    @property
    def hello(self) -> GuestHello:
        if self._hello is None:
            raise BoxLost(f"box {self.box} has not said hello", box=self.box)
        return self._hello

    @property
    def alive(self) -> bool:
        return self._hello is not None and self.exchange.alive

    async def spawn(self, key: str, spec: CommandSpec) -> WireCommand:
        """TooLarge: it does not fit in a frame. A key that is held here already is answered with the same Command."""
        record = self._live()
        held = record.commands.get(key)
        if held is not None:
            await held.started()
            return held
        record.claim(key)
        command = record.commands[key] = WireCommand(key, _spawn_params(key, spec), self.exchange, record)
        try:
            await self.exchange.clear()
            answer = self.exchange.send("cmd.spawn", command.params, _start_of(command, record))
        except BaseException as error:
            command.set_start_error(error if isinstance(error, RingfenceError) else self.exchange.lost())
            record.forget(command)
            raise
        try:
            await answer
        except asyncio.CancelledError:
            if command.streams:  # nobody will read it; a step's is found again by its key
                command.abandon()
                self._parts.tasks.go(command.stop(spec.grace), f"stop of {key}")
            raise
        return command

    async def start_run(self, start: Mapping[str, Any]) -> int:
        params = self._parts.shapes.say(METHODS["run.start"], start)
        self._live().runs.give(params["run"], params["token"])
        reply: RunStarted = await self.exchange.request("run.start", params)
        return reply.pid

    async def cancel_run(self, run: RunId, grace: float) -> None:
        await self.exchange.request("run.cancel", {"run": run, "grace_ms": round(grace * 1000)})

    async def steer_run(self, run: RunId, message: Mapping[str, Any]) -> None:
        """Steers of a run reach its loop in the order of these calls. One that raises may not have reached it, and none
        after it should be sent without it: a loop says in run.finish only up to where it has heard. Conflict: the loop
        is behind with reading and gets no more in this way. TooLarge: it does not fit in a frame."""
        await self._tell("run.steer", {"run": run, "message": message})

    async def wind_down(self, run: RunId, seconds: int) -> None:
        await self._tell("run.wind_down", {"run": run, "seconds": seconds})

    def paused(self) -> None:
        self.exchange.still(True)

    async def resumed(self, pause: str, seconds: float) -> None:
        self.exchange.still(False)
        await self._tell("box.resumed", {"pause": pause, "seconds": seconds})

    async def _tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self.exchange.request(method, self._parts.shapes.say(METHODS[method], params))

    async def close(self) -> None:
        """Says bye. Commands that have not ended are box_lost for their holders, and go on in the box."""
        self.deliberate = True
        if self.alive:
            self.exchange.say("bye", {"reason": "closed by the host"})
        self.exchange.channel.finish()

    async def greet(self, host_id: str) -> None:
        """The first request. BoxLost: no hello, or of a generation that this host does not speak."""
        await self.exchange.clear()
        hello = {"generation": GENERATION, "box": self.box, "host": host_id}
        await self.exchange.send("hello", hello, self._hear_hello)

    # --- Sink of the channel -------------------------------------------------------------------------------------

    def line(self, line: bytes) -> None:
        if not is_wrapped(line):  # a loop's frame is judged as that loop's
            check_frame(line)
        event = self.exchange.connection.receive(line)
        if event.kind == REPLY:
            self.exchange.replied(event)
        elif event.kind == RUN and self._asks is not None:
            self._asks.receive(event.run, event.frame, self.exchange.relay)
        elif event.kind == NOTIFY:
            self._hear_notify(event, len(line))
        else:
            raise RemoteProtocolError(f"a guest may not ask {event.method[:40]!r}")

    def over(self, kind: str, reason: str) -> None:
        self.exchange.over(reason)
        if self._record is not None:
            for command in list(self._record.commands.values()):
                command.unbind(self.exchange)
            self._ended(self, self._record)
        if kind:
            self._parts.violations.report(self.box, kind, reason)

    # --- hearing -------------------------------------------------------------------------------------------------

    def _hear_hello(self, reply: HelloReply | None, error: RingfenceError | None) -> None:
        if reply is None:
            return
        if reply.generation not in (GENERATION, GENERATION - 1):
            raise RemoteProtocolError(f"a guest of generation {reply.generation}; this host speaks {GENERATION}")
        if len(reply.runs) > _MAX_LOOPS:
            raise RemoteProtocolError(f"a hello with {len(reply.runs)} runs; the limit is {_MAX_LOOPS}")
        self._hello = GuestHello(
            digest=reply.digest,
            guest=reply.guest,
            landlock=reply.landlock,
            runs={RunId(run.run): run.token for run in reply.runs},
            commands={command.key: command.state for command in reply.commands},
            orphans=tuple(reply.orphans),
        )
        record = self._record = self._bind(self, reply)
        for run, token in self._hello.runs.items():
            record.runs.claim(run, token)
        self._asks = Asks(record, self.host, self._parts.shapes, self._parts.tasks, self._buckets)
        carry_over(record, self._hello.commands, self.exchange, self._parts.tasks)
        for run_id in record.runs.broken(self._hello.runs):
            self._parts.tasks.go(self._end_loop(run_id), f"end of the broken loop of {run_id}")

    async def _end_loop(self, run: str) -> None:
        try:
            await self.exchange.request("run.cancel", {"run": run, "grace_ms": 0})
        except RingfenceError:
            return  # it has ended, or the wire has: the next one tries again

    def _hear_notify(self, event: Event, size: int) -> None:
        row, hear = METHODS.get(event.method), self._hear.get(event.method)
        if row is None or hear is None:
            raise RemoteProtocolError(f"a guest may not say {event.method[:40]!r}")
        if size > row.max_bytes:
            raise RemoteProtocolError(f"{row.name} of {size} bytes; the limit is {row.max_bytes}")
        if (event.seq is not None) is not (row.kind is Kind.REPORT):
            raise RemoteProtocolError(f"{row.name} as no {row.kind.value}")
        if self._buckets.take("", row.name, row.per_second):
            self.exchange.channel.abort("flood", f"{row.name} more than {row.per_second} times a second")
            return
        hear(event, self._parts.shapes.params(row, event.params), size)

    def _hear_output(self, event: Event, said: CmdOutput, size: int) -> None:
        command = self._live().commands.get(said.key)
        if command is not None:
            command.add_output(said.stream, said.data_b64)

    def _hear_credit(self, event: Event, said: CmdCredit, size: int) -> None:
        command = self._live().commands.get(said.key)
        if command is not None:
            command.add_credit(said.bytes)

    def _hear_ended(self, event: Event, said: CmdEnded, size: int) -> None:
        self._live().ended(event.seq or 0, said, size, self.exchange)

    def _hear_loop_ended(self, event: Event, said: LoopEnded, size: int) -> None:
        record, seq = self._live(), event.seq or 0
        ours = said.run in record.runs
        record.runs.loop_ended(said.run)
        if self._asks is not None:
            self._asks.ended(said.run)
        if record.new_report(seq) and ours:
            self._parts.tasks.go(self._tell_loop_ended(seq, said), f"end of the loop of {said.run}")
        else:
            self.exchange.acknowledge(seq)

    async def _tell_loop_ended(self, seq: int, said: LoopEnded) -> None:
        await self.host.loop_ended(self.box, RunId(said.run), said.code, said.signal)
        self.exchange.acknowledge(seq)

    def _live(self) -> BoxRecord:
        if self._record is None or not self.exchange.alive:
            raise self.exchange.lost()
        return self._record


def _start_of(command: WireCommand, record: BoxRecord) -> Callable[[CmdStarted | None, RingfenceError | None], None]:
    """What the answer to a cmd.spawn does, whether its caller still waits or not."""

    def settle(reply: CmdStarted | None, error: RingfenceError | None) -> None:
        if reply is not None:
            command.set_started(reply.pid, reply.attached)
        elif error is not None:
            if isinstance(error, BoxLost) and command.streams:
                record.unwanted.add(command.key)  # it may have started, and its caller is told box_lost
            command.set_start_error(error)
            record.forget(command)

    return settle


def _spawn_params(key: str, spec: CommandSpec) -> dict[str, Any]:
    return {
        "key": key,
        "argv_b64": [_b64(argument) for argument in spec.argv],
        "env_b64": {name: _b64(value) for name, value in spec.env.items()},
        "cwd": spec.cwd,
        "stdin": spec.stdin,
        "output": spec.output,
        "timeout_ms": None if spec.timeout is None else max(1, round(spec.timeout * 1000)),
        "grace_ms": round(spec.grace * 1000),
    }


def _b64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")
