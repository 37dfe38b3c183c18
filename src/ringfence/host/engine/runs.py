"""Runs as people and operators see them; and cancelling one.

Steps are for the run's actor. Other members of the thread see that the run is there; an operator sees that steps happened.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from ringfence.host.engine.doors import Doors, refuse
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action, Answer, Relation, decide, towards_thread
from ringfence.host.kernel.errors import Invalid, NotFound
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.people import Actor, User
from ringfence.host.kernel.runs import Run, Step
from ringfence.host.kernel.threads import Thread

MAX_LIST = 1000


@dataclass(frozen=True, slots=True)
class RunView:
    run: Run  # without its token's hash
    user: str
    thread: str
    steps: list[Step]


class Runs:
    def __init__(self, parts: Parts, doors: Doors, cancelled: Callable[[Run], Awaitable[None]]) -> None:
        """`cancelled`: ends the loop and commands of a run that is at work."""
        self._parts, self._doors, self._cancelled = parts, doors, cancelled

    async def list(self, actor: Actor, tenant: str, limit: int) -> builtins.list[RunView]:
        """Newest first, of the threads that the actor may see. Without steps."""
        if not 1 <= limit <= MAX_LIST:
            raise Invalid(f"a limit of {limit} is not allowed", remedy=f"ask for 1 to {MAX_LIST}")
        row = await self._doors.tenant(Action.TENANT_SEE, actor, tenant)
        threads = {thread.id: thread for thread in await self._parts.store.threads.of_tenant(row.id)}
        names = {user.id: user.name for user in await self._parts.store.users.all(tenant)}
        views = []
        for run in await self._parts.store.runs.all(row.id, MAX_LIST):
            thread = threads.get(run.thread)
            if thread is None or decide(Action.RUN_SEE, actor, _towards(actor, run, thread)).answer is not Answer.ALLOW:
                continue
            views.append(RunView(replace(run, token_hash=""), names.get(run.actor, run.actor), thread.name, []))
            if len(views) == limit:
                break
        return views

    async def show(self, actor: Actor, run_id: str) -> RunView:
        run, thread, relation = await self._seen(actor, run_id)
        steps: list[Step] = []
        if decide(Action.RUN_STEPS, actor, relation).answer is Answer.ALLOW:
            steps = await self._parts.store.steps.all(run.id)
        if decide(Action.RUN_DETAIL, actor, relation).answer is not Answer.ALLOW:
            steps = [replace(step, arguments={}, result=None, digest="") for step in steps]
        user = await self._name(run)
        return RunView(replace(run, token_hash=""), user, thread.name, steps)

    async def cancel(self, actor: Actor, run_id: str) -> Run:
        """The run ends as soon as its loop does. A final run stays what it is."""
        run, _, relation = await self._seen(actor, run_id)
        verdict = decide(Action.RUN_CANCEL, actor, relation)
        if verdict.answer is not Answer.ALLOW:
            refuse(verdict)
        if verdict.recorded:
            await self._parts.store.audit.record(actor, Action.RUN_CANCEL.value, f"run:{run.id}", {})
        await self._cancelled(await self._parts.store.runs.cancel(run.id))
        return replace(await self._parts.store.runs.get(run.id), token_hash="")

    async def _seen(self, actor: Actor, run_id: str) -> tuple[Run, Thread, Relation]:
        absent = NotFound(f"no such run: {run_id!r}", remedy="ringfence run ls")
        try:
            run = await self._parts.store.runs.get(RunId(run_id))
            thread = await self._parts.store.threads.by_id(run.thread)
        except NotFound:
            raise absent from None
        relation = _towards(actor, run, thread)
        if decide(Action.RUN_SEE, actor, relation).answer is not Answer.ALLOW:
            raise absent
        return run, thread, relation

    async def _name(self, run: Run) -> str:
        try:
            user: User = await self._parts.store.users.by_id(run.actor)
        except NotFound:
            return run.actor  # removed since
        return user.name


def _towards(actor: Actor, run: Run, thread: Thread) -> Relation:
    """A run's actor who has left the thread keeps what was its own."""
    if actor.user is not None and actor.user.id == run.actor:
        return Relation.SELF
    return towards_thread(actor, thread.tenant, thread.members)
