"""thread.read and thread.summarise: older messages for a loop, and what it makes of them.

A loop is given messages and replies that its turn may see, never a step of anybody. Its summaries are its actor's own.
"""

from __future__ import annotations

from typing import Any

from ringfence.host.engine.history import History, page_of
from ringfence.host.engine.live import Held
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import Invalid, NotFound, TooLarge
from ringfence.host.kernel.threads import MAX_SUMMARY_BYTES

MAX_PAGE = 200


class HistoryAsks:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def read(self, held: Held, params: Any) -> dict[str, Any]:
        """Nothing once the run's actor is no member: the run goes on with what it was given, and the reply to an earlier
        message may have come since."""
        if not 1 <= params.limit <= MAX_PAGE:
            raise Invalid(f"a limit of {params.limit} is not allowed: ask for 1 to {MAX_PAGE}")
        said = await self._parts.store.turns.said(held.run.turn)
        if not said:
            raise NotFound(f"turn {held.run.turn} has no message")
        if held.run.actor not in (await self._parts.store.threads.by_id(held.run.thread)).members:
            return {"messages": [], "more": False}
        return await page_of(History(self._parts.store, held.run.thread, said[0]), params.before, params.limit)

    async def summarise(self, held: Held, params: Any) -> dict[str, Any]:
        """Invalid, TooLarge; Conflict: the cursor is not one of a message before the turn's own."""
        if not params.text.strip():
            raise Invalid("the summary is empty")
        size = len(params.text.encode("utf-8", "surrogatepass"))
        if size > MAX_SUMMARY_BYTES:
            raise TooLarge(f"the summary has {size} bytes; the limit is {MAX_SUMMARY_BYTES}")
        await self._parts.store.threads.set_summary(held.id, held.epoch, params.cursor, params.text)
        return {}
