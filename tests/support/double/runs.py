"""Runs of the double."""

from __future__ import annotations

import builtins
from dataclasses import dataclass

from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.runs import Run, RunState
from tests.support.double.agent import Agent, RunView


@dataclass
class Runs:
    agent: Agent

    def _sees(self, actor: Actor, view: RunView) -> bool:
        return actor.operator or (actor.user is not None and actor.user.id == view.run.actor)

    async def list(self, actor: Actor, tenant: str, limit: int) -> builtins.list[RunView]:
        return [view for view in self.agent.views.values() if self._sees(actor, view)][:limit]

    async def show(self, actor: Actor, run_id: str) -> RunView:
        view = self.agent.views.get(run_id)
        if view is None or not self._sees(actor, view):
            raise NotFound(f"no such run: {run_id!r}", remedy="ringfence run ls")
        return view

    async def cancel(self, actor: Actor, run_id: str) -> Run:
        await self.show(actor, run_id)
        return await self.agent.cancel(run_id)

    async def redrive(self, actor: Actor, run_id: str) -> Run:
        view = await self.show(actor, run_id)
        if view.run.state is not RunState.FAILED:
            raise Conflict(f"the run is {view.run.state.value}; only a failed one can be tried again")
        return await self.agent.redrive(run_id)
