"""kernel.outward.ports.Authorities: the CA of each user, sealed in the vault like a credential that no list shows.

Must never give a CA to anybody but the box and the worker of its user, which the caller sees to; never one CA for two users.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.credentials import Credential, Owner
from ringfence.host.kernel.outward.ports import Authority, Credentials, Vault
from ringfence.host.kernel.outward.storing import AUTHORITY, AUTHORITY_NAME
from ringfence.host.kernel.ports import Clock, Ids
from ringfence.host.vault import certificate


class VaultAuthorities:
    def __init__(self, vault: Vault, credentials: Credentials, clock: Clock, ids: Ids) -> None:
        self._vault, self._credentials, self._clock, self._ids = vault, credentials, clock, ids

    async def authority(self, tenant: TenantId, user: UserId) -> Authority:
        """Also NotFound: no such user. Failed: what is stored is not what was sealed."""
        try:
            found = await self._found(tenant, user)
        except NotFound:
            with suppress(Conflict):  # somebody made it at the same time: that one is it
                await self._make(tenant, user)
            found = await self._found(tenant, user)
        credential, authority = found
        now = self._clock.now()
        if not certificate.due(authority, now):
            return authority
        return await self._renew(credential, certificate.renewed(authority, now))

    async def forget(self, tenant: TenantId, user: UserId) -> None:
        """The next call makes a CA with another key: for one that cannot be opened any more. Boxes that run trust the one
        before until they are started again. NotFound: there is none."""
        named = await self._credentials.authority(tenant, user)
        await self._vault.revoke(self._credentials, named.id)

    async def _found(self, tenant: TenantId, user: UserId) -> tuple[Credential, Authority]:
        named = await self._credentials.authority(tenant, user)
        credential, value = await self._vault.read(self._credentials, named.id)
        return credential, certificate.from_value(value)

    async def _make(self, tenant: TenantId, user: UserId) -> None:
        now = self._clock.now()
        draft = Credential(self._ids.new("crd"), tenant, Owner.USER, user, AUTHORITY_NAME, 1, AUTHORITY, now, now)
        await self._vault.put(self._credentials, draft, certificate.as_value(certificate.make(user, now)))

    async def _renew(self, credential: Credential, authority: Authority) -> Authority:
        draft = replace(credential, version=credential.version + 1)
        try:
            await self._vault.put(self._credentials, draft, certificate.as_value(authority))
        except Conflict:  # renewed by another kernel, with the same key
            return (await self._found(credential.tenant, UserId(credential.user or "")))[1]
        return authority
