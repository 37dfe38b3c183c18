"""What loops ask: the one door. Authorise, then hand on to who answers asks of that kind.

The broker has checked the run token and the shape. Here an ask is answered only for a run that this process holds a lease
of, in the box that it was given to; everything that is written carries that lease's epoch. It must never take a name,
an actor or an epoch from the ask itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ringfence.host.engine.endings import Endings
from ringfence.host.engine.history_asks import HistoryAsks
from ringfence.host.engine.links import Links
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.model_asks import ModelAsks
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.state_asks import StateAsks
from ringfence.host.engine.step_asks import StepAsks
from ringfence.host.kernel.errors import Conflict, NotFound, RingfenceError, StaleEpoch
from ringfence.host.kernel.failpoints import Point
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.runs import RUN_FINAL

_SETTLE_SECONDS = 10.0  # a new wire's runs are looked at within some milliseconds; a store may stall for longer

Handler = Callable[[Held, Any], Awaitable[dict[str, Any]]]


def handlers(
    model: ModelAsks, steps: StepAsks, state: StateAsks, history: HistoryAsks, endings: Endings
) -> dict[str, Handler]:
    """By method of the wire: every one that a loop may ask."""
    return {
        "model.generate": model.generate,
        "run.event": model.event,
        "step.begin": steps.begin,
        "step.end": steps.end,
        "checkpoint.save": state.save,
        "blob.put": state.put,
        "blob.get": state.get,
        "thread.read": history.read,
        "thread.summarise": history.summarise,
        "run.finish": endings.finish,
        "run.fail": endings.give_up,
    }


class Asks:
    """ports.LoopHost."""

    def __init__(
        self,
        parts: Parts,
        live: LiveRuns,
        links: Links,
        endings: Endings,
        answers: Mapping[str, Handler],
        *,
        stop: Callable[[Held], None],
        loop_ended: Callable[[BoxId, RunId, str, int | None], Awaitable[None]],
        link_lost: Callable[[BoxId], Awaitable[None]],
    ) -> None:
        """`stop`: has a loop stopped whose run is another's. `loop_ended`: with the words for how it did, and the signal."""
        self._parts, self._live, self._links, self._endings = parts, live, links, endings
        self._handlers = dict(answers)
        self._stop, self._loop_ended, self._link_lost = stop, loop_ended, link_lost
        self._log = logging.getLogger("ringfence.engine")
        self.closing = False  # set when the server stops

    async def ask(self, box: BoxId, run: RunId, method: str, params: Any) -> Any:
        """The result as a dict of the method's result type. Errors of kernel.errors become the reply's `err`."""
        handler = self._handlers.get(method)
        if handler is None:
            raise NotFound(f"no such method: {method!r}")
        try:
            await self._parts.failpoints.areach(Point.LOOP_ASK_BEFORE, f"{run} {method}")
            answer = await self._answer(box, run, method, handler, params)
            await self._parts.failpoints.areach(Point.LOOP_ASK_AFTER, f"{run} {method}")
            return answer
        except (RingfenceError, asyncio.CancelledError):
            task = asyncio.current_task()
            if self.closing and task is not None and not task.cancelling():  # the step was let go of, not the asker
                await self._never()
            raise

    async def _answer(self, box: BoxId, run: RunId, method: str, handler: Handler, params: Any) -> dict[str, Any]:
        if self.closing:
            await self._never()
        held = await self._held(box, run)
        if held is None:
            return await self._late(box, run, method, params)
        if held.cancelled is not None:
            raise Conflict("the run is being cancelled")
        try:
            return await handler(held, params)
        except StaleEpoch:
            if self._live.get(run) is held:  # else it is an ask of a loop that is gone, and the run has a newer one
                self._log.warning("run %s: the lease of epoch %d is lost", held.id, held.epoch)
                self._live.drop(held)
                self._stop(held)
            raise

    async def _never(self) -> None:
        """A server that stops gives no answer: the loop asks the next one again. An error would be its run's end."""
        await asyncio.get_running_loop().create_future()

    async def loop_ended(self, box: BoxId, run: RunId, code: int | None, signal: int | None) -> None:
        self._log.info("loop of %s ended: code %s, signal %s", run, code, signal)
        how = f"was ended by signal {signal}" if signal is not None else f"ended with status {code}"
        await self._loop_ended(box, run, f"the agent loop {how}", signal)

    async def link_lost(self, box: BoxId) -> None:
        await self._link_lost(box)

    async def _held(self, box: BoxId, run: RunId) -> Held | None:
        held = self._live.get(run)
        slot = self._links.find(box)
        if held is None and slot is not None and not slot.settled.is_set():  # it overtook the adoption of its run
            try:
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await slot.settled.wait()
            except TimeoutError:
                pass
            held = self._live.get(run)
        return held if held is not None and held.box == box and held.started else None

    async def _late(self, box: BoxId, run: RunId, method: str, params: Any) -> dict[str, Any]:
        """A run that we hold no more. One that has finished is finished again with the same words, which changes
        nothing: its first answer was lost with a wire."""
        row = await self._parts.store.runs.get(run)
        if row.box != box or row.state not in RUN_FINAL or method not in ("run.finish", "run.fail"):
            raise NotFound(f"no such run: {run!r}")
        return await self._endings.finished_again(run, row.epoch, params.text) if method == "run.finish" else {}
