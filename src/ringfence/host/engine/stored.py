"""Credentials as the engine's verbs find them: whose they are, which one a name means, and the row of the audit before
a change.

Must never choose a credential by anything but the order that `kernel.outward.ports.Credentials` has: own, then the
tenant's, then what was granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import Conflict, NotFound, Unavailable
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.credentials import Credential, Owner
from ringfence.host.kernel.outward.ports import Vault
from ringfence.host.kernel.people import Actor, User

NO_VAULT = "this server has no vault"


@dataclass(frozen=True, slots=True)
class Whose:
    """Where a credential is stored: a user's, or with `user` None the tenant's."""

    tenant: TenantId
    tenant_name: str
    user: User | None

    @property
    def id(self) -> UserId | None:
        return None if self.user is None else self.user.id


class Stored:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def own(self, whose: Whose, name: str) -> Credential | None:
        """One name is one credential of a user, shared or not, and one of a tenant."""
        for owner in (Owner.TENANT,) if whose.user is None else (Owner.USER, Owner.SHARED):
            try:
                return await self._parts.store.credentials.named(whose.tenant, owner, whose.id, name)
            except NotFound:
                continue
        return None

    async def must(self, whose: Whose, name: str) -> Credential:
        """NotFound."""
        found = await self.own(whose, name)
        if found is None:
            raise no_secret(name)
        return found

    async def meant(self, user: UserId, name: str) -> Credential:
        """Of those that the user may bind, by name or id. NotFound. Conflict: two that were granted have the name."""
        seen = await self._parts.store.credentials.visible(user)
        found = [each for each in seen if name == each.id] or [each for each in seen if name == each.name]
        if not found:
            raise no_secret(name)
        first = found[0]
        alike = [each.id for each in found if (each.owner, each.user == user) == (first.owner, first.user == user)]
        if len(alike) > 1:
            raise Conflict(
                f"{len(alike)} credentials named {name!r} were granted", remedy=f"name one: {', '.join(alike)}"
            )
        return first

    def vault(self) -> Vault:
        if self._parts.vault is None:
            raise Unavailable(NO_VAULT, remedy="ringfence status")
        return self._parts.vault

    async def record(self, actor: Actor, action: str, credential: Credential, details: dict[str, Any]) -> None:
        of = details | {"owner": credential.owner.value, "of": credential.user}
        await self._parts.store.audit.record(actor, action, f"credential:{credential.id}", of)

    async def reload(self, *users: UserId) -> None:
        if self._parts.egress is not None:
            await self._parts.egress.reload(users)


def no_secret(name: str) -> NotFound:
    return NotFound(f"no such credential: {name[:64]!r}", remedy="ringfence secret ls U")
