"""A double of the engine's sweep: nothing was left behind."""

from __future__ import annotations

from collections.abc import Collection

from ringfence.host.kernel.life.debris import Report
from ringfence.host.kernel.people import Actor


class Debris:
    async def sweep(self, actor: Actor, *, dry_run: bool, boxes: Collection[str] = ()) -> Report:
        return Report([], dry_run)
