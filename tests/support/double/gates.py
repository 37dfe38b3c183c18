"""Gates of the double: none."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ringfence.host.engine.gates import GateRow, GateView
from ringfence.host.engine.holds import HoldView
from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.people import Actor


@dataclass
class Gates:
    async def ls(
        self, actor: Actor, tenant: str, states: Collection[str], run: str | None, limit: int
    ) -> list[GateRow]:
        return []

    async def show(self, actor: Actor, gate_id: str) -> GateView:
        raise NotFound(f"no such gate: {gate_id!r}", remedy="ringfence gate ls")

    async def answer(self, actor: Actor, gate_id: str, said: str, key: str | None) -> GateView:
        return await self.show(actor, gate_id)


class Holds:
    """None either."""

    async def ls(self, actor: Actor, tenant: str, run: str | None, limit: int) -> list[HoldView]:
        return []

    async def show(self, actor: Actor, hold: str) -> HoldView:
        raise NotFound(f"no such gate: {hold!r}", remedy="ringfence gate ls")

    async def answer(self, actor: Actor, hold: str, said: str) -> HoldView:
        return await self.show(actor, hold)
