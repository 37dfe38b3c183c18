"""Effects on their way out and the search for evidence of them: the only place that lets a capability act.

`sent` is on disk, and the audit has the intent, before the first byte goes out. One flight for a key at a time: whoever
asks again, also under a newer epoch, joins it. What a flight finds out when nobody waits for it any more is written down
all the same. A tool that breaks has given no answer. It must never send what the ledger does not have as `sent` under
the run's own epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.audit import Outcome
from ringfence.host.kernel.capabilities import Sending, Sent, Tool
from ringfence.host.kernel.effects import EffectRow, EffectState
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.failpoints import Point
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import Evidence

LOOK_UPS = 3  # for one decision, with a second and then two between them: a receiver that is just coming back
PAUSE = 1.0

Key = tuple[RunId, int]
STATES = {
    Evidence.DONE: EffectState.DONE,
    Evidence.NOT_DONE: EffectState.NOT_DONE,
    Evidence.UNKNOWN: EffectState.UNKNOWN,
}


class SendingOut:
    def __init__(self, parts: Parts, crew: Crew, live: LiveRuns) -> None:
        self._parts, self._crew, self._live = parts, crew, live
        self._flights: dict[Key, asyncio.Future[tuple[EffectRow, Sent]]] = {}
        self._log = logging.getLogger("ringfence.engine")

    def tool_for(self, row: EffectRow) -> Tool | None:
        """The tool, if it still means the same by these arguments as when the intent was written."""
        tool = self._parts.capabilities.get(row.capability)
        if tool is None or tool.wrong(row.arguments) or tool.sealed(row.arguments).digest != row.sealed:
            return None
        return tool

    def flying(self, row: EffectRow) -> bool:
        return (row.run, row.n) in self._flights

    async def send(self, row: EffectRow, epoch: int, tool: Tool) -> tuple[EffectRow, Sent]:
        """Marks it as sent under `epoch`, and sends it; joins a flight that is under way. The row as that try has it.
        StaleEpoch, Conflict."""
        key = (row.run, row.n)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = self._crew.begin(self._fly(row, epoch, tool), f"effect {row.key}")
        try:
            return await asyncio.shield(flight)
        finally:
            if flight.done() and self._flights.get(key) is flight:
                del self._flights[key]

    async def _fly(self, row: EffectRow, epoch: int, tool: Tool) -> tuple[EffectRow, Sent]:
        try:
            marked = await self._parts.store.effects.mark(row.run, epoch, row.n, EffectState.SENT, tries=row.tries)
            row = replace(marked, key=row.key, arguments=row.arguments)  # what was judged, not what is read anew
            sent = await self._reach_out(row, tool)
            if self._live.get(row.run) is None:
                await self._late(row, epoch, sent)
                self._flights.pop((row.run, row.n), None)
            return row, sent
        except Exception:
            self._flights.pop((row.run, row.n), None)
            raise

    async def _reach_out(self, row: EffectRow, tool: Tool) -> Sent:
        failpoints = self._parts.failpoints
        await failpoints.areach(Point.EFFECT_SEND_BEFORE, row.key, lambda: tool.send(_sending(row)))
        sent = await self._guarded(row, tool.send)
        await failpoints.areach(Point.EFFECT_SEND_AFTER, row.key)
        return sent

    async def _guarded(self, row: EffectRow, ask: Callable[[Sending], Awaitable[Sent]]) -> Sent:
        """A tool raises nothing (kernel.capabilities). One that does nevertheless may have done anything."""
        try:
            return await ask(_sending(row))
        except Exception as error:
            self._log.exception("effect %s: %s is broken", row.key, row.capability)
            return Sent(Evidence.UNKNOWN, {"error": f"it broke down here: {type(error).__name__}"})

    async def _late(self, row: EffectRow, epoch: int, sent: Sent) -> None:
        """Known when nobody waits for it any more. If the run has ended since, its actor is told; if others have gone on
        with it, they found out by themselves, and the audit alone is told what this try was answered."""
        if sent.evidence is Evidence.UNKNOWN:
            return
        late = await self._parts.store.effects.settle_late(
            row.run, epoch, row.n, STATES[sent.evidence], dict(sent.result)
        )
        if late is None and row.intent is not None:
            await self._told(row.intent, sent)

    async def _told(self, intent: str, sent: Sent) -> None:
        """An audit that takes no outcome now does not make the effect undone."""
        try:
            await self._parts.store.audit.outcome(intent, Outcome(sent.evidence.value), {"late": True})
        except RingfenceError as error:
            self._log.error("the outcome of intent %s is not in the audit: %s", intent, error)

    async def look_up(self, row: EffectRow, seconds: float | None = None) -> Sent:
        """Evidence of what may have gone out: the end of its flight if there is one, else what the receiver knows of the
        key. UNKNOWN also after `seconds`. Never raises."""
        try:
            async with asyncio.timeout(seconds):
                return await self._evidence(row)
        except TimeoutError:
            return Sent(Evidence.UNKNOWN, {"error": f"no evidence within {seconds} s"})

    async def _evidence(self, row: EffectRow) -> Sent:
        flight = self._flights.get((row.run, row.n))
        if flight is not None:
            try:
                _, sent = await asyncio.shield(flight)
                if sent.evidence is not Evidence.UNKNOWN:
                    return sent
            except Exception as error:
                self._log.info("effect %s: %s", row.key, error)
        tool = self.tool_for(row)
        if tool is None or not tool.capability.lookup:
            return Sent(Evidence.UNKNOWN, {"error": "what it refers to is not declared any more, or is another one"})
        for attempt in range(LOOK_UPS):
            await asyncio.sleep(PAUSE * attempt)
            sent = await self._ask_about(row, tool)
            if sent.evidence is not Evidence.UNKNOWN:
                break
        return sent

    async def _ask_about(self, row: EffectRow, tool: Tool) -> Sent:
        failpoints = self._parts.failpoints
        await failpoints.areach(Point.LOOKUP_SEND_BEFORE, row.key, lambda: tool.look_up(_sending(row)))
        sent = await self._guarded(row, tool.look_up)
        await failpoints.areach(Point.LOOKUP_SEND_AFTER, row.key)
        return sent


def _sending(row: EffectRow) -> Sending:
    return Sending(row.key, row.run, row.n, row.arguments)
