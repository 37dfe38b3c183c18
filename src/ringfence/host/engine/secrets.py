"""Credentials as people and operators handle them: stored, granted, bound, revoked.

A value comes in and never goes out here: no answer, audit row or error has it. Each change is in the audit before it is
made; a revocation is in force in every worker when `revoke` returns. Must never let a credential that others may use be
sent where its owner has not said: what is bound with it at its first day says it too.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ringfence.host.engine import revoking
from ringfence.host.engine.binding import Binder
from ringfence.host.engine.doors import Doors, no_user
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redaction import REMOVED
from ringfence.host.engine.stored import Stored, Whose, no_secret
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.models import provider_credentials
from ringfence.host.kernel.outward import reaches, wishes
from ringfence.host.kernel.outward.credentials import Binding, Credential, Owner, Use
from ringfence.host.kernel.outward.grants import KIND
from ringfence.host.kernel.outward.renewals import Renewal, Turn
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.storing import check_credential_name, check_value
from ringfence.host.kernel.outward.wishes import BindingWish
from ringfence.host.kernel.people import Actor, User

_TURN = 30.0  # seconds in which no access token is asked for, while the grant gets a next version


@dataclass(frozen=True, slots=True)
class SecretView:
    """What is known of a credential. No value, and no digest of one."""

    credential: Credential
    user: str | None  # whose, by name; None: the tenant's
    granted: Sequence[str] = ()  # names, for who may grant it
    bindings: Sequence[Binding] = ()  # of the user who is looked at
    renewal: Renewal | None = None  # of its access token, when the last try failed or one is under way


class Secrets:
    def __init__(self, parts: Parts, doors: Doors) -> None:
        self._parts, self._doors, self._stored = parts, doors, Stored(parts)
        self._binder = Binder(parts, doors, self._stored)

    # --- seeing --------------------------------------------------------------------------------------------------

    async def ls(self, actor: Actor, tenant: str, user: str) -> builtins.list[SecretView]:
        """What the user may bind: own, then the tenant's, then what was granted."""
        target = await self._doors.user(Action.SECRET_SEE, actor, tenant, user)
        bound = await self._parts.store.credentials.bindings(target.id, shown=True)
        return await self._views(await self._parts.store.credentials.visible(target.id), target, bound)

    async def all(self, actor: Actor, tenant: str) -> builtins.list[SecretView]:
        """Of the tenant and all its users, by name; for operators."""
        row = await self._doors.tenant(Action.SECRET_ALL, actor, tenant)
        return await self._views(await self._parts.store.credentials.all(row.id), None, ())

    async def _views(
        self, found: Sequence[Credential], of: User | None, bound: Iterable[Binding]
    ) -> builtins.list[SecretView]:
        renewed = [each.id for each in found if each.kind == KIND]
        standing = await self._parts.store.renewals.standing(renewed) if renewed else {}
        return [replace(await self._view(each, of, bound), renewal=standing.get(each.id)) for each in found]

    async def _view(self, credential: Credential, of: User | None, bound: Iterable[Binding]) -> SecretView:
        mine = of is None or credential.user == of.id
        granted = await self._parts.store.credentials.grants(credential.id) if _shared(credential) and mine else []
        return SecretView(
            credential,
            None if credential.user is None else await self._name(credential.user),
            [await self._name(each) for each in granted],
            [each for each in bound if each.credential == credential.id],
        )

    async def _name(self, user: UserId) -> str:
        try:
            return (await self._parts.store.users.by_id(user)).name
        except NotFound:
            return REMOVED

    # --- storing and revoking ------------------------------------------------------------------------------------

    async def set(
        self,
        actor: Actor,
        tenant: str,
        user: str,
        name: str,
        value: Secret,
        *,
        shared: bool | None = None,
        wish: BindingWish | None = None,
        oauth: bool = False,
    ) -> SecretView:
        """A new one, or the next version of it: what stands in for it stays as it is. `shared` None: as it was, or the
        user's own. `oauth`: the value is a grant (kernel.outward.grants), as it is where the wish's recipe says so.
        With a wish it is bound as well. Conflict: it is shared, or not, or of one kind, and was stored otherwise."""
        target = await self._doors.user(Action.SECRET_CHANGE, actor, tenant, user)
        await self._binder.check_mounted(actor, target, wish)
        whose = Whose(target.tenant, tenant, target)
        owner = None if shared is None else Owner.SHARED if shared else Owner.USER
        stored = await self._set(actor, whose, name, value, owner, wish, oauth)
        if wish is not None:
            await self._binder.bound(actor, target, stored, wish, again=True)
        return await self._view(stored, target, await self._parts.store.credentials.bindings(target.id))

    async def set_tenant(
        self,
        actor: Actor,
        tenant: str,
        name: str,
        value: Secret,
        *,
        user: str = "",
        wish: BindingWish | None = None,
        oauth: bool = False,
    ) -> SecretView:
        """The tenant's, which each of its users may bind. With a wish it is bound for `user`."""
        row = await self._doors.tenant(Action.SECRET_TENANT, actor, tenant)
        if (wish is None) != (not user):
            raise Invalid("a binding is of one user", remedy="name the user, and say what it is bound to")
        target = await self._doors.user(Action.SECRET_CHANGE, actor, tenant, user) if wish is not None else None
        stored = await self._set(actor, Whose(row.id, tenant, None), name, value, Owner.TENANT, wish, oauth)
        if wish is None or target is None:
            return await self._view(stored, None, ())
        await self._binder.bound(actor, target, stored, wish, again=True)
        return await self._view(stored, target, await self._parts.store.credentials.bindings(target.id))

    async def _set(
        self,
        actor: Actor,
        whose: Whose,
        name: str,
        value: Secret,
        owner: Owner | None,
        wish: BindingWish | None,
        oauth: bool,
    ) -> Credential:
        check_credential_name(name)
        check_value(value)
        draft = await self._draft(whose, name, owner, KIND if oauth else wishes.kind_of(wish))
        value = wishes.to_store(draft.kind, value, headed=await self._headed(draft, wish))
        if name in self._parts.config.model_keys and draft.kind != KIND:
            provider_credentials.check_headed(value)
        if wish is not None:
            if wish.use is Use.MOUNTED and draft.owner is not Owner.USER:
                raise Refused(
                    f"{name!r} is for others too: it is mounted nowhere", remedy="leave out --mounted or the scope"
                )
            wishes.check_kind(draft.kind, wish)
            wishes.bindings(wish, "", name)  # so that nothing is stored for a binding that is wrong
            draft = replace(draft, reach=_wider(draft, wish))
        vault = self._stored.vault()
        if vault.sealed:
            raise Unavailable(f"the vault is sealed: {vault.sealed}", remedy="ringfence vault status")
        details = {"name": name, "version": draft.version, "owner": draft.owner.value, "kind": draft.kind}
        await self._stored.record(actor, "secret.set", draft, details)
        stored = await vault.put(self._parts.store.credentials, draft, value)
        if stored.version > 1:  # the version before: the next request asks for this one
            await revoking.out_of_workers(self._parts, stored.id, ())
        return stored

    async def _headed(self, draft: Credential, wish: BindingWish | None) -> bool:
        """Whether it is bound, or is to be, to a place in a request's head."""
        if wish is not None and wish.use is not Use.MOUNTED:
            return True
        if draft.version == 1:
            return False
        credentials = self._parts.store.credentials
        for user in await credentials.bound_by(draft.id):
            theirs = await credentials.bindings(user, shown=True)
            if any(each.credential == draft.id and each.use is not Use.MOUNTED for each in theirs):
                return True
        return False

    async def _draft(self, whose: Whose, name: str, owner: Owner | None, kind: str | None) -> Credential:
        found = await self._stored.own(whose, name)
        now = self._parts.onward.now()
        if found is None:
            made = self._parts.ids.new("crd")
            return Credential(made, whose.tenant, owner or Owner.USER, whose.id, name, 1, kind or "opaque", now, now)
        if owner is not None and found.owner is not owner:
            raise Conflict(
                f"{name!r} is there with the scope {found.owner.value}",
                remedy=f"revoke it first: ringfence secret rm U {name}",
            )
        if kind not in (None, found.kind):
            raise Conflict(
                f"{name!r} is there as one value, and not as a grant",
                remedy=f"take another name, or revoke it first: ringfence secret rm U {name}",
            )
        return replace(found, version=found.version + 1)

    async def revoke(self, actor: Actor, tenant: str, user: str, name: str) -> Credential:
        """For good, in force in every worker when it returns. Of the user's own and shared ones. Works while the vault
        is sealed too."""
        target = await self._doors.user(Action.SECRET_CHANGE, actor, tenant, user)
        return await self._revoked(actor, Whose(target.tenant, tenant, target), name)

    async def revoke_tenant(self, actor: Actor, tenant: str, name: str) -> Credential:
        row = await self._doors.tenant(Action.SECRET_TENANT, actor, tenant)
        return await self._revoked(actor, Whose(row.id, tenant, None), name)

    async def _revoked(self, actor: Actor, whose: Whose, name: str) -> Credential:
        vault = self._stored.vault()
        found = await self._stored.own(whose, name)
        if found is not None:
            await self._recorded_end(actor, found)
            await revoking.end(self._parts, vault, found.id, await self._parts.store.credentials.bound_by(found.id))
            return found
        left = await revoking.unfinished(self._parts, vault, whose.tenant, whose.id, name)
        if not left:
            raise no_secret(name)
        for each in left:  # revoked before, and not to the end: asked again, it goes on
            await self._recorded_end(actor, each)
            await revoking.end(self._parts, vault, each.id, None)
        return left[0]

    async def _recorded_end(self, actor: Actor, credential: Credential) -> None:
        """Without room for a row nothing is revoked, but no worker has the value any more: it would have to ask for it anew."""
        details = {"name": credential.name, "version": credential.version}
        try:
            await self._stored.record(actor, "secret.revoke", credential, details)
        except RingfenceError:
            await revoking.out_of_workers(self._parts, credential.id, ())
            raise

    # --- grants --------------------------------------------------------------------------------------------------

    async def grant(self, actor: Actor, tenant: str, user: str, name: str, to: str, *, granted: bool) -> None:
        """Of a shared one of `user`, to another user of the tenant, or taken back: their bindings of it end then."""
        target = await self._doors.user(Action.SECRET_CHANGE, actor, tenant, user)
        found = await self._stored.must(Whose(target.tenant, tenant, target), name)
        if not _shared(found):
            raise Refused(f"{name!r} is not shared", remedy=f"revoke it, then: ringfence secret set U {name} --shared")
        try:
            reader = await self._parts.store.users.get(tenant, to)
        except NotFound:
            raise no_user(tenant, to) from None
        action = "secret.grant" if granted else "secret.grant_end"
        await self._stored.record(actor, action, found, {"name": name, "to": reader.id})
        await self._parts.store.credentials.grant(found.id, reader.id, granted=granted)
        if not granted:
            await self._stored.reload(reader.id)

    # --- where it may be sent --------------------------------------------------------------------------------------

    async def reach(self, actor: Actor, tenant: str, user: str, name: str, wish: BindingWish | None) -> SecretView:
        """Of a shared one of the user: those to whom it is granted may bind it there too; None: nowhere any more. Their
        bindings beyond it end. Refused: it is nobody else's."""
        target = await self._doors.user(Action.SECRET_CHANGE, actor, tenant, user)
        return await self._reach(actor, Whose(target.tenant, tenant, target), name, wish)

    async def reach_tenant(self, actor: Actor, tenant: str, name: str, wish: BindingWish | None) -> SecretView:
        """The same of the tenant's, for all of its users."""
        row = await self._doors.tenant(Action.SECRET_TENANT, actor, tenant)
        return await self._reach(actor, Whose(row.id, tenant, None), name, wish)

    async def _reach(self, actor: Actor, whose: Whose, name: str, wish: BindingWish | None) -> SecretView:
        found = await self._stored.must(whose, name)
        if found.owner is Owner.USER:
            raise Refused(f"{name!r} is nobody else's", remedy="bind it: ringfence secret bind U NAME --host H")
        credentials, vault = self._parts.store.credentials, self._stored.vault()
        found, value = await vault.read(credentials, found.id)
        draft = replace(found, version=found.version + 1, reach=_wider(found, wish) if wish is not None else "")
        if draft.reach == found.reach:
            return await self._view(found, whose.user, ())
        if wish is not None:
            wishes.check_kind(found.kind, wish)
        await self._none_asked_for(found)
        details = {"name": name, "version": draft.version, "reach": draft.reach}
        await self._stored.record(actor, "secret.reach", found, details)
        bound = await credentials.bound_by(found.id)
        stored = await vault.put(credentials, draft, value)  # sealed anew: it is a part of what is sealed
        await revoking.out_of_workers(self._parts, found.id, bound)
        return await self._view(stored, whose.user, ())

    async def _none_asked_for(self, credential: Credential) -> None:
        """Of a grant whose token is asked for now, the answer would be lost to this next version. Conflict."""
        if credential.kind != KIND:
            return
        turn = await self._parts.store.renewals.take(credential.id, credential.version, self._parts.worker, _TURN)
        if turn.turn is Turn.BUSY:
            raise Conflict("an access token is being asked for", remedy="try again in half a minute")

    # --- bindings ------------------------------------------------------------------------------------------------

    async def bind(self, actor: Actor, tenant: str, user: str, name: str, wish: BindingWish) -> builtins.list[Binding]:
        """The new ones; of another's, a wish that names no place: wherever its owner lets it be sent. Conflict: all of
        them are there, or two have the name. Refused: to be mounted, and not the user's own, or not by the user; or
        beyond its reach."""
        return await self._binder.bind(actor, tenant, user, name, wish)

    async def unbind(self, actor: Actor, tenant: str, user: str, which: str) -> builtins.list[str]:
        """One by its id, or all of a credential by its name. What stood for it is refused from then on."""
        return await self._binder.unbind(actor, tenant, user, which)


def _shared(credential: Credential) -> bool:
    return credential.owner is Owner.SHARED


def _wider(credential: Credential, wish: BindingWish | None) -> str:
    """Its reach, with what is wished for too."""
    return (
        credential.reach if wish is None else reaches.extended(credential, wishes.bindings(wish, "", credential.name))
    )
