"""Whether a box is at work, and since when it is not: commands, terminals, runs, held connections, bytes that move.

In memory, of this server's boxes. Looking never keeps a box awake. Must never say idle of a box in which something is being begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.ids import BoxId, TenantId
from ringfence.host.kernel.life.caps import Up

_MOVES = ("requests", "up", "down")  # of Egress.facts: what grows when something goes out or comes in


class Presence:
    def __init__(self, parts: Parts, links: Links, live: LiveRuns) -> None:
        self._parts, self._links, self._live = parts, links, live
        self._moved: dict[BoxId, tuple[tuple[int, ...], float]] = {}

    def at_work(self, slot: Slot) -> str:
        """What is under way in it, in words; "": nothing."""
        if runs := self._live.on(slot.box):
            return f"run {runs[0].id}" + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        if slot.uses:
            return "a command" if len(slot.uses) == 1 else f"{len(slot.uses)} commands"
        if slot.entering:
            return "a command that begins"
        return "a question about where it may connect to" if self._facts(slot).get("holds") else ""

    def idle(self, slot: Slot) -> float | None:
        """Seconds; None: it is at work."""
        now = self._parts.clock.monotonic()
        moved = self._last_moved(slot, now)
        if self.at_work(slot):
            return None
        return max(0.0, now - max(slot.active_at, slot.started_at, moved))

    def up(self, tenants: Mapping[BoxId, TenantId]) -> list[Up]:
        """Boxes of this server that run or are paused. One that is being started, stopped or dialled counts as at work."""
        found = []
        for slot in self._links:
            if slot.box in tenants and (slot.paused or slot.wire() is not None):
                idle = None if slot.lock.locked() or slot.quarantined else self.idle(slot)
                found.append(Up(slot.box, tenants[slot.box], idle))
        return found

    def _facts(self, slot: Slot) -> Mapping[str, Any]:
        egress = self._parts.egress
        stands = slot.paused and slot.paused_at is not None  # before that its way out is there still
        return {} if egress is None or stands else egress.facts(slot.box)

    def _last_moved(self, slot: Slot, now: float) -> float:
        facts = self._facts(slot)
        if not facts:
            return self._moved.get(slot.box, ((), 0.0))[1]
        counted = tuple(int(facts.get(name, 0)) for name in _MOVES)
        before, at = self._moved.get(slot.box, ((0,) * len(_MOVES), 0.0))
        if counted != before:
            at = now if any(counted) else at
            self._moved[slot.box] = (counted, at)
        return at

    def forget(self, box: BoxId) -> None:
        self._moved.pop(box, None)
