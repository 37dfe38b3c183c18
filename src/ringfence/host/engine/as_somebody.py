"""What an operator reads as somebody else, in the audit before it is read.

Each act as somebody is recorded by the door that it passes. A stream reads every second for days, so that a read of one
thread as one user is recorded once in a while. It must never decide who may read.
"""

from __future__ import annotations

from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.people import Actor

AGAIN_SECONDS = 15 * 60.0
# (operator, user, subject) that are remembered. What is forgotten is recorded once more: never once less.
_MOST = 4096


class AsSomebody:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._until: dict[tuple[str, UserId, str], float] = {}  # monotonic; oldest first

    async def reads(self, actor: Actor, subject: str, action: Action = Action.THREAD_READ) -> None:
        """`subject`: "thread:<id>" or "run:<id>". Nothing, when the actor is who they are."""
        if not actor.impersonated or actor.user is None:
            return
        now, which = self._parts.clock.monotonic(), (actor.via, actor.user.id, subject)
        if self._until.get(which, 0.0) > now:
            return
        await self._parts.store.audit.record(actor, action.value, subject, {})
        self._until.pop(which, None)
        self._until[which] = now + AGAIN_SECONDS
        while len(self._until) > _MOST:
            del self._until[next(iter(self._until))]
