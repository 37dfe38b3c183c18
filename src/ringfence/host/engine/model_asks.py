"""model.generate and run.event: what the model is asked, and what whoever watches sees while it answers.

Live text goes to the run's own actor alone and is kept nowhere. What a provider does wrong must never be more than the
failure of one ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ringfence.host.engine.chat import spelled
from ringfence.host.engine.conversations import Conversations
from ringfence.host.engine.live import Held
from ringfence.host.engine.model_call import while_wanted
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import Failed, NotFound, RingfenceError, TooLarge, Unavailable
from ringfence.host.kernel.ids import ThreadId, UserId
from ringfence.host.kernel.models.ports import Caller
from ringfence.host.kernel.ports import Model, ModelFor, ModelReply

PROGRESS_BYTES = 4096

Publish = Callable[[ThreadId, UserId, Mapping[str, Any]], None]


class ModelAsks:
    def __init__(self, parts: Parts, publish: Publish) -> None:
        self._parts, self._publish = parts, publish
        self._conversations = Conversations(parts.store)
        self._log = logging.getLogger("ringfence.engine")

    async def generate(self, held: Held, params: Any) -> dict[str, Any]:
        """Unavailable: no answer in time, or the soft deadline came first. Failed: the provider did what none may. Exhausted:
        the budget of the run or of its user is used up."""
        model = self._parts.models.get(params.model)
        if model is None or params.model != self._parts.config.model:
            raise NotFound(f"no such model: {params.model!r}")
        asked = model if not isinstance(model, ModelFor) else model.of(await self._caller(held))
        messages, tools = spelled(params.messages, params.tools)

        def on_delta(text: str) -> None:
            if text and not held.over.is_set():
                self._show(held, {"kind": "delta", "call": params.call, "text": text})

        reply = await while_wanted(
            held,
            lambda: self._replied(held, asked, params.blob, messages, tools, on_delta),
            tools=bool(tools),
            passed=held.past_soft(self._parts.config.soft_seconds, self._parts.clock.monotonic()),
        )
        usage = None
        if reply.usage is not None:
            usage = {"input_tokens": reply.usage[0], "output_tokens": reply.usage[1]}
        calls = [dict(call) for call in reply.tool_calls]
        return {"text": reply.text, "tool_calls": calls, "stop": reply.stop, "usage": usage}

    async def _caller(self, held: Held) -> Caller:
        user = await self._parts.store.users.by_id(held.run.actor)
        return Caller(user.tenant, user.id, held.id, held.box)

    async def event(self, held: Held, params: Any) -> dict[str, Any]:
        """TooLarge."""
        size = len(params.text.encode("utf-8", "surrogatepass"))
        if size > PROGRESS_BYTES:
            raise TooLarge(f"the event has {size} bytes; the limit is {PROGRESS_BYTES}")
        self._show(held, {"kind": "progress", "text": params.text})
        return {}

    def _show(self, held: Held, item: Mapping[str, Any]) -> None:
        run = held.run
        self._publish(run.thread, run.actor, {**item, "run": run.id, "turn": run.turn})

    async def _replied(
        self,
        held: Held,
        model: Model,
        blob: str | None,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        on_delta: Callable[[str], None],
    ) -> ModelReply:
        if blob is None:
            return await self._asked(model, messages, tools, on_delta)
        async with held.large:  # what a run has in memory of its blobs is one conversation, however many it asks for
            said = await self._conversations.read(held.id, held.epoch, blob)
            try:
                return await self._asked(model, said, tools, on_delta)
            except BaseException:
                said.clear()  # an error has the frames that it came through, and is kept longer than 16 MiB should be
                raise

    async def _asked(
        self, model: Model, messages: list[dict[str, Any]], tools: list[dict[str, Any]], on_delta: Callable[[str], None]
    ) -> ModelReply:
        seconds = self._parts.config.model_timeout_seconds
        try:
            async with asyncio.timeout(seconds) as timer:
                return await model.generate(messages, tools, on_delta)
        except RingfenceError:
            raise
        except Exception as error:
            if timer.expired():
                raise Unavailable(f"the model did not answer within {seconds:g} s") from None
            self._log.exception("the model provider broke down")
            raise Failed("the model provider broke down; the server's log says how") from error
