"""The audit as operators see it, and the task that signs other kernels' chains. It never writes what somebody asks for.

Walking all chains takes a core for seconds: one walk at a time, however many ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any

from ringfence.host.engine.doors import Doors
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.audit_check import Report
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.people import Actor


class Audits:
    def __init__(self, parts: Parts, doors: Doors) -> None:
        self._parts, self._doors = parts, doors
        self._walking = asyncio.Lock()
        self._log = logging.getLogger("ringfence.audit")

    async def list(
        self, actor: Actor, lanes: Collection[Lane], since: datetime | None, before: str | None, limit: int
    ) -> list[dict[str, Any]]:
        """Newest first. NotFound: no row has the id `before`."""
        await self._allowed(actor)
        return await self._parts.store.audit.page(lanes, since, before, limit)

    async def traffic(self, actor: Actor, limit: int) -> dict[str, Any]:
        """What this process remembers of it: {"newest", "totals", "dropped"}."""
        await self._allowed(actor)
        return self._parts.store.audit.seen(limit)

    async def verify(self, actor: Actor) -> Report:
        await self._allowed(actor)
        async with self._walking:
            return await self._parts.store.audit.verify()

    async def loop(self) -> None:
        """Signs once in a while, for as long as the server runs."""
        while True:
            await asyncio.sleep(self._parts.config.sign_seconds)
            try:
                await self._parts.store.audit.sign()
            except RingfenceError as error:
                self._log.warning("the chains of the audit are not signed: %s", error.message)

    async def _allowed(self, actor: Actor) -> None:
        await self._doors.operator_only(Action.AUDIT_READ, actor, "audit")
