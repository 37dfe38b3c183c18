"""Health. `ping` answers from memory, whatever else is at work; `status` asks every part, each within a time of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.links import Links
from ringfence.host.engine.live import LiveRuns
from ringfence.host.engine.parts import Parts, weak
from ringfence.host.engine.people import MAKE_A_TENANT, NO_TENANT
from ringfence.host.engine.reconcile import Reconcile
from ringfence.host.engine.work import Work
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.runs import Abandoned

PART_SECONDS = 2.0
NOT_IN_FORCE = "stop boxes that use much (ringfence box ls; ringfence box stop U), or raise the limit in [limits_all]"
_LIMITS = ("limits_all", "limits_unmet")
_COUNTED = ("requests", "denials", "crashes", "holds")  # of the way out of each box
_DISK = ("disk", "disk_free", "disk_promised", "disk_reserve", "disk_broken")


class Health:
    def __init__(
        self, parts: Parts, crew: Crew, links: Links, live: LiveRuns, work: Work, reconcile: Reconcile
    ) -> None:
        self._parts, self._crew, self._links, self._live = parts, crew, links, live
        self._work, self._reconcile = work, reconcile
        self.started_at: datetime | None = None

    async def ping(self) -> dict[str, Any]:
        return {"ok": True, "version": self._parts.config.version}

    async def status(self, actor: Actor) -> dict[str, Any]:
        """Every part; an operator is told of the queue, of boxes that the store does not know, and of those whose disk is
        broken."""
        config = self._parts.config
        store, spawner = await asyncio.gather(self._within(self._parts.store.health), self._within(self._spawner))
        running = sum(1 for slot in self._links if slot.wire() is not None)
        total = await self._within(self._total)
        trouble = self._work.claims_failed or _fallen(self._crew.fallen)
        scheduler = {
            "ok": not trouble,
            "running": len(self._live),
            "limit": config.max_runs,
            **({"error": trouble} if trouble else {}),
        }
        disk, limits = _disk(spawner), _limits(spawner)
        driver = {"ok": spawner["ok"], "name": self._parts.driver.name, "weak": weak(self._parts)}
        parts = {
            "store": store,
            "spawner": spawner,
            "driver": driver,
            "scheduler": scheduler,
            "disk": disk,
            "limits": limits,
            "audit": self._parts.store.audit.state(),
            **await self._outward(),
        }
        if self._parts.shelf is not None:
            parts["copies"] = await self._within(self._copies)
        boxes: dict[str, Any] = {
            "running": running,
            "total": total.get("total", 0),
            "adopted": len(self._reconcile.adopted),
        }
        if actor.operator:
            parts["queue"] = await self._within(self._queue)
            parts["store"] = store | await self._within(self._tenants) if store["ok"] else store
            boxes["unknown"] = list(self._reconcile.unknown)
        else:
            disk.pop("broken_boxes", None)
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
        known = ("cgroups", "bwrap", "guest_digest", *_DISK, *_LIMITS)
        return {"ok": True, **{name: facts[name] for name in known if name in facts}}

    async def _outward(self) -> dict[str, Any]:
        """The vault, when there is one. Way out and gateway: none is no fault."""
        egress = self._parts.egress
        parts: dict[str, Any] = {"gateway": {"ok": True, "enabled": self._parts.spending is not None}}
        if self._parts.vault is not None:
            parts["vault"] = await self._within(self._vault)
        if egress is None:
            return parts | {"egress": {"ok": True, "enabled": False}}
        boxes = [egress.facts(slot.box) for slot in self._links if slot.wire() is not None]
        totals = {name: sum(int(each.get(name, 0)) for each in boxes) for name in _COUNTED}
        workers = sum(bool(each.get("worker")) for each in boxes)
        return parts | {"egress": {"ok": True, "enabled": True, "workers": workers, **totals}}

    async def _vault(self) -> dict[str, Any]:
        """Sealed, boxes run without credentials; `vault status` says what is altered, or unreadable for want of a key."""
        assert self._parts.vault is not None
        found = await self._parts.vault.look(self._parts.store.credentials)
        wrong = {
            "sealed": found["sealed"],
            "altered": len(self._parts.store.rolls.known()),
            "unreadable": 0 if found["sealed"] else found["unreadable"],
        }
        said = {name: value for name, value in wrong.items() if value}
        return {"ok": not said, **said}

    async def _copies(self) -> dict[str, Any]:
        """Whether there is a place for copies of boxes' files: without it nothing is archived, copied, or unpacked."""
        assert self._parts.shelf is not None
        await self._parts.shelf.ready()
        return {"ok": True}

    async def _queue(self) -> dict[str, Any]:
        """Of all tenants. What waits for people, boxes or time makes nothing unwell; a lane behind a run whose server is
        gone waits for an operator."""
        found = await self._parts.store.reads.backlog()
        since = found.queued_since
        waits = 0 if since is None else max(0, round((self._parts.clock.now() - since).total_seconds()))
        stuck = [one for one in await self._parts.store.runs.abandoned() if one.waits]
        facts = {
            "ok": not stuck,
            "queued": found.queued,
            "oldest_seconds": waits,
            "parked": found.parked,
            "dead_letters": found.dead,
        }
        return facts | {"problem": _stuck(stuck)} if stuck else facts

    async def _tenants(self) -> dict[str, Any]:
        """Nothing else would say why nobody is known."""
        if await self._parts.store.tenants.all():
            return {"ok": True}
        return {"ok": False, "problem": f"{NO_TENANT}: {MAKE_A_TENANT}"}

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


def _fallen(loops: Mapping[str, str]) -> str:
    """Whoever reads it restarts the server: nothing but its start begins a loop."""
    return "; ".join(f"{name} has ended ({why}): restart the server" for name, why in loops.items())


def _disk(spawner: dict[str, Any]) -> dict[str, Any]:
    """The volume of the boxes, out of the spawner's part. `ok` False: no new box is made. `overcommitted`: boxes that
    all use what they may would fill it. `broken_boxes`: whose image cannot be used; `box show` says why. One user's disk
    is no reason to call the server unwell."""
    how, free, promised, reserve, broken = (spawner.pop(name, 0) for name in _DISK)
    if not how:
        return {"ok": bool(spawner["ok"])}
    return {
        "ok": free >= reserve,
        "by": how,
        "free_bytes": free,
        "promised_bytes": promised,
        "reserve_bytes": reserve,
        "overcommitted": promised > free - reserve,
        "broken_boxes": broken or [],
    }


def _stuck(left: Sequence[Abandoned]) -> str:
    first = left[0]
    more = f", and {len(left) - 1} more like it" if len(left) > 1 else ""
    remedy = f"start it, or: ringfence run cancel {first.run.id}"
    return f"others wait behind run {first.run.id}: {first.words}{more}; {remedy}"


def _limits(spawner: dict[str, Any]) -> dict[str, Any]:
    """Of all boxes together, out of the spawner's part. `ok` False: boxes of before use more than one of them, which
    comes into force as they end."""
    whole, unmet = (spawner.pop(name, {}) for name in _LIMITS)
    if not unmet:
        return {"ok": bool(spawner["ok"]), **whole}
    return {"ok": False, **whole, "not_in_force": unmet, "remedy": NOT_IN_FORCE}
