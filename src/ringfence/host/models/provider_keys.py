"""kernel.models.ports.Keys: a provider's key by its name in the vault, for whoever the call is for.

A user's own secret of that name stands before the tenant's. One that somebody else has granted is never taken: its
account would see what the user's loop says, by no word of the user's. Each fetch is a release: the audit has it on
disk first. What was found is kept sealed, and counts only while the store says that it still stands; no value is
kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from ringfence.host.kernel.errors import Failed, NotFound, Unavailable
from ringfence.host.kernel.ids import BoxId, UserId
from ringfence.host.kernel.models.ports import Caller, Going, ModelUsage, Standing
from ringfence.host.kernel.outward.credentials import Credential, Owner, Sealed
from ringfence.host.kernel.outward.grants import KIND
from ringfence.host.kernel.outward.ports import Credentials, Releases, Vault, Wanted
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models.provider_key import OnTheWay


class NoKey(Unavailable):
    """There is none of that name: its text is for whoever asked. What keeps another key from being read is for the
    log alone."""


_BINDING = ""  # no binding of a user's
_KNOWN = 1024  # of users and names, the longest unused first: 64 KiB of ciphertext each at most, and a key has about 200 bytes


@dataclass(frozen=True, slots=True)
class _Found:
    standing: Standing
    credential: Credential
    sealed: Sealed


class ProviderKeys:
    def __init__(
        self,
        credentials: Credentials,
        releases: Releases,
        vault: Vault,
        usage: ModelUsage,
        hosts: Mapping[str, str],
    ) -> None:
        """`hosts`: where the key of each name goes, for the audit."""
        self._credentials, self._releases, self._vault, self._usage = credentials, releases, vault, usage
        self._hosts = hosts
        self._known: OrderedDict[tuple[UserId, str], _Found] = OrderedDict()
        self._out = OnTheWay()

    async def __call__(self, caller: Caller, name: str) -> Secret:
        self._known.pop((caller.user, name), None)
        standing = await self._usage.standing(caller, name)  # before: what changes from here on makes it another
        credential = await self._meant(caller, name)
        try:
            before = self._out.times(credential.id)
            value = await self._releases.release(None, self._wanted(caller, credential))
            key = self._out.add(value, credential.id, before)
            await self._keep(caller, standing, credential)
        except (NotFound, Failed) as error:
            raise _missing(name) from error
        return key

    def withdraw(self, credential: str) -> None:
        """Revoked, or another version by now: no request begins with what was given out of it."""
        self._out.withdraw(credential)

    def going(self, caller: Caller, name: str) -> Going | None:
        found = self._known.get((caller.user, name))
        if found is None or self._vault.sealed:
            return None
        self._known.move_to_end((caller.user, name))
        return Going(found.standing, found.credential, found.sealed, self._wanted(caller, found.credential))

    async def opened(self, going: Going) -> Secret:
        before = self._out.times(going.credential.id)
        try:
            value = await self._vault.open(going.credential, going.sealed)
            return self._out.add(value, going.credential.id, before)
        except Failed as error:
            raise _missing(going.credential.name) from error

    async def _keep(self, caller: Caller, standing: Standing, found: Credential) -> None:
        if found.kind == KIND:  # what is given out then is an access token, which may be another each time
            return
        credential, sealed = await self._credentials.opening(found.id)
        self._known[caller.user, found.name] = _Found(standing, credential, sealed)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def _wanted(self, caller: Caller, credential: Credential) -> Wanted:
        return Wanted(
            box=caller.box or BoxId(""),
            user=caller.user,
            credential=credential.id,
            binding=_BINDING,
            invocation=caller.invocation,
            host=self._hosts.get(credential.name, ""),
            method="POST",
            path="",
            run=caller.run,
        )

    async def _meant(self, caller: Caller, name: str) -> Credential:
        for each in await self._credentials.visible(caller.user):  # own, then the tenant's
            if each.name == name and (each.user == caller.user or each.owner is Owner.TENANT):
                return each
        raise _missing(name)


def _missing(name: str) -> NoKey:
    return NoKey(
        f"the key {name!r} of the model is not in the vault",
        remedy=f"ringfence secret set --tenant-wide U {name}",
    )
