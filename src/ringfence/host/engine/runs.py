"""Runs as people and operators see them; cancelling one, and having a failed one tried again.

Steps are for the run's actor. Other members of the thread see that the run is there; an operator sees that steps happened.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ringfence.host.engine.as_somebody import AsSomebody
from ringfence.host.engine.doors import Doors, refuse
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redaction import REMOVED
from ringfence.host.kernel.access import Action, Answer, Relation, decide, towards_thread
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound
from ringfence.host.kernel.ids import RunId, ThreadId
from ringfence.host.kernel.people import Actor, User
from ringfence.host.kernel.runs import Run, RunState, Step, redrivable
from ringfence.host.kernel.threads import Thread

MAX_LIST = 1000


@dataclass(frozen=True, slots=True)
class RunView:
    run: Run  # without its token's hash, and without its box for who may not see that
    user: str  # a name, or REMOVED
    thread: str
    steps: list[Step]
    detail: str = ""  # of one at work whose server is gone: so
    models: Mapping[str, Any] | None = None  # what its calls of models used: kernel.models.ports.Spending


class Runs:
    def __init__(
        self, parts: Parts, doors: Doors, cancelled: Callable[[Run], Awaitable[None]], wake: Callable[[], None]
    ) -> None:
        """`cancelled`: ends the loop and commands of a run that is at work. `wake`: there may be work to claim."""
        self._parts, self._doors, self._cancelled, self._wake = parts, doors, cancelled, wake
        self._judge = parts.pen.judge
        self._as_somebody = AsSomebody(parts)
        self._log = logging.getLogger("ringfence.engine")

    async def list(self, actor: Actor, tenant: str, limit: int) -> builtins.list[RunView]:
        """Newest first, of the threads that the actor may see. Without steps."""
        if not 1 <= limit <= MAX_LIST:
            raise Invalid(f"a limit of {limit} is not allowed", remedy=f"ask for 1 to {MAX_LIST}")
        row = await self._doors.tenant(Action.TENANT_SEE, actor, tenant)
        threads = {thread.id: thread for thread in await self._parts.store.threads.of_tenant(row.id)}
        names = {user.id: user.name for user in await self._parts.store.users.all(tenant)}
        gone = await self._gone()
        views = []
        for run in await self._parts.store.runs.all(row.id, MAX_LIST):
            thread = threads.get(run.thread)
            if thread is None:
                continue
            relation = _towards(actor, run, thread)
            if decide(Action.RUN_SEE, actor, relation).answer is not Answer.ALLOW:
                continue
            user, seen = names.get(run.actor, REMOVED), _seen_by(actor, run, relation)
            views.append(RunView(seen, user, thread.name, [], gone.get(run.id, "")))
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
        else:
            await self._as_somebody.reads(actor, f"run:{run.id}", Action.RUN_DETAIL)
        user = await self._name(run)
        gone = await self._gone() if run.state is RunState.RUNNING else {}
        spending, used = self._parts.spending, None
        if spending is not None and decide(Action.RUN_STEPS, actor, relation).answer is Answer.ALLOW:
            used = await spending.of_run(run.id)
        return RunView(_seen_by(actor, run, relation), user, thread.name, steps, gone.get(run.id, ""), used)

    async def cancel(self, actor: Actor, run_id: str) -> Run:
        """A run that waits is cancelled at once; one at work as soon as its loop has ended, or is given up. The lane goes
        on either way. A final run stays what it is."""
        run, _ = await self._may(Action.RUN_CANCEL, actor, run_id)
        cancelled = await self._parts.store.runs.cancel(run.id, self._judge)
        self._wake()  # what waited may have held others of its lane back
        await self._cancelled(cancelled)
        return replace(await self._parts.store.runs.get(run.id), token_hash="")

    async def redrive(self, actor: Actor, run_id: str) -> Run:
        """A failed run back into the queue, with its journal and checkpoint: what it did is not done again. Conflict: it
        did not fail, would fail the same way, or its user may not read the thread any more (it would be given it)."""
        run, thread = await self._may(Action.RUN_REDRIVE, actor, run_id, _tried_again)
        reopened = await self._parts.store.runs.reopen(run.id)
        self._log.info("run %s is tried again in thread %s", run.id, thread.id)
        self._wake()
        return replace(reopened, token_hash="")

    async def _may(
        self, action: Action, actor: Actor, run_id: str, check: Callable[[Run, Thread], None] | None = None
    ) -> tuple[Run, Thread]:
        """Past the table, then past `check`; recorded when that is due, before anything is done."""
        run, thread, relation = await self._seen(actor, run_id)
        verdict = decide(action, actor, relation)
        if verdict.answer is not Answer.ALLOW:
            refuse(verdict)
        if check is not None:
            check(run, thread)
        if verdict.recorded:
            await self._parts.store.audit.record(actor, action.value, f"run:{run.id}", {})
        return run, thread

    async def _seen(self, actor: Actor, run_id: str) -> tuple[Run, Thread, Relation]:
        self._doors.proven(actor)
        absent = NotFound(f"no such run: {run_id!r}", remedy="ringfence run ls")
        run = None
        # A thread is looked for all the same: the time is not to tell this from a run of others.
        with suppress(NotFound):
            run = await self._parts.store.runs.get(RunId(run_id))
        try:
            thread = await self._parts.store.threads.by_id(run.thread if run is not None else ThreadId(""))
        except NotFound:
            raise absent from None
        if run is None:
            raise absent
        relation = _towards(actor, run, thread)
        if decide(Action.RUN_SEE, actor, relation).answer is not Answer.ALLOW:
            raise absent
        return run, thread, relation

    async def _gone(self) -> dict[RunId, str]:
        """Of runs whose server is gone: what there is to say of it."""
        return {one.run.id: one.words for one in await self._parts.store.runs.abandoned()}

    async def _name(self, run: Run) -> str:
        try:
            user: User = await self._parts.store.users.by_id(run.actor)
        except NotFound:
            return REMOVED
        return user.name


def _towards(actor: Actor, run: Run, thread: Thread) -> Relation:
    """A run's actor who has left the thread keeps what was its own."""
    if actor.user is not None and actor.user.id == run.actor:
        return Relation.SELF
    return towards_thread(actor, thread.tenant, thread.members)


def _seen_by(actor: Actor, run: Run, relation: Relation) -> Run:
    """Without its token's hash; which box it works in is for those who may see that box."""
    shown = decide(Action.BOX_SEE, actor, relation).answer is Answer.ALLOW
    return replace(run, token_hash="", box=run.box if shown else None)


def _tried_again(run: Run, thread: Thread) -> None:
    """Conflict."""
    why = redrivable(run)
    if not why and run.actor not in thread.members:
        why = "its user is no longer a member of the thread"
    if why:
        raise Conflict(
            f"run {run.id} is not tried again: {why}", remedy=f"see: ringfence run show {run.id}", run=run.id
        )
