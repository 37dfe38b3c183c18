"""Tenants, users and tokens; and who an authenticated transport speaks for.

A token's secret exists here only while it is made or compared: kept is its SHA-256, shown it is once. It has 256 random
bits, so a plain hash cannot be searched.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.doors import Doors, no_tenant, no_user, refuse
from ringfence.host.engine.homes import belongs, home_of, is_here
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.presence import BY_TOKEN, NEW_TOKEN, Presence, Presences, check_token
from ringfence.host.engine.revoking import bound_with, forget, unforgotten
from ringfence.host.kernel.access import Action, Answer, Verdict, decide, grantable, towards_user
from ringfence.host.kernel.boxes import Box, Desired, Observed
from ringfence.host.kernel.errors import (
    DiskFull,
    Failed,
    Invalid,
    NotFound,
    Refused,
    RingfenceError,
    Unauthenticated,
    Unavailable,
)
from ringfence.host.kernel.ids import BoxId, TokenId, UserId
from ringfence.host.kernel.names import check_tenant_name, check_user_name
from ringfence.host.kernel.people import Actor, Scope, Tenant, Token, User, UserKind

NO_TENANT = "the database has no tenant at all"
MAKE_A_TENANT = "stop the server, then ringfence init: it makes the tenant and an operator in this database"
PREFIX = "rf_"  # so that a leaked token is found by scanners
MAX_NOTE = 200
_AWAKE = (Observed.RUNNING, Observed.STARTING, Observed.LOST)  # of a box that is to be gone: not seen stopped
MAX_TTL_SECONDS = 10 * 366 * 86400.0


def secret_hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def of_token(secret: str) -> str:
    """The credential's name in a seal."""
    return f"token:{secret_hash(secret)}"


def of_peer(uid: int) -> str:
    return f"socket:{uid}"


class People:
    def __init__(
        self,
        parts: Parts,
        doors: Doors,
        bringup: BringUp,
        removed: Callable[[UserId], Awaitable[None]],
        purged: Callable[[BoxId], Awaitable[None]],
    ) -> None:
        """`removed`: ends what a removed user has at work. `purged`: takes away what is kept of a box's files elsewhere."""
        self._parts, self._doors, self._bringup, self._removed = parts, doors, bringup, removed
        self._purged = purged
        self._presences = Presences(parts)

    # --- who -----------------------------------------------------------------------------------------------------

    def presents(self, *, token: str | None = None, uid: int | None = None) -> None:
        """What the connection showed that this task serves: a token ("": none) or, on the operator socket, its peer.
        Told by the transport before anything asks who it is; an actor made of anything else is refused at the doors."""
        self._doors.seals.present(of_peer(uid) if uid is not None else of_token(token or ""))

    async def authenticate(self, secret: str) -> Actor:
        """Unauthenticated: not valid (unknown or revoked), expired, user disabled."""
        try:
            token, user = await self._parts.store.tokens.find(secret_hash(secret))
        except NotFound:
            raise Unauthenticated("the token is not valid", remedy=NEW_TOKEN) from None
        check_token(token, user, self._parts.onward.now())
        operator, via = Scope.OPERATOR in token.scopes, f"{BY_TOKEN}{token.id}"
        made = Actor(user=user, operator=operator, via=via, scopes=token.scopes, expires_at=token.expires_at)
        return self._doors.seals.sealed(made, of_token(secret))

    def operator(self, uid: int, gid: int, pid: int) -> Actor:
        """Somebody whom the operator socket let in. `gid`, `pid` are of no use for a decision."""
        made = Actor(user=None, operator=True, via=f"socket:{uid}", scopes=frozenset(Scope))
        return self._doors.seals.sealed(made, of_peer(uid))

    def presence(self, actor: Actor) -> Presence:
        """Of a connection that stays open: until when the actor may speak over it. To be closed by the caller."""
        return self._presences.open(actor)

    async def act_as(self, actor: Actor, tenant: str, user: str) -> Actor:
        """The actor with that user's rights and no others. Recorded before it is used."""
        self._doors.proven(actor)
        if not actor.operator:
            raise Refused("only an operator may act as somebody else", remedy="use a token of that user")
        target = await self._find(tenant, user)
        try:
            await self._parts.store.audit.record(actor, "act_as", f"user:{target.id}", {})
        except DiskFull as error:
            raise DiskFull(
                f"reading or acting as somebody else is recorded first, which cannot be done now: {error.message}",
                remedy="free space on the volume of the database (df -h), then try again",
            ) from error
        made = Actor(user=target, operator=False, via=actor.via, impersonated=True, expires_at=actor.expires_at)
        return self._doors.seals.resealed(made)

    # --- tenants -------------------------------------------------------------------------------------------------

    async def tenant_add(self, actor: Actor, name: str) -> Tenant:
        check_tenant_name(name)
        await self._doors.operator_only(Action.TENANT_CHANGE, actor, f"tenant:{name}")
        config = self._parts.config
        if config.gate and await self._parts.store.tenants.all():
            raise Unavailable(
                f"a second tenant needs proven walls: {config.gate}",
                remedy=f"{config.gate_remedy} (it counts from the server's next start on)",
            )
        return await self._parts.store.tenants.add(name)

    async def tenants(self, actor: Actor) -> list[Tenant]:
        """All for an operator, else the actor's own."""
        self._doors.proven(actor)
        if actor.operator:
            return await self._parts.store.tenants.all()
        return [] if actor.user is None else [await self._parts.store.tenants.get(actor.user.tenant_name)]

    async def tenant_remove(self, actor: Actor, name: str) -> None:
        """Conflict while it has users. Asked again, it forgets what was left of the tenant's credentials."""
        await self._doors.operator_only(Action.TENANT_CHANGE, actor, f"tenant:{name[:64]}")
        try:
            row = await self._parts.store.tenants.get(name)
            await self._parts.store.tenants.remove(name)
        except NotFound:
            if not await self._tenant_left(name):
                raise no_tenant(name) from None
        else:
            await forget(self._parts, row.id, None, ())

    async def _tenant_left(self, name: str) -> bool:
        """Whether credentials of the removed tenant that had the name last were left; they are forgotten now."""
        try:
            gone = await self._parts.store.tenants.gone(name)
        except NotFound:
            return False
        return await forget(self._parts, gone.id, None, None)

    # --- users ---------------------------------------------------------------------------------------------------

    async def user_add(
        self, actor: Actor, tenant: str, name: str, kind: str = "person", owner: str | None = None
    ) -> User:
        """The user with its box provisioned: ids and tree, no process. A user without a box is not left behind."""
        check_user_name(name)
        wanted = _kind(kind)
        if (wanted is UserKind.PERSON) != (owner is None):
            raise Invalid(
                f"a user of kind {wanted.value} {'has no' if wanted is UserKind.PERSON else 'needs an'} owner",
                remedy="--owner NAME for agents and projects, none for persons",
            )
        await self._doors.operator_only(Action.USER_CHANGE, actor, f"tenant:{tenant[:64]}")
        try:
            user = await self._parts.store.users.add(tenant, name, wanted, owner)
        except NotFound as error:
            if await self._parts.store.tenants.all():
                raise
            raise NotFound(f"{error.message}: {NO_TENANT}", remedy=MAKE_A_TENANT) from error
        try:
            box = await home_of(self._parts, user)
            await self._bringup.provisioned(box)
        except BaseException:
            await self._parts.store.users.remove(user.id)
            raise
        return user

    async def users(self, actor: Actor, tenant: str) -> list[User]:
        """All of the tenant for an operator; for anyone else its own row and those that it owns."""
        await self._doors.tenant(Action.TENANT_SEE, actor, tenant)
        rows = await self._parts.store.users.all(tenant)
        return [row for row in rows if decide(Action.USER_SEE, actor, towards_user(actor, row)).answer is Answer.ALLOW]

    async def user(self, actor: Actor, tenant: str, name: str) -> User:
        return await self._doors.user(Action.USER_SEE, actor, tenant, name)

    async def models_used(self, user: User) -> Mapping[str, Any] | None:
        """By the user whom `user` gave, in the present period; None: nothing is counted here."""
        return None if self._parts.spending is None else await self._parts.spending.of_user(user.id)

    async def user_remove(self, actor: Actor, tenant: str, name: str, purge: bool = False) -> None:
        """Revoked and tombstoned first, so that nothing new begins; then stopped. The tree is kept, or deleted now. The
        user's runs end cancelled without a reply, also the one at work; what was said before stays in the threads, under
        the name of then, and everybody else's turns go on. What fails keeps nothing else from being done. Failed: the
        user is removed and the box is not yet; asked again, it goes on, after any other error too."""
        store = self._parts.store
        try:
            target = await self._doors.user(Action.USER_CHANGE, actor, tenant, name)
        except NotFound:
            left, forgotten = await self._left(actor, tenant, name, purge)
            if not left and not forgotten:
                raise
            for box in sorted(left, key=lambda each: not is_here(self._parts, each)):  # what can be done here, first
                await self._box_away(box, tenant, name, purge)
            return
        box = await home_of(self._parts, target)
        theirs = [token.id for token in await store.tokens.all(target.id)]
        bound = await bound_with(self._parts, target.id)
        await store.users.remove(target.id)
        self._presences.user_removed(target.id, theirs)
        try:
            await forget(self._parts, target.tenant, target.id, bound)
        finally:
            await self._removed(target.id)
            await self._box_away(box, tenant, name, purge)  # the last: while there is a box, all of it is done again

    async def _left(self, actor: Actor, tenant: str, name: str, purge: bool) -> tuple[list[Box], bool]:
        """What is yet to be done for the removed user that had the name last: a box that was not stopped, or a tree that
        is to go; and whether credentials were left, which are forgotten now. Nothing for everybody but an operator, who may know
        of those who are gone."""
        if not actor.operator:
            return [], False
        try:
            gone = await self._parts.store.users.gone(tenant, name)
        except NotFound:
            return [], False
        theirs = [box for box in await self._parts.store.boxes.all(gone.tenant) if belongs(box, gone)]
        left = [box for box in theirs if purge or box.desired is not Desired.REMOVED or box.observed in _AWAKE]
        if not left and not await unforgotten(self._parts, gone.tenant, gone.id):
            return [], False
        await self._doors.operator_only(Action.USER_CHANGE, actor, f"user:{gone.id}")
        await self._removed(gone.id)  # whoever was cut off may not have come to it
        return left, await forget(self._parts, gone.tenant, gone.id, None)

    async def _box_away(self, box: Box, tenant: str, name: str, purge: bool) -> None:
        try:
            if not is_here(self._parts, box):  # a removal that was cut short there: its row is not ours to write
                raise Unavailable(f"it is on installation {box.installation}, whose server removes it")
            await self._bringup.down(box.id, Desired.REMOVED)
            if purge:
                await self._parts.driver.remove(box.id)
                await self._purged(box.id)
                with suppress(NotFound):  # a sweep that came in between has ended the row
                    await self._parts.store.boxes.update(box.id, observed=Observed.ABSENT)
        except RingfenceError as error:
            where = "" if is_here(self._parts, box) else " on that installation's server"
            again = f"ringfence user rm --tenant {tenant} {'--purge ' if purge else ''}{name}"
            raise Failed(
                f"the user {name!r} is removed, its box is not yet: {error.message}",
                remedy=f"then again{where}, before the name is given to anybody else: {again}",
            ) from error

    async def _find(self, tenant: str, name: str) -> User:
        try:
            return await self._parts.store.users.get(tenant, name)
        except NotFound:
            raise no_user(tenant, name) from None

    # --- tokens --------------------------------------------------------------------------------------------------

    async def token_add(
        self, actor: Actor, tenant: str, user: str, scopes: list[str], note: str, ttl_seconds: float | None
    ) -> tuple[Token, str]:
        """(row, secret). The secret is not kept and cannot be shown again. It expires no later than the actor's own."""
        wanted = _scopes(scopes)
        if len(note) > MAX_NOTE:
            raise Invalid(f"the note has {len(note)} characters; the limit is {MAX_NOTE}", remedy="shorten it")
        if ttl_seconds is not None and not (math.isfinite(ttl_seconds) and 0 < ttl_seconds <= MAX_TTL_SECONDS):
            raise Invalid(
                f"a life of {ttl_seconds!r} seconds is not allowed", remedy="give more than 0, at most ten years"
            )
        target = await self._doors.user(Action.TOKEN_CHANGE, actor, tenant, user)
        surplus = wanted - grantable(actor)
        if surplus:
            refuse(Verdict(Answer.REFUSE, False, f"you may not grant the scope {', '.join(sorted(surplus))}"))
        secret = PREFIX + self._parts.ids.secret()
        expires = None if ttl_seconds is None else self._parts.onward.now() + timedelta(seconds=ttl_seconds)
        if actor.expires_at is not None:  # else a token that was lent for an hour could make one for ever
            expires = actor.expires_at if expires is None else min(expires, actor.expires_at)
        token = await self._parts.store.tokens.add(target.id, secret_hash(secret), wanted, note, expires)
        return token, secret

    async def tokens(self, actor: Actor, tenant: str, user: str) -> list[Token]:
        target = await self._doors.user(Action.TOKEN_SEE, actor, tenant, user)
        return await self._parts.store.tokens.all(target.id)

    async def token_remove(self, actor: Actor, tenant: str, user: str, token_id: str) -> None:
        target = await self._doors.user(Action.TOKEN_CHANGE, actor, tenant, user)
        if token_id not in {token.id for token in await self._parts.store.tokens.all(target.id)}:
            raise NotFound(f"no such token: {token_id!r}", remedy=f"ringfence token ls --user {user}")
        await self._parts.store.tokens.remove(TokenId(token_id))
        self._presences.token_removed(TokenId(token_id))


def _kind(kind: str) -> UserKind:
    try:
        return UserKind(kind)
    except ValueError:
        raise Invalid(f"no such kind of user: {kind!r}", remedy=f"one of {', '.join(UserKind)}") from None


def _scopes(scopes: list[str]) -> frozenset[Scope]:
    """None named: `user`."""
    try:
        return frozenset(Scope(scope) for scope in scopes) or frozenset({Scope.USER})
    except ValueError as error:
        raise Invalid(f"no such scope: {error}", remedy=f"out of {', '.join(Scope)}") from None
