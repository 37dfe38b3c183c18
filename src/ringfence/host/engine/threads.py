"""Threads, their members, messages and events as people see them.

Only members read or post. For anyone else a thread is *not found*; an operator sees that it exists, not its text, unless
he breaks the glass, which is recorded and told to the members.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from ringfence.host.engine.as_somebody import AsSomebody
from ringfence.host.engine.attachments import Attachments
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redaction import READERS, redacted
from ringfence.host.engine.say import Say, Steered
from ringfence.host.engine.viewers import Viewers, Watch
from ringfence.host.kernel.access import Action, Answer, Relation, decide
from ringfence.host.kernel.errors import Invalid, NotFound, TooLarge
from ringfence.host.kernel.ids import ThreadId, TurnId, UserId
from ringfence.host.kernel.names import check_thread_name
from ringfence.host.kernel.people import Actor, User
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import BREAK_GLASS_SECONDS, Message, Thread, Turn

MAX_PAGE = 1000
MAX_MEMBERS = 500
REASON_CHARACTERS = (3, 500)
# Runs of the tenant, newest first, among which a removed member's waiting ones are sought. A lane takes 100 of them.
_SOUGHT = 10_000
_WAITING = frozenset({RunState.QUEUED, RunState.PARKED})


class Threads:
    def __init__(
        self,
        parts: Parts,
        doors: Doors,
        wake: Callable[[], None],
        steered: Steered,
        viewers: Viewers,
        attachments: Attachments,
    ) -> None:
        self._parts, self._doors, self._wake, self._viewers = parts, doors, wake, viewers
        self._judge = parts.pen.judge
        self._as_somebody = AsSomebody(parts)
        self._say = Say(parts, doors, wake, steered, attachments)

    async def add(self, actor: Actor, tenant: str, name: str, members: builtins.list[str], parallel: bool) -> Thread:
        """Conflict: the name exists. An actor with a user is a member always."""
        check_thread_name(name)
        if len(members) > MAX_MEMBERS:
            raise TooLarge(f"{len(members)} members; the limit is {MAX_MEMBERS}", remedy="name fewer")
        row = await self._doors.tenant(Action.TENANT_SEE, actor, tenant)
        own = actor.user if actor.user is not None and actor.user.tenant == row.id else None
        await self._may_add(actor, own, row.id)
        ids = [await self._member(tenant, member) for member in members]
        if own is not None:
            ids.append(own.id)
        return await self._parts.store.threads.add(row.id, name, list(dict.fromkeys(ids)), parallel)

    async def _may_add(self, actor: Actor, own: User | None, tenant: str) -> None:
        if own is None:
            await self._doors.operator_only(Action.THREAD_ADD, actor, f"tenant:{tenant}")
        else:
            await self._doors.user(Action.THREAD_ADD, actor, own.tenant_name, own.name)

    async def _member(self, tenant: str, name: str) -> UserId:
        try:
            return (await self._parts.store.users.get(tenant, name)).id
        except NotFound:
            raise NotFound(f"no such user: {name!r} in tenant {tenant!r}", remedy="ringfence user ls") from None

    async def list(self, actor: Actor, tenant: str) -> builtins.list[Thread]:
        """Those of the actor's own; an operator who acts for nobody sees every one of the tenant."""
        row = await self._doors.tenant(Action.TENANT_SEE, actor, tenant)
        if actor.operator:
            return await self._parts.store.threads.of_tenant(row.id)
        return [] if actor.user is None else await self._parts.store.threads.of_member(actor.user.id)

    async def show(self, actor: Actor, tenant: str, name: str) -> tuple[Thread, builtins.list[str]]:
        """(thread with what is kept of its events, names of its members)."""
        thread, _ = await self._doors.thread(Action.THREAD_SEE, actor, tenant, name)
        thread = replace(thread, kept_from=await self._parts.store.retention.kept_from(thread.id))
        names = {user.id: user.name for user in await self._parts.store.users.all(tenant)}
        return thread, sorted(names[member] for member in thread.members if member in names)

    async def set_member(self, actor: Actor, tenant: str, name: str, user: str, member: bool) -> Thread:
        """Somebody who is removed sees nothing more of the thread, at once. What waits of theirs is cancelled: a run that
        began now would carry what others say meanwhile into the box of one who may no longer read it. What runs goes on
        with what it was given, and its reply is the thread's: the others wait for it. Its steps stay its actor's own."""
        thread, _ = await self._doors.thread(Action.THREAD_MEMBERS, actor, tenant, name)
        who = await self._member(tenant, user)
        changed = await self._parts.store.threads.set_member(thread.id, who, member)
        if not member:
            self._viewers.drop(thread.id, who)
            await self._cancel_waiting(thread, who)
        return changed

    async def _cancel_waiting(self, thread: Thread, user: UserId) -> None:
        runs = self._parts.store.runs
        for run in await runs.all(thread.tenant, _SOUGHT):
            if run.thread == thread.id and run.actor == user and run.state in _WAITING:
                await runs.cancel(run.id, self._judge)
        self._wake()

    # --- messages ------------------------------------------------------------------------------------------------

    async def say(
        self,
        actor: Actor,
        tenant: str,
        thread: str,
        text: str,
        mode: str,
        key: str | None,
        attachments: Sequence[str] = (),
    ) -> Accepted:
        """Accepted, durable, and the scheduler woken. A new name makes the thread, with the actor as only member. With
        mode `steer` the message joins the actor's own live turn of the lane, if there is one, else it is queued.
        `attachments`: paths of files in the actor's own box. TooLarge, Invalid, NotFound; Conflict: LaneBusy (mode
        reject), LaneFull, KeyReused."""
        return await self._say.say(actor, tenant, thread, text, mode, key, attachments)

    async def watch(self, actor: Actor, tenant: str, thread: str) -> Watch:
        """Of the actor's own runs, while the actor is a member; nothing ever comes to anybody else who may see the
        thread. To be closed by the caller."""
        found, relation = await self._doors.thread(Action.THREAD_SEE, actor, tenant, thread)
        if actor.user is None or relation is not Relation.MEMBER:
            return self._viewers.silent(found.id)
        await self._as_somebody.reads(actor, f"thread:{found.id}")
        return self._viewers.watch(found.id, actor.user.id)

    async def break_glass(self, actor: Actor, tenant: str, thread: str, reason: str) -> datetime:
        """Opens the text of the thread's messages and replies to an operator, for BREAK_GLASS_SECONDS: never a step, nor
        why a run failed. In the audit with its reason before it is open, and an event that every member sees. Returns when
        it closes. Invalid: a reason that says nothing."""
        given = check_reason(reason)
        found, _ = await self._doors.thread(Action.THREAD_BREAK_GLASS, actor, tenant, thread, {"reason": given})
        return await self._parts.store.threads.break_glass(found.id, actor.via, given, BREAK_GLASS_SECONDS)

    async def messages(
        self, actor: Actor, tenant: str, thread: str, before: int | None, limit: int
    ) -> builtins.list[Message]:
        """Oldest first; the newest `limit` below the cursor `before`."""
        _check_page(limit)
        found, _ = await self._doors.thread(Action.THREAD_READ, actor, tenant, thread)
        await self._as_somebody.reads(actor, f"thread:{found.id}")
        return await self._parts.store.threads.messages(found.id, before, limit)

    async def events(
        self, actor: Actor, tenant: str, thread: str, after: int, limit: int
    ) -> builtins.list[dict[str, Any]]:
        """As far as the actor may see each: {"cursor", "kind", "actor", "turn", "run", "body", "at"}."""
        _check_page(limit)
        if actor.user is not None:  # nearly always: whether they are a member, what there is and by whom, in one read
            page = await self._parts.store.reads.page(tenant, thread, actor.user.id, after, limit)
            if page is not None:
                if page.events:
                    await self._as_somebody.reads(actor, f"thread:{page.events[0].thread}")
                return [redacted(row, actor, Relation.MEMBER, page.names) for row in page.events]
        found, relation = await self._doors.thread(Action.THREAD_SEE, actor, tenant, thread)
        names = {user.id: user.name for user in await self._parts.store.users.all(tenant)}
        rows = await self._parts.store.events.after(found.id, after, limit)
        return [redacted(row, actor, relation, names) for row in rows]

    async def turn(self, actor: Actor, turn_id: str) -> Turn:
        """Without the reply for an operator who is no member."""
        absent = NotFound(f"no such turn: {turn_id!r}", remedy="ringfence events THREAD")
        turn = None
        # A thread is looked for all the same: the time is not to tell this from a turn of others.
        with suppress(NotFound):
            turn = await self._parts.store.turns.get(TurnId(turn_id))
        try:
            thread = await self._parts.store.threads.by_id(turn.thread if turn is not None else ThreadId(""))
        except NotFound:
            raise absent from None
        if turn is None:
            raise absent
        relation = await self._doors.relation(actor, thread)
        if decide(Action.THREAD_SEE, actor, relation).answer is not Answer.ALLOW:
            raise absent
        if relation not in READERS:
            return replace(turn, reply=None)
        await self._as_somebody.reads(actor, f"thread:{thread.id}")
        return turn


def check_reason(reason: str) -> str:
    """Without the white space around it. Invalid: not REASON_CHARACTERS long, or no text."""
    given, (low, high) = reason.strip(), REASON_CHARACTERS
    if not low <= len(given) <= high:
        raise Invalid(
            f"the reason has {len(given)} characters", remedy=f"say in {low} to {high} why you read this thread"
        )
    if "\0" in given or given != given.encode(errors="replace").decode():
        raise Invalid("the reason is not valid Unicode text", remedy="send it as UTF-8, without NUL")
    return given


def _check_page(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise Invalid(f"a limit of {limit} is not allowed", remedy=f"ask for 1 to {MAX_PAGE}")
