"""Threads of the double: who is in them, what was said, what happened."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ringfence.host.kernel.errors import Conflict, Invalid, KeyReused, LaneBusy, LaneFull, NotFound, Refused
from ringfence.host.kernel.ids import ThreadId
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.threads import Attachment, Message, Thread, Turn
from tests.support.double.agent import Agent
from tests.support.double.talks import Talk, Watch
from tests.support.double.world import World, now


@dataclass
class Threads:
    world: World
    agent: Agent
    keys: dict[str, tuple[str, Accepted]] = field(default_factory=dict)
    watches: list[Watch] = field(default_factory=list)  # that are open
    queries: int = 0  # asked for events: what a stream costs

    @property
    def talks(self) -> dict[tuple[str, str], Talk]:
        return self.agent.talks

    def _talk(self, actor: Actor, tenant: str, name: str) -> Talk:
        talk = self.talks.get((tenant, name))
        if talk is None or not talk.sees(actor):
            raise NotFound(f"no such thread: {name!r}", remedy="ringfence thread ls")
        return talk

    async def add(self, actor: Actor, tenant: str, name: str, members: builtins.list[str], parallel: bool) -> Thread:
        if (tenant, name) in self.talks:
            raise Conflict(f"the thread {name!r} exists")
        operator = Actor(None, True, "double")
        names = list(dict.fromkeys([*([actor.user.name] if actor.user else []), *members]))
        users = [self.world.user(operator, tenant, each) for each in names]
        ids = frozenset(user.id for user in users)
        thread = Thread(ThreadId(self.world.id("thr")), self.world.tenants[tenant].id, name, parallel, ids, now())
        self.talks[tenant, name] = Talk(thread, tenant, names)
        return thread

    async def show(self, actor: Actor, tenant: str, name: str) -> tuple[Thread, builtins.list[str]]:
        talk = self._talk(actor, tenant, name)
        return talk.thread, talk.members

    async def set_member(self, actor: Actor, tenant: str, name: str, user: str, member: bool) -> Thread:
        talk = self._talk(actor, tenant, name)
        who = self.world.user(Actor(None, True, "double"), tenant, user)
        ids = talk.thread.members | {who.id} if member else talk.thread.members - {who.id}
        talk.thread = dataclasses.replace(talk.thread, members=ids)
        talk.members = [*talk.members, user] if member else [each for each in talk.members if each != user]
        await talk.event("member.added" if member else "member.removed", {"user": user})
        return talk.thread

    async def break_glass(self, actor: Actor, tenant: str, thread: str, reason: str) -> datetime:
        talk = self._talk(actor, tenant, thread)
        if not actor.operator:
            raise Refused("only an operator breaks the glass")
        if not 3 <= len(reason) <= 500:
            raise Invalid("the reason has 3 to 500 characters", remedy="--reason TEXT")
        until = now() + timedelta(seconds=900)
        await talk.event("break_glass", {"by": actor.via, "reason": reason, "until": until.isoformat()})
        return until

    async def watch(self, actor: Actor, tenant: str, thread: str) -> Watch:
        talk = self._talk(actor, tenant, thread)
        watch = Watch(talk, actor.user.id if actor.user else None, self.watches)
        talk.watches.append(watch)
        self.watches.append(watch)
        return watch

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
        if actor.user is None:
            raise Invalid("an operator speaks as somebody", remedy="--as U")
        if key is not None and key in self.keys:
            said, accepted = self.keys[key]
            if said != text:
                raise KeyReused("the key was used with another message")
            return dataclasses.replace(accepted, repeated=True)
        files = [self._attached(actor, tenant, path) for path in attachments]
        if (tenant, thread) not in self.talks:
            await self.add(actor, tenant, thread, [], False)
        talk = self._talk(actor, tenant, thread)
        if text == "full":
            raise LaneFull("100 messages wait in this thread", remedy="wait until some of them are done")
        if mode == "reject" and self.agent.busy(talk):
            raise LaneBusy("the lane is busy", remedy="wait, or leave --mode reject out")
        accepted = await self.agent.accept(talk, actor.user, text, mode == "steer", files)
        if key is not None:
            self.keys[key] = text, accepted
        return accepted

    def _attached(self, actor: Actor, tenant: str, path: str) -> Attachment:
        assert actor.user is not None
        full = self.world.home(tenant, actor.user.name) / path
        if not full.is_file():
            raise NotFound(f"no such file: {path!r}", remedy="ringfence files ls")
        return Attachment(path, full.stat().st_size)

    async def messages(
        self, actor: Actor, tenant: str, thread: str, before: int | None, limit: int
    ) -> builtins.list[Message]:
        talk = self._talk(actor, tenant, thread)
        return [each for each in talk.messages if before is None or each.cursor < before][-limit:]

    async def events(
        self, actor: Actor, tenant: str, thread: str, after: int, limit: int
    ) -> builtins.list[dict[str, Any]]:
        self.queries += 1
        return self._talk(actor, tenant, thread).events[after : after + limit]

    async def turn(self, actor: Actor, turn_id: str) -> Turn:
        found = self.agent.turns.get(turn_id)
        if found is None or not (actor.operator or (actor.user is not None and actor.user.id == found.actor)):
            raise NotFound(f"no such turn: {turn_id!r}")
        return found

    async def list(self, actor: Actor, tenant: str) -> builtins.list[Thread]:
        return [talk.thread for (where, _), talk in self.talks.items() if where == tenant and talk.sees(actor)]
