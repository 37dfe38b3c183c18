"""Held connections as people see and answer them: gates of kind hold.

A hold asks the user of the box, or the owner of a user that is no person, about a request that a rule says `ask` to. As with
other gates an operator sees that it is there, not what is asked, and answers none; who acts as somebody answers as that user.
It is a wall. Must never answer by itself, nor add another rule than the one that was shown.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import get_args

from ringfence.host.engine.doors import Doors, refuse
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action, Answer, Verdict, decide, towards_user
from ringfence.host.kernel.errors import Invalid, NotFound, Refused
from ringfence.host.kernel.outward.ports import Hold, HoldSaid
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.people import Actor, Scope, User

ANSWERS: tuple[HoldSaid, ...] = get_args(HoldSaid)
_SAME = {"allow": "once"}  # what an answer to other gates means here


@dataclass(frozen=True, slots=True)
class HoldView:
    """`rule`: what `always` adds; None for who may not see what is asked. `answer`: what was just said; "" while it waits."""

    hold: Hold
    tenant: str
    user: str
    answerer: str
    rule: EgressRule | None
    answer: str = ""


class Holds:
    def __init__(self, parts: Parts, doors: Doors) -> None:
        self._parts, self._doors = parts, doors

    async def ls(self, actor: Actor, tenant: str, run: str | None, limit: int) -> builtins.list[HoldView]:
        """Newest first: the actor's own and those that are the actor's to answer; an operator sees that the tenant's are
        there. They are open: what was answered or forgotten is in the audit alone."""
        await self._doors.tenant(Action.TENANT_SEE, actor, tenant)
        found = [(hold, user) async for hold, user in self._of(actor, tenant) if run in (None, hold.who.run)]
        return [await self._view(actor, hold, user) for hold, user in reversed(found)][:limit]

    async def show(self, actor: Actor, hold: str) -> HoldView:
        return await self._view(actor, *await self._found(actor, hold))

    async def answer(self, actor: Actor, hold: str, said: str) -> HoldView:
        """`once`, `always` or `deny`; `allow` is once. Invalid; NotFound: also answered, or forgotten. Refused: not the
        actor's to answer."""
        found, user = await self._found(actor, hold)
        verdict = decide(Action.GATE_ANSWER, actor, towards_user(actor, user))
        if verdict.answer is not Answer.ALLOW:
            refuse(verdict)
        if actor.user is None or actor.user.id != _answerer(user):
            raise Refused("only the acting user, or its owner, may answer this", remedy="see whom it is for: gate show")
        if not (actor.operator or Scope.USER in actor.scopes):
            refuse(Verdict(Answer.REFUSE, False, "the token may only read"))
        meant = next((each for each in ANSWERS if each == _SAME.get(said, said)), None)
        if meant is None:
            raise Invalid(f"{said[:40]!r} is no answer to a hold", remedy=f"answer {', '.join(ANSWERS)}")
        view = await self._view(actor, found, user, meant)
        assert self._parts.egress is not None  # it has the hold
        await self._parts.egress.holds.answer(actor, hold, meant)
        return view

    async def _found(self, actor: Actor, hold: str) -> tuple[Hold, User]:
        self._doors.proven(actor)
        for tenant in await self._tenants(actor):
            async for each, user in self._of(actor, tenant):
                if each.id == hold:
                    return each, user
        raise NotFound(f"no such gate: {hold[:64]!r}", remedy="ringfence gate ls")

    async def _tenants(self, actor: Actor) -> builtins.list[str]:
        if actor.user is not None and not actor.operator:
            return [actor.user.tenant_name]
        return [row.name for row in await self._parts.store.tenants.all()]

    async def _of(self, actor: Actor, tenant: str) -> AsyncIterator[tuple[Hold, User]]:
        """Those that the actor may know of, oldest first."""
        if self._parts.egress is None:
            return
        users = {
            user.id: user
            for user in await self._parts.store.users.all(tenant)
            if decide(Action.GATE_SEE, actor, towards_user(actor, user)).answer is Answer.ALLOW
        }
        for hold in self._parts.egress.holds.of(users):
            yield hold, users[hold.who.user]

    async def _view(self, actor: Actor, hold: Hold, user: User, answer: str = "") -> HoldView:
        whole = decide(Action.GATE_DETAIL, actor, towards_user(actor, user)).answer is Answer.ALLOW
        answerer = user if user.owner is None else await self._parts.store.users.by_id(user.owner)
        return HoldView(hold, user.tenant_name, user.name, answerer.name, hold.rule if whole else None, answer)


def _answerer(user: User) -> str:
    return user.owner if user.owner is not None else user.id
