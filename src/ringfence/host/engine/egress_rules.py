"""Rules of the way out as people and operators handle them, and what a request would come to.

Each change is in the audit before it is made, and in force in every worker when it returns. An installation's and a
tenant's rules are the operators'. Must never decide about a request: it asks `kernel.outward`, as the worker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ringfence.host.engine.doors import Doors
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.canonical import sha256_json
from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward import wishes
from ringfence.host.kernel.outward.explaining import Explanation, explained
from ringfence.host.kernel.outward.linting import lint
from ringfence.host.kernel.outward.matching import Matcher, compile_rules
from ringfence.host.kernel.outward.rules import EgressRule, Layer
from ringfence.host.kernel.outward.spelled import rule_digest, rule_to_json
from ringfence.host.kernel.outward.wishes import RuleWish
from ringfence.host.kernel.people import Actor

NO_EGRESS = "this server gives its boxes no way out: [egress] is not enabled"


@dataclass(frozen=True, slots=True)
class RulesView:
    """`lint`: what surely does not do what was meant, a line each."""

    rules: Sequence[EgressRule]
    lint: Sequence[str]


@dataclass(frozen=True, slots=True)
class Tried:
    """`credentials`: name by id, of the bindings. `note`: why none of it is in force."""

    explanation: Explanation
    credentials: dict[str, str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """One layer of one owner, past its door."""

    tenant: TenantId | None
    user: UserId | None

    @property
    def layer(self) -> Layer:
        return Layer.INSTALLATION if self.tenant is None else Layer.TENANT if self.user is None else Layer.USER

    @property
    def subject(self) -> str:
        return f"user:{self.user}" if self.user else f"tenant:{self.tenant}" if self.tenant else "installation"


class EgressKeeper:
    """`tenant` "" is the installation's layer; `user` "" the tenant's."""

    def __init__(self, parts: Parts, doors: Doors) -> None:
        self._parts, self._doors = parts, doors
        self._making = asyncio.Lock()
        self._made: tuple[str, Matcher] | None = None  # by the digest of its rules

    async def ls(self, actor: Actor, tenant: str, user: str) -> RulesView:
        """Of a user: those of all layers, as they count for that user. Else of the layer alone."""
        place = await self._place(actor, tenant, user, Action.EGRESS_SEE, Action.EGRESS_LAYER)
        found = await self._seen(place, shown=True)
        return RulesView(found, await asyncio.to_thread(lint, found))

    async def add(self, actor: Actor, tenant: str, user: str, wish: RuleWish) -> RulesView:
        """The new rules, all of them or none, and what is odd about them. Conflict: all of them are there, or the layer
        is full."""
        place = await self._place(actor, tenant, user, Action.EGRESS_CHANGE, Action.EGRESS_LAYER_CHANGE)
        wanted = wishes.rules(wish, place.layer)
        there = {rule_digest(each) for each in await self._layer(place)}
        new = [each for each in wanted if rule_digest(each) not in there] or list(
            wanted[:1]
        )  # then the store refuses it
        for each in new:
            await self._parts.store.audit.record(
                actor, "egress.rule_add", place.subject, {"rule": rule_to_json(each), "layer": place.layer.value}
            )
        try:
            made = await self._parts.store.egress_rules.add_all((place.tenant, place.user), new)
        finally:  # whatever is stored by now is in force
            await self._reload(place)
        odd = await asyncio.to_thread(lint, await self._seen(place))
        return RulesView(made, [line for line in odd if any(line.startswith(each.id) for each in made)])

    async def remove(self, actor: Actor, tenant: str, user: str, rule: str) -> EgressRule:
        """NotFound: also a rule of another layer or owner."""
        place = await self._place(actor, tenant, user, Action.EGRESS_CHANGE, Action.EGRESS_LAYER_CHANGE)
        found = next((each for each in await self._layer(place) if each.id == rule), None)
        if found is None:
            raise NotFound(f"no such rule: {rule[:64]!r}", remedy="ringfence egress ls")
        details = {"rule": rule_to_json(found), "layer": place.layer.value}
        await self._parts.store.audit.record(actor, "egress.rule_remove", place.subject, details)
        try:
            return await self._parts.store.egress_rules.remove(rule)
        finally:
            await self._reload(place)

    async def test(self, actor: Actor, tenant: str, user: str, method: str, url: str) -> Tried:
        """What would become of it. Nothing is looked up and nothing goes out. Invalid, Malformed: no request at all."""
        target = await self._doors.user(Action.EGRESS_SEE, actor, tenant, user)
        rules = await self._seen(_Place(target.tenant, target.id))
        matcher = await self._matcher(rules)
        found = explained(matcher, await self._parts.store.credentials.bindings(target.id), method, url)
        names = {each.id: each.name for each in await self._parts.store.credentials.visible(target.id)}
        used = {each.credential: names.get(each.credential, each.credential) for each in found.bindings}
        return Tried(found, used, "" if self._parts.egress is not None else NO_EGRESS)

    async def _matcher(self, rules: Sequence[EgressRule]) -> Matcher:
        """One is made at a time, in a thread: what a user has written must keep nobody else waiting. The last one is
        kept for who asks once more; not more of them, each may have 120 MiB (storing.MAX_RULE_BYTES in three
        layers)."""
        digest = sha256_json([rule_to_json(each) for each in rules])
        async with self._making:
            if self._made is None or self._made[0] != digest:
                self._made = None
                self._made = digest, await asyncio.to_thread(compile_rules, rules)
            return self._made[1]

    async def _place(self, actor: Actor, tenant: str, user: str, own: Action, layer: Action) -> _Place:
        if user:
            target = await self._doors.user(own, actor, tenant, user)
            return _Place(target.tenant, target.id)
        if tenant:
            return _Place((await self._doors.tenant(layer, actor, tenant)).id, None)
        await self._doors.operator_only(layer, actor, "installation")
        return _Place(None, None)

    async def _seen(self, place: _Place, *, shown: bool = False) -> list[EgressRule]:
        """All that counts there: of a user's box every layer, the installation's with those from the settings. `shown`:
        also what does not count, which its note says; of one layer alone that is so anyway."""
        fixed = list(self._parts.egress.settings_rules) if self._parts.egress is not None else []
        if place.tenant is None:
            return [*fixed, *await self._layer(place)]
        if place.user is None:
            return await self._layer(place)
        return [*fixed, *await self._parts.store.egress_rules.of(place.tenant, place.user, shown=shown)]

    async def _layer(self, place: _Place) -> list[EgressRule]:
        return await self._parts.store.egress_rules.of_layer((place.tenant, place.user))

    async def _reload(self, place: _Place) -> None:
        if self._parts.egress is None:
            return
        if place.user is not None:
            await self._parts.egress.reload([place.user])
        elif place.tenant is None:
            await self._parts.egress.reload(None)
        else:
            await self._parts.egress.reload(await self._users_of(place.tenant))

    async def _users_of(self, tenant: TenantId) -> list[UserId]:
        for row in await self._parts.store.tenants.all():
            if row.id == tenant:
                return [user.id for user in await self._parts.store.users.all(row.name)]
        return []
