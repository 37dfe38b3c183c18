"""step.begin and step.end: the journal of a run, written before a step happens and when it has ended.

A command is run by the host under the key (run, n); a loop cannot say how one ended. A capability is carried out by the
host itself (capability_asks); its name decides, and the effect class is the host's, whatever the loop says. What the journal
has is answered from the journal, and an ask that differs from it ends the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ringfence.host.engine.advice import Advice
from ringfence.host.engine.capability_asks import CapabilityAsks
from ringfence.host.engine.endings import Endings
from ringfence.host.engine.live import Held
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.questions import refused
from ringfence.host.engine.results import invalid
from ringfence.host.engine.shell import ShellSteps
from ringfence.host.kernel.canonical import canonical_json, digest_of
from ringfence.host.kernel.errors import Conflict, Diverged, Invalid, StaleEpoch
from ringfence.host.kernel.runs import Effect, Step, StepState

ARGUMENTS_BYTES = 256 * 1024  # as JSON, what the journal takes
_SHOWN_CHARS = 2000
HOST = "host"  # what a loop says of a tool that the host carries out
_ABSENT = Effect.ONCE  # of a tool that is not declared any more: the one that is never done again by itself
_TOOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}\Z")


class StepAsks:
    def __init__(
        self,
        parts: Parts,
        shell: ShellSteps,
        capabilities: CapabilityAsks,
        advice: Advice,
        endings: Endings,
        stop: Callable[[Held], None],
    ) -> None:
        """`stop`: has the loop of a run stopped that is over."""
        self._parts, self._shell, self._capabilities, self._advice = parts, shell, capabilities, advice
        self._endings, self._stop = endings, stop

    async def begin(self, held: Held, params: Any) -> dict[str, Any]:
        """Invalid: no name of a tool. StepGap, Diverged."""
        if not _TOOL.match(params.tool):
            raise Invalid(f"no name of a tool: {params.tool[:80]!r}")
        tool, effect = self._parts.capabilities.get(params.tool), await self._effect(held, params)
        spelled = canonical_json(params.arguments)
        size, step_digest = len(spelled), digest_of(params.tool, spelled, effect)
        fits = size <= ARGUMENTS_BYTES
        arguments = params.arguments if fits else {"left_out": f"{size} bytes of arguments"}
        try:
            step, new = await self._parts.store.steps.begin(
                held.id, held.epoch, params.n, params.tool, arguments, step_digest, effect
            )
        except Diverged as error:
            await self._diverged(held, params, error)
            raise
        if step.state is not StepState.BEGUN:
            return _done(step.result or {})
        if not fits:  # for the model, that it may do it another way; not the end of the run
            why = f"the arguments have {size} bytes as JSON; the limit is {ARGUMENTS_BYTES}: do it in smaller parts"
            return await self._ended(held, step, invalid(why), False)
        if tool is not None or (not new and await self._has_effect(held, step)):
            return _done(await self._capabilities.begin(held, step, new))
        if params.effect == HOST:  # of a checkpoint that knows a tool which is declared no more
            return await self._ended(held, step, invalid(f"no such tool any more: {step.tool}"), False)
        return await self._in_the_box(held, step, effect, new)

    async def _effect(self, held: Held, params: Any) -> Effect:
        """The host's word on what the host carries out, also of a tool that is declared no more: as the journal has it."""
        tool = self._parts.capabilities.get(params.tool)
        if tool is not None:
            return tool.capability.effect
        if params.effect != HOST and "." not in params.tool:  # no name of a capability
            return Effect(params.effect)
        recorded = await self._parts.store.steps.get(held.id, params.n)
        if recorded is not None and recorded.tool == params.tool:
            return recorded.effect
        return _ABSENT if params.effect == HOST else Effect(params.effect)

    async def _has_effect(self, held: Held, step: Step) -> bool:
        """Whether the ledger has something of it: then its end is there, whatever is declared by now."""
        return "." in step.tool and await self._parts.store.effects.get(held.id, step.n) is not None

    async def _in_the_box(self, held: Held, step: Step, effect: Effect, new: bool) -> dict[str, Any]:
        advised = await self._advice.begin(held, step, new)
        if advised.refused:
            return await self._ended(held, step, refused(advised.refused), False)
        if effect is not Effect.LOCAL:
            return {"decision": "run", "result": None, "reason": ""}
        if step.tool != "shell":
            return await self._ended(held, step, invalid(f"no such command tool: {step.tool}"), False)
        return await self._command(held, step, new or advised.approved)

    async def _command(self, held: Held, step: Step, new: bool) -> dict[str, Any]:
        assert held.box is not None
        if held.over.is_set():  # meanwhile: nothing may start for it any more
            raise StaleEpoch(f"run {held.id} is over")
        end = await self._shell.run(held.box, held.id, step.n, step.arguments, new, held.epoch)
        answer = await self._ended(held, step, end.result, end.interrupted)
        await self._shell.recorded(held.box, held.id, step.n)
        return answer

    async def _ended(self, held: Held, step: Step, result: dict[str, Any], interrupted: bool) -> dict[str, Any]:
        ended = await self._parts.store.steps.end(held.id, held.epoch, step.n, result, interrupted)
        return _done(ended.result or result)

    async def end(self, held: Held, params: Any) -> dict[str, Any]:
        step = await self._parts.store.steps.get(held.id, params.n)
        if step is not None and step.state is StepState.BEGUN and self._hosts(step):
            raise Conflict(f"step {params.n} is carried out by the host, which records its end")
        await self._parts.store.steps.end(held.id, held.epoch, params.n, params.result, False)
        return {}

    def _hosts(self, step: Step) -> bool:
        return step.effect in (Effect.LOCAL, Effect.ONCE) or step.tool in self._parts.capabilities

    async def _diverged(self, held: Held, params: Any, error: Diverged) -> None:
        """The run fails; what was recorded and what was asked are both shown to its actor."""
        recorded = await self._parts.store.steps.get(held.id, params.n)
        body = {
            "code": "diverged",
            "message": error.message,
            "step": params.n,
            "recorded": _shown(recorded.tool, recorded.arguments) if recorded is not None else None,
            "asked": _shown(params.tool, params.arguments),
        }
        await self._endings.fail(held.run, "diverged", body)
        self._stop(held)


def _done(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"decision": "done", "result": dict(result), "reason": ""}


def _shown(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"tool": tool, "arguments": json.dumps(arguments, sort_keys=True)[:_SHOWN_CHARS]}
