"""Tenants, users and tokens of the double."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ringfence.host.kernel.errors import Conflict, NameInvalid, NotFound, Refused, Unauthenticated
from ringfence.host.kernel.ids import TenantId, TokenId, UserId
from ringfence.host.kernel.people import Actor, Scope, Tenant, Token, User, UserKind
from tests.support.double.world import World, now


@dataclass(eq=False)
class Presence:
    """Asks the double's tokens each time."""

    people: People
    actor: Actor

    def check(self) -> None:
        via, user = self.actor.via, self.actor.user
        for token, _ in self.people.world.tokens.values():
            if via == f"token:{token.id}" and (token.expires_at is None or token.expires_at > now()):
                break
        else:
            if via.startswith("token:"):
                raise Unauthenticated("the token is not valid any more", remedy="ringfence token add --user NAME")
        if user is not None and user not in self.people.world.users.values():
            raise Unauthenticated("the user was removed", remedy="ringfence user ls")

    async def over(self) -> None:
        with suppress(Unauthenticated):
            while True:
                self.check()
                await asyncio.sleep(0.02)

    def close(self) -> None:
        self.people.presences.discard(self)


@dataclass
class People:
    world: World
    presences: set[Presence] = field(default_factory=set)  # that are open

    def presence(self, actor: Actor) -> Presence:
        made = Presence(self, actor)
        self.presences.add(made)
        return made

    def presents(self, *, token: str | None = None, uid: int | None = None) -> None:
        """The double trusts the web."""

    async def authenticate(self, secret: str) -> Actor:
        found = self.world.tokens.get(hashlib.sha256(secret.encode()).hexdigest())
        if found is None:
            raise Unauthenticated("the token is not valid", remedy="ringfence token add --user NAME")
        token, user = found
        if token.expires_at is not None and token.expires_at <= now():
            raise Unauthenticated("the token has expired", remedy="ringfence token add --user NAME")
        return Actor(user, Scope.OPERATOR in token.scopes, f"token:{token.id}")

    def operator(self, uid: int, gid: int, pid: int) -> Actor:
        return Actor(None, True, f"socket:{uid}")

    async def act_as(self, actor: Actor, tenant: str, user: str) -> Actor:
        if not actor.operator:
            raise Refused("only an operator acts as somebody else")
        self.world.audit.append(("act_as", user))
        return Actor(self.world.user(actor, tenant, user), False, actor.via, impersonated=True)

    async def tenant_add(self, actor: Actor, name: str) -> Tenant:
        self.world.operator(actor)
        if name in self.world.tenants:
            raise Conflict(f"the tenant {name!r} exists", remedy="choose another name")
        made = Tenant(TenantId(self.world.id("ten")), name, now())
        self.world.tenants[name] = made
        return made

    async def tenants(self, actor: Actor) -> list[Tenant]:
        self.world.operator(actor)
        return list(self.world.tenants.values())

    async def tenant_remove(self, actor: Actor, name: str) -> None:
        self.world.operator(actor)
        if name not in self.world.tenants:
            raise NotFound(f"no such tenant: {name!r}", remedy="ringfence tenant ls")
        if any(tenant == name for tenant, _ in self.world.users):
            raise Conflict(f"the tenant {name!r} has users", remedy="remove them first")
        del self.world.tenants[name]

    async def user_add(
        self, actor: Actor, tenant: str, name: str, kind: str = "person", owner: str | None = None
    ) -> User:
        self.world.operator(actor)
        if not name or len(name) > 64 or any(char in name for char in "/%\0") or name.strip(". ") != name:
            raise NameInvalid(f"{name[:80]!r} is no name for a user", remedy="use letters, digits, - and _")
        if tenant not in self.world.tenants:
            raise NotFound(f"no such tenant: {tenant!r}", remedy="ringfence tenant ls")
        if (tenant, name) in self.world.users:
            raise Conflict(f"the user {name!r} exists", remedy="choose another name")
        answers = self.world.user(actor, tenant, owner).id if owner else None
        made = User(
            UserId(self.world.id("usr")),
            self.world.tenants[tenant].id,
            tenant,
            name,
            UserKind(kind),
            answers,
            False,
            now(),
        )
        self.world.users[tenant, name] = made
        return made

    async def users(self, actor: Actor, tenant: str) -> list[User]:
        if tenant not in self.world.tenants:
            raise NotFound(f"no such tenant: {tenant!r}", remedy="ringfence tenant ls")
        of = [user for (where, _), user in self.world.users.items() if where == tenant]
        return of if actor.operator else [user for user in of if user == actor.user]

    async def user(self, actor: Actor, tenant: str, name: str) -> User:
        return self.world.user(actor, tenant, name)

    async def models_used(self, user: User) -> dict[str, Any] | None:
        return None

    async def user_remove(self, actor: Actor, tenant: str, name: str, purge: bool = False) -> None:
        self.world.operator(actor)
        gone = self.world.user(actor, tenant, name)
        del self.world.users[tenant, name]
        self.world.tokens = {key: pair for key, pair in self.world.tokens.items() if pair[1] != gone}

    async def token_add(
        self, actor: Actor, tenant: str, user: str, scopes: list[str], note: str, ttl_seconds: float | None
    ) -> tuple[Token, str]:
        owner = self.world.user(actor, tenant, user)
        if "operator" in scopes:
            self.world.operator(actor)
        until = None if ttl_seconds is None else now() + timedelta(seconds=ttl_seconds)
        token = Token(
            TokenId(self.world.id("tok")), owner.id, frozenset(Scope(each) for each in scopes), note, now(), until, None
        )
        secret = f"secret{next(self.world.counter)}" + os.urandom(16).hex()
        self.world.tokens[hashlib.sha256(secret.encode()).hexdigest()] = (token, owner)
        return token, secret

    async def tokens(self, actor: Actor, tenant: str, user: str) -> list[Token]:
        owner = self.world.user(actor, tenant, user)
        return [token for token, of in self.world.tokens.values() if of == owner]

    async def token_remove(self, actor: Actor, tenant: str, user: str, token_id: str) -> None:
        self.world.user(actor, tenant, user)
        for key, (token, _) in list(self.world.tokens.items()):
            if token.id == token_id:
                del self.world.tokens[key]
                return
        raise NotFound(f"no such token: {token_id!r}", remedy="ringfence token ls")
