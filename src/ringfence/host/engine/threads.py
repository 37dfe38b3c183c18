"""Threads, their members, messages and events, and what a message sets going.

Only members read or post. For anyone else a thread is *not found*; an operator sees that it exists, not its text.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from ringfence.host.engine.doors import Doors, no_thread
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redaction import redacted
from ringfence.host.kernel.access import Action, Relation, towards_thread
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, Refused, TooLarge
from ringfence.host.kernel.ids import TurnId, UserId
from ringfence.host.kernel.names import check_thread_name
from ringfence.host.kernel.people import Actor, User
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES, Message, Thread, Turn

MAX_PAGE = 1000
MAX_WAIT_SECONDS = 60.0
MAX_KEY = 200
MAX_MEMBERS = 500


class Threads:
    def __init__(self, parts: Parts, doors: Doors, wake: Callable[[], None]) -> None:
        self._parts, self._doors, self._wake = parts, doors, wake

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
        """(thread, names of its members)."""
        thread, _ = await self._doors.thread(Action.THREAD_SEE, actor, tenant, name)
        names = {user.id: user.name for user in await self._parts.store.users.all(tenant)}
        return thread, sorted(names[member] for member in thread.members if member in names)

    async def set_member(self, actor: Actor, tenant: str, name: str, user: str, member: bool) -> Thread:
        thread, _ = await self._doors.thread(Action.THREAD_MEMBERS, actor, tenant, name)
        return await self._parts.store.threads.set_member(thread.id, await self._member(tenant, user), member)

    # --- messages ------------------------------------------------------------------------------------------------

    async def say(self, actor: Actor, tenant: str, thread: str, text: str, mode: str, key: str | None) -> Accepted:
        """Accepted, durable, and the scheduler woken. A new name makes the thread, with the actor as only member.
        TooLarge, Invalid; Conflict: LaneBusy (mode reject), KeyReused."""
        user = actor.user
        if user is None:
            raise Refused("an operator who acts for nobody has no box to work in", remedy="--as USER")
        accepted_mode = _mode(mode)
        _check_text(text)
        if key is not None and not 1 <= len(key) <= MAX_KEY:
            raise Invalid(f"the key has {len(key)} characters", remedy=f"give 1 to {MAX_KEY}")
        found = await self._thread_for(actor, user, tenant, thread)
        accepted = await self._parts.store.turns.accept(found.id, user.id, text, accepted_mode, key)
        self._wake()
        return accepted

    async def _thread_for(self, actor: Actor, user: User, tenant: str, name: str) -> Thread:
        if user.tenant_name != tenant:
            raise no_thread(name)
        try:
            await self._parts.store.threads.get(user.tenant, name)
        except NotFound:
            check_thread_name(name)
            await self._may_add(actor, user, user.tenant)
            try:
                return await self._parts.store.threads.add(user.tenant, name, [user.id], False)
            except Conflict:
                pass  # somebody was faster: it is looked at like any other
        thread, _ = await self._doors.thread(Action.THREAD_POST, actor, tenant, name)
        return thread

    async def messages(
        self, actor: Actor, tenant: str, thread: str, before: int | None, limit: int
    ) -> builtins.list[Message]:
        """Oldest first; the newest `limit` below the cursor `before`."""
        _check_page(limit)
        found, _ = await self._doors.thread(Action.THREAD_READ, actor, tenant, thread)
        return await self._parts.store.threads.messages(found.id, before, limit)

    async def events(
        self, actor: Actor, tenant: str, thread: str, after: int, limit: int
    ) -> builtins.list[dict[str, Any]]:
        """As far as the actor may see each: {"cursor", "kind", "actor", "turn", "run", "body", "at"}."""
        _check_page(limit)
        found, relation = await self._doors.thread(Action.THREAD_SEE, actor, tenant, thread)
        names = {user.id: user.name for user in await self._parts.store.users.all(tenant)}
        rows = await self._parts.store.events.after(found.id, after, limit)
        return [redacted(row, actor, relation, names) for row in rows]

    async def wait(self, actor: Actor, tenant: str, thread: str, after: int, seconds: float) -> bool:
        """Until there is an event after the cursor; False after `seconds` (at most 60)."""
        found, _ = await self._doors.thread(Action.THREAD_SEE, actor, tenant, thread)
        return await self._parts.store.events.changed(found.id, after, max(0.0, min(seconds, MAX_WAIT_SECONDS)))

    async def turn(self, actor: Actor, turn_id: str) -> Turn:
        """Without the reply for an operator who is no member."""
        absent = NotFound(f"no such turn: {turn_id!r}", remedy="ringfence events THREAD")
        try:
            turn = await self._parts.store.turns.get(TurnId(turn_id))
            thread = await self._parts.store.threads.by_id(turn.thread)
        except NotFound:
            raise absent from None
        relation = towards_thread(actor, thread.tenant, thread.members)
        try:
            await self._doors.over_thread(Action.THREAD_SEE, actor, thread, relation, thread.name)
        except NotFound:
            raise absent from None
        return turn if relation is Relation.MEMBER else replace(turn, reply=None)


def _mode(mode: str) -> Literal["queue", "reject"]:
    if mode == "queue":
        return "queue"
    if mode == "reject":
        return "reject"
    raise Invalid(f"mode {mode!r} is not offered by this server", remedy="--mode queue or --mode reject")


def _check_text(text: str) -> None:
    if not text.strip():
        raise Invalid("the message is empty", remedy="write some text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid("the message is not valid Unicode text", remedy="send it as UTF-8") from None
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"the message has {size} bytes; the limit is {MAX_MESSAGE_BYTES}",
            remedy="put the text into a file of your box (ringfence files put) and name the file",
        )


def _check_page(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise Invalid(f"a limit of {limit} is not allowed", remedy=f"ask for 1 to {MAX_PAGE}")
