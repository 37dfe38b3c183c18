"""From names to rows, past the table of kernel.access: every use case that names a user, tenant or thread starts here.

What an actor may not know of is *not found* with the text for what does not exist. An operator's act on what is not his
own is in the audit before it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from ringfence.host.engine.parts import Parts
from ringfence.host.engine.seals import Seals
from ringfence.host.kernel.access import (
    Action,
    Answer,
    Relation,
    Verdict,
    decide,
    towards_tenant,
    towards_thread,
    towards_user,
)
from ringfence.host.kernel.errors import NotFound, Refused
from ringfence.host.kernel.people import Actor, Tenant, User
from ringfence.host.kernel.threads import Thread


class Doors:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.seals = Seals(parts.ids.secret)

    def proven(self, actor: Actor) -> None:
        """Before anything is looked up for the actor. Unauthenticated: it is not who this connection showed."""
        self.seals.check(actor)

    async def user(
        self, action: Action, actor: Actor, tenant: str, name: str, details: Mapping[str, Any] | None = None
    ) -> User:
        """The user, or NotFound / Refused. `details`: of the audit row, when the act is recorded."""
        self.proven(actor)
        own = actor.user
        if own is not None and own.tenant_name == tenant and own.name == name:
            target = own  # from the transport's look-up of this very request
        else:
            try:
                target = await self._parts.store.users.get(tenant, name)
            except NotFound:
                if actor.operator:
                    raise  # who may see all may know whether it is the tenant or the user
                raise no_user(tenant, name) from None
        verdict = decide(action, actor, towards_user(actor, target))
        if verdict.answer is Answer.HIDE:
            raise no_user(tenant, name)
        await self._pass(verdict, action, actor, f"user:{target.id}", details)
        return target

    async def tenant(self, action: Action, actor: Actor, name: str) -> Tenant:
        self.proven(actor)
        verdict = decide(action, actor, towards_tenant(actor, name))
        if verdict.answer is Answer.HIDE:
            raise no_tenant(name)
        await self._pass(verdict, action, actor, f"tenant:{name[:64]}")
        try:
            return await self._parts.store.tenants.get(name)
        except NotFound:
            raise no_tenant(name) from None

    async def operator_only(self, action: Action, actor: Actor, subject: str) -> None:
        """For what makes something new, where there is nothing yet to hide."""
        self.proven(actor)
        relation = Relation.OPERATOR if actor.operator else Relation.SELF
        verdict = decide(action, actor, relation)
        if verdict.answer is Answer.HIDE:
            raise Refused(f"only an operator may do this: {action.value}", remedy="ask an operator of this server")
        await self._pass(verdict, action, actor, subject)

    async def thread(
        self, action: Action, actor: Actor, tenant: str, name: str, details: Mapping[str, Any] | None = None
    ) -> tuple[Thread, Relation]:
        """`details`: of the audit row, when the act is recorded."""
        self.proven(actor)
        try:
            thread = await self._parts.store.reads.thread(tenant, name)
        except NotFound:
            raise no_thread(name) from None
        relation = await self.relation(actor, thread)
        verdict = decide(action, actor, relation)
        if verdict.answer is Answer.HIDE:
            raise no_thread(name)
        await self._pass(verdict, action, actor, f"thread:{thread.id}", details)
        return thread, relation

    async def relation(self, actor: Actor, thread: Thread) -> Relation:
        """What the actor is to the thread now: an operator who has broken its glass is GLASS until it closes."""
        self.proven(actor)
        found = towards_thread(actor, thread.tenant, thread.members)
        if found is Relation.OPERATOR and await self._parts.store.threads.glass(thread.id, actor.via):
            return Relation.GLASS
        return found

    async def _pass(
        self, verdict: Verdict, action: Action, actor: Actor, subject: str, details: Mapping[str, Any] | None = None
    ) -> None:
        if verdict.answer is Answer.REFUSE:
            refuse(verdict)
        if verdict.recorded:
            await self._parts.store.audit.record(actor, action.value, subject, details or {})


def refuse(verdict: Verdict) -> NoReturn:
    raise Refused(verdict.why, remedy="ask an operator of this server, or act as the user (--as), which is recorded")


def no_user(tenant: str, name: str) -> NotFound:
    return NotFound(f"no such user: {name!r} in tenant {tenant!r}", remedy="ringfence user ls")


def no_tenant(name: str) -> NotFound:
    return NotFound(f"no such tenant: {name!r}", remedy="ringfence tenant ls")


def no_thread(name: str) -> NotFound:
    return NotFound(f"no such thread: {name!r}", remedy="ringfence thread ls")
