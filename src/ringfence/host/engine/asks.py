"""What loops ask: the one door. Authorise, journal, dispatch, journal, reply.

The broker has checked the run token and the shape. Here an ask is answered only for a run that this process holds a lease
of, in the box that it was given to; everything that is written carries that lease's epoch. It must never take a name,
an actor or an epoch from the ask itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.links import Links
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redrive import Redriver
from ringfence.host.engine.results import invalid
from ringfence.host.engine.run_start import ascii_bytes
from ringfence.host.engine.shell import ShellSteps
from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.errors import Conflict, Diverged, NotFound, RingfenceError, StaleEpoch, TooLarge
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.runs import RUN_FINAL, Effect, RunState, StepState
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES, EventKind

# As ASCII JSON. A state has at most 480 KiB and is JSON itself: escaping its quotes at most doubles it. It must fit into
# a run.start of 1 MiB beside names and posture (run_start.py).
CHECKPOINT_BYTES = 961 * 1024
# What a loop gives up with because this server failed it: another attempt is due, not a failed run.
_OURS = frozenset({"unavailable", "disk_full", "box_lost"})
_DETAIL_CHARS = 2000
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_SETTLE_SECONDS = 10.0  # a new wire's runs are looked at within some milliseconds; a store may stall for longer

Handler = Callable[[Held, Any], Awaitable[dict[str, Any]]]


class Asks:
    """ports.LoopHost."""

    def __init__(
        self,
        parts: Parts,
        crew: Crew,
        live: LiveRuns,
        links: Links,
        redriver: Redriver,
        shell: ShellSteps,
        *,
        stop_loop: Callable[[Held], Coroutine[Any, Any, None]],
        loop_ended: Callable[[BoxId, RunId], Awaitable[None]],
        link_lost: Callable[[BoxId], Awaitable[None]],
    ) -> None:
        self._parts, self._crew, self._live, self._links = parts, crew, live, links
        self._redriver, self._shell = redriver, shell
        self._stop_loop, self._loop_ended, self._link_lost = stop_loop, loop_ended, link_lost
        self._log = logging.getLogger("ringfence.engine")
        self.closing = False  # set when the server stops
        self._handlers: dict[str, Handler] = {
            "model.generate": self._generate,
            "step.begin": self._step_begin,
            "step.end": self._step_end,
            "checkpoint.save": self._checkpoint,
            "run.finish": self._finish,
            "run.fail": self._fail,
        }

    async def ask(self, box: BoxId, run: RunId, method: str, params: Any) -> Any:
        """The result as a dict of the method's result type. Errors of kernel.errors become the reply's `err`."""
        handler = self._handlers.get(method)
        if handler is None:
            raise NotFound(f"no such method: {method!r}")
        try:
            return await self._answer(box, run, method, handler, params)
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
        try:
            return await handler(held, params)
        except StaleEpoch:
            if self._live.get(run) is held:  # else it is an ask of a loop that is gone, and the run has a newer one
                self._live.drop(held)
                self._crew.go(self._stop_loop(held), f"stop {run}")
            raise

    async def _never(self) -> None:
        """A server that stops gives no answer: the loop asks the next one again. An error would be its run's end."""
        await asyncio.get_running_loop().create_future()

    async def loop_ended(self, box: BoxId, run: RunId, code: int | None, signal: int | None) -> None:
        self._log.info("loop of %s ended: code %s, signal %s", run, code, signal)
        await self._loop_ended(box, run)

    async def link_lost(self, box: BoxId) -> None:
        await self._link_lost(box)

    async def _held(self, box: BoxId, run: RunId) -> Held | None:
        held = self._live.get(run)
        settled = self._links.slot(box).settled
        if held is None and not settled.is_set():  # an ask that overtook the adoption of its run
            try:
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await settled.wait()
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
        if method == "run.finish":
            await self._parts.store.runs.end(run, row.epoch, RunState.COMPLETED, "", params.text)
        return {}

    # --- methods -------------------------------------------------------------------------------------------------

    async def _generate(self, held: Held, params: Any) -> dict[str, Any]:
        model = self._parts.models.get(params.model)
        if model is None or params.model != self._parts.config.model:
            raise NotFound(f"no such model: {params.model!r}")
        reply = await model.generate([asdict(message) for message in params.messages], params.tools)
        return {"text": reply.text, "tool_calls": [dict(call) for call in reply.tool_calls], "stop": reply.stop}

    async def _step_begin(self, held: Held, params: Any) -> dict[str, Any]:
        if held.cancelled:
            raise Conflict("the run is being cancelled")
        effect = Effect(params.effect)
        step_digest = digest(params.tool, params.arguments, effect)
        try:
            step, new = await self._parts.store.steps.begin(
                held.id, held.epoch, params.n, params.tool, params.arguments, step_digest, effect
            )
        except Diverged as error:
            await self._diverged(held, params, error)
            raise
        if step.state is not StepState.BEGUN:
            return _done(step.result or {})
        if effect is not Effect.LOCAL:
            return {"decision": "run", "result": None, "reason": ""}
        assert held.box is not None
        if step.tool != "shell":
            result = invalid(f"no such command tool: {step.tool}")
            ended = await self._parts.store.steps.end(held.id, held.epoch, step.n, result, False)
            return _done(ended.result or result)
        end = await self._shell.run(held.box, held.id, step.n, step.arguments, new)
        ended = await self._parts.store.steps.end(held.id, held.epoch, step.n, end.result, end.interrupted)
        await self._shell.recorded(held.box, held.id, step.n)
        return _done(ended.result or end.result)

    async def _step_end(self, held: Held, params: Any) -> dict[str, Any]:
        for step in await self._parts.store.steps.all(held.id):
            if step.n == params.n and step.effect is Effect.LOCAL and step.state is StepState.BEGUN:
                raise Conflict(f"step {params.n} is a command: the host records its end")
        await self._parts.store.steps.end(held.id, held.epoch, params.n, params.result, False)
        return {}

    async def _checkpoint(self, held: Held, params: Any) -> dict[str, Any]:
        size = ascii_bytes(params.state)
        if size > CHECKPOINT_BYTES:
            raise TooLarge(f"the checkpoint has {size} bytes as JSON; the limit is {CHECKPOINT_BYTES}")
        await self._parts.store.steps.save_checkpoint(held.id, held.epoch, params.boundary, params.step, params.state)
        return {}

    async def _finish(self, held: Held, params: Any) -> dict[str, Any]:
        size = len(params.text.encode("utf-8", "surrogatepass"))
        if size > MAX_MESSAGE_BYTES:
            raise TooLarge(f"the reply has {size} bytes; the limit is {MAX_MESSAGE_BYTES}")
        await self._redriver.end(held.run, RunState.COMPLETED, "", params.text)
        return {}

    async def _fail(self, held: Held, params: Any) -> dict[str, Any]:
        code = params.code if _CODE.match(params.code) else "loop_failed"
        if code in _OURS:
            await self._redriver.lost(held, code)
            return {}
        await self._detail(held, {"code": code, "message": params.message[:_DETAIL_CHARS]})
        await self._redriver.end(held.run, RunState.FAILED, code)
        return {}

    # --- failures ------------------------------------------------------------------------------------------------

    async def _diverged(self, held: Held, params: Any, error: Diverged) -> None:
        """The run fails; what was recorded and what was asked are both shown to its actor."""
        steps = {step.n: step for step in await self._parts.store.steps.all(held.id)}
        recorded = steps.get(params.n)
        await self._detail(
            held,
            {
                "code": "diverged",
                "message": error.message,
                "step": params.n,
                "recorded": _shown(recorded.tool, recorded.arguments) if recorded is not None else None,
                "asked": _shown(params.tool, params.arguments),
            },
        )
        await self._redriver.end(held.run, RunState.FAILED, "diverged")
        self._crew.go(self._stop_loop(held), f"stop {held.id}")

    async def _detail(self, held: Held, body: Mapping[str, Any]) -> None:
        run = held.run
        try:
            await self._parts.store.events.append(
                run.thread, EventKind.RUN_DETAIL, body, actor=run.actor, turn=run.turn, run=run.id
            )
        except RingfenceError as error:  # the words are lost, the run's end is not
            self._log.warning("run %s: the detail of its failure was not kept: %s", run.id, error)


def _done(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"decision": "done", "result": dict(result), "reason": ""}


def _shown(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"tool": tool, "arguments": json.dumps(arguments, sort_keys=True)[:_DETAIL_CHARS]}
