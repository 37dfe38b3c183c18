"""run.finish and run.fail: how a loop brings its run to an end, and what its actor is told of a failure.

A reply ends the run only when it answers everything that was said to the turn. A loop's word for a failure is its own;
the words that mean a decision of the host are not taken from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ringfence.host.engine.details import DETAIL_CHARS, tell
from ringfence.host.engine.history import FRAME_BYTES, OVERHEAD, first
from ringfence.host.engine.live import Held
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redrive import Redriver
from ringfence.host.kernel.errors import Steered, TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES

# What a loop gives up with because this server failed it: another attempt is due, not a failed run.
OURS = frozenset({"unavailable", "disk_full", "box_lost"})
HOST_ONLY = frozenset(
    {
        "cancelled",
        "deadline",
        "diverged",
        "incompatible",
        "message_too_large",
        "not_replayable",
        "retries_exhausted",
        "user_disabled",
        "user_removed",
    }
)
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")


def code_of(said: str) -> str:
    """The reason of a failure, from what the loop calls it."""
    return said if _CODE.match(said) and said not in HOST_ONLY else "loop_failed"


class Endings:
    def __init__(self, parts: Parts, redriver: Redriver) -> None:
        self._parts, self._redriver = parts, redriver

    async def finish(self, held: Held, params: Any) -> dict[str, Any]:
        """Fields of wire.messages.Finished. TooLarge."""
        size = len(params.text.encode("utf-8", "surrogatepass"))
        if size > MAX_MESSAGE_BYTES:
            raise TooLarge(f"the reply has {size} bytes; the limit is {MAX_MESSAGE_BYTES}")
        try:
            await self._redriver.end(held.run, RunState.COMPLETED, "", params.text, params.seen)
        except Steered:
            said = await self._parts.store.turns.said(held.run.turn)
            more = [message for message in said[1:] if message.cursor > params.seen]  # the first is the turn's own
            return {"steers": first(more, FRAME_BYTES - OVERHEAD)}
        return {"steers": []}

    async def finished_again(self, run: RunId, epoch: int, text: str) -> dict[str, Any]:
        """A run that is over and whose first answer was lost with a wire. Conflict: with other words."""
        await self._parts.store.runs.end(run, epoch, RunState.COMPLETED, "", text)
        return {"steers": []}

    async def give_up(self, held: Held, params: Any) -> dict[str, Any]:
        code, message = code_of(params.code), params.message[:DETAIL_CHARS]
        if code in OURS:
            await self._redriver.lost(held, code, f"the agent loop gave up ({code}): {message}")
            return {}
        await self.fail(held.run, code, {"code": code, "message": message})
        return {}

    async def fail(self, run: Run, reason: str, detail: Mapping[str, Any]) -> None:
        """`detail`: for the run's actor alone; it stands in the thread before the end. StaleEpoch."""
        await tell(self._parts, run, detail)
        await self._redriver.end(run, RunState.FAILED, reason)
