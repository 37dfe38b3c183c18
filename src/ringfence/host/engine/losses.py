"""Loops and boxes that end under their runs: told why, as far as the host knows it, and left to the redrive table.

It must never take a box's word for more than that its loop has ended.
"""

from __future__ import annotations

from ringfence.host.engine.leaving import Leaving
from ringfence.host.engine.links import Links
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.oom import SIGKILL
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redrive import Redriver
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId, RunId


class Losses:
    def __init__(self, parts: Parts, live: LiveRuns, links: Links, redriver: Redriver, leaving: Leaving) -> None:
        self._parts, self._live, self._links = parts, live, links
        self._redriver, self._leaving = redriver, leaving

    async def loop_ended(self, box: BoxId, run: RunId, words: str, signal: int | None = None) -> None:
        """`words`: how it did, for the run's actor."""
        held = self._live.get(run)
        if held is not None and held.box == box and held.started:
            oom = await self._out_of_memory(box) if signal == SIGKILL else ""
            await self._redriver.lost(held, "oom" if oom else "loop_ended", oom or words)
        if self._live.get(run) is None:
            self._leaving.gone(run)

    async def _out_of_memory(self, box: BoxId) -> str:
        """What to say when the kernel has killed for memory since anybody looked last; empty when it has not."""
        now = self._parts.clock.monotonic()
        try:
            sight = await self._parts.driver.observe(box)
            limit = (await self._parts.store.boxes.get(box)).limits.memory
        except RingfenceError:
            return ""
        if not self._links.slot(box).kills.grew(now, now, sight.oom_kills):
            return ""
        return f"the box was out of memory: it used {sight.memory_peak_bytes} bytes at most, the limit is {limit}"

    def box_lost(self, box: BoxId) -> None:
        """Waits for nothing: whoever found it holds the box's lock. What becomes of its runs is decided by and by."""
        slot = self._links.find(box)
        full = slot.full if slot is not None else None
        for held in self._live.on(box):
            if full is not None:
                self._redriver.lost_soon(held, full.code, f"its box was stopped: {full.message}")
            else:
                self._redriver.lost_soon(held, "box_lost")
