"""Bindings as people make and end them. A user's own credential goes wherever the user says; another's goes where its
owner has said that it may (kernel.outward.reaches).

Each is in the audit before it is made. Must never bind the key of a model for a user: it would be read at the user's
host, or be spent beside the budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ringfence.host.engine.doors import Doors
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.stored import Stored
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.errors import Conflict, NotFound, Refused
from ringfence.host.kernel.outward import reaches, wishes
from ringfence.host.kernel.outward.checking import check_binding
from ringfence.host.kernel.outward.credentials import Binding, Credential, Use
from ringfence.host.kernel.outward.grants import KIND
from ringfence.host.kernel.outward.spelled import binding_digest, binding_to_json
from ringfence.host.kernel.outward.wishes import BindingWish
from ringfence.host.kernel.people import Actor, User


class Binder:
    def __init__(self, parts: Parts, doors: Doors, stored: Stored) -> None:
        self._parts, self._doors, self._stored = parts, doors, stored

    async def bind(self, actor: Actor, tenant: str, user: str, name: str, wish: BindingWish) -> list[Binding]:
        target = await self._doors.user(Action.SECRET_CHANGE, actor, tenant, user)
        await self.check_mounted(actor, target, wish)
        found = await self._stored.meant(target.id, name)
        return await self.bound(actor, target, found, wish)

    async def bound(
        self, actor: Actor, target: User, credential: Credential, wish: BindingWish, *, again: bool = False
    ) -> list[Binding]:
        """`again`: those that are there already are no conflict."""
        credentials = self._parts.store.credentials
        wanted = await self._wanted(actor, target, credential, wish)
        there = {binding_digest(each) for each in await credentials.bindings(target.id)}
        new = [each for each in wanted if binding_digest(each) not in there]
        if not new and not again:
            raise Conflict(f"{credential.name!r} is bound there already", remedy="ringfence secret ls U")
        made: list[Binding] = []
        try:
            for each in new:
                details = {"name": credential.name, "user": target.id, "binding": binding_to_json(each)}
                await self._stored.record(actor, "secret.bind", credential, details)
                made.append(await credentials.bind(target.id, each))
        finally:
            if made:
                await self._stored.reload(target.id)
        return made

    async def _wanted(self, actor: Actor, target: User, credential: Credential, wish: BindingWish) -> Sequence[Binding]:
        """Checked. The value is opened: that shows the reach to be what its owner said, and that it can stand in a
        head."""
        anothers = reaches.anothers(credential, target.id)
        if anothers and credential.name in self._parts.config.model_keys and not actor.operator:
            raise Refused(
                f"{credential.name!r} is the key of a model: it is asked for through the gateway, and counted",
                remedy="store a key of your own under another name: ringfence secret set U NAME --recipe R",
            )
        wishes.check_kind(credential.kind, wish)
        if wish.use is not Use.MOUNTED:
            credential, value = await self._stored.vault().read(self._parts.store.credentials, credential.id)
            if credential.kind != KIND:
                wishes.check_headed(value)
        if anothers and wishes.is_bare(wish):
            return _places(credential, wish)
        wanted = wishes.bindings(wish, credential.id, credential.name)
        if anothers and not all(each.use is Use.MOUNTED for each in wanted):  # mounted: the store says why not
            for each in wanted:
                reaches.check_within(credential, each)
        return wanted

    async def unbind(self, actor: Actor, tenant: str, user: str, which: str) -> list[str]:
        target = await self._doors.user(Action.SECRET_CHANGE, actor, tenant, user)
        credentials = self._parts.store.credentials
        named = {each.id: each for each in await credentials.visible(target.id)}
        found = [
            each
            for each in await credentials.bindings(target.id, shown=True)
            if each.id == which or (each.credential in named and named[each.credential].name == which)
        ]
        if not found:
            raise NotFound(f"no such binding: {which[:64]!r}", remedy="ringfence secret ls U")
        for each in found:  # all of them before the first ends: a full disk ends none of them, and not half
            details = {"user": target.id, "binding": each.id, "host": each.host}
            await self._stored.record(actor, "secret.unbind", await self._of(named, each), details)
        try:
            for each in found:
                await credentials.unbind(target.id, each.id)
        finally:
            await self._stored.reload(target.id)
        return [each.id for each in found]

    async def _of(self, named: dict[str, Credential], binding: Binding) -> Credential:
        return named.get(binding.credential) or await self._parts.store.credentials.get(binding.credential)

    async def check_mounted(self, actor: Actor, target: User, wish: BindingWish | None) -> None:
        """In clear in a box: only by whose it is."""
        if wish is not None and wish.use is Use.MOUNTED:
            await self._doors.user(Action.SECRET_MOUNT, actor, target.tenant_name, target.name)


def _places(credential: Credential, wish: BindingWish) -> list[Binding]:
    """Where its owner lets it be sent, as it stands there. Refused: nowhere."""
    found = [replace(each, credential=credential.id) for each in reaches.places(credential)]
    if not found:
        reaches.check_within(credential, Binding("", credential.id, wishes.NOWHERE))
    named = wish.environment
    return found if named is None else [check_binding(replace(each, environment=named)) for each in found]
