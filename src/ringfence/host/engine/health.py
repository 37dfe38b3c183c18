"""Health. `ping` answers from memory, whatever else is at work; `status` asks every part, each within a time of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from ringfence.host.engine.links import Links
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.parts import Parts, weak
from ringfence.host.engine.reconcile import Reconcile
from ringfence.host.engine.work import Work
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.people import Actor

PART_SECONDS = 2.0


class Health:
    def __init__(self, parts: Parts, links: Links, live: LiveRuns, work: Work, reconcile: Reconcile) -> None:
        self._parts, self._links, self._live = parts, links, live
        self._work, self._reconcile = work, reconcile
        self.started_at: datetime | None = None

    async def ping(self) -> dict[str, Any]:
        return {"ok": True, "version": self._parts.config.version}

    async def status(self, actor: Actor) -> dict[str, Any]:
        """Every part; an operator is told of boxes that the store does not know."""
        config = self._parts.config
        store, spawner = await asyncio.gather(self._within(self._parts.store.health), self._within(self._spawner))
        running = sum(1 for slot in self._links if slot.wire() is not None)
        total = await self._within(self._total)
        scheduler = {
            "ok": not self._work.claims_failed,
            "running": len(self._live),
            "limit": config.max_runs,
            "error": self._work.claims_failed,
        }
        driver = {"ok": spawner["ok"], "name": self._parts.driver.name, "weak": weak(self._parts)}
        parts = {"store": store, "spawner": spawner, "driver": driver, "scheduler": scheduler}
        boxes: dict[str, Any] = {
            "running": running,
            "total": total.get("total", 0),
            "adopted": len(self._reconcile.adopted),
        }
        if actor.operator:
            boxes["unknown"] = list(self._reconcile.unknown)
        return {
            "ok": all(bool(part["ok"]) for part in parts.values()),
            "version": config.version,
            "installation": config.installation,
            "mode": config.mode,
            "parts": parts,
            "boxes": boxes,
            "accepted": list(config.accepted),
            "weak": weak(self._parts),
            "started_at": self.started_at.isoformat() if self.started_at is not None else None,
        }

    async def _spawner(self) -> dict[str, Any]:
        facts = await self._parts.driver.facts()
        known = ("cgroups", "bwrap", "guest_digest")
        return {"ok": True, **{name: facts[name] for name in known if name in facts}}

    async def _total(self) -> dict[str, Any]:
        rows = await self._parts.store.boxes.all()
        return {"ok": True, "total": sum(1 for row in rows if row.desired.value != "removed")}

    async def _within(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Its answer, or `ok` False and why."""
        try:
            async with asyncio.timeout(PART_SECONDS):
                return await ask()
        except TimeoutError:
            return {"ok": False, "error": f"no answer within {PART_SECONDS:.0f} s"}
        except RingfenceError as error:
            return {"ok": False, "error": error.message}
