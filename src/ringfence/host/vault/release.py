"""kernel.outward.ports.Releases: a value goes to a worker after the audit has it on disk, and not otherwise.

Whether a request may have it is the caller's to decide, with bindings and rules; that another's credential goes where
its owner lets it be sent, and that a CA goes nowhere, is looked at here once more, as what was opened says it. Must
never say the value.
"""

from __future__ import annotations

from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.errors import NotFound, Refused, Unavailable
from ringfence.host.kernel.outward import reaches
from ringfence.host.kernel.outward.credentials import Credential, Owner
from ringfence.host.kernel.outward.grants import KIND
from ringfence.host.kernel.outward.ports import Credentials, Lent, Vault, Wanted
from ringfence.host.kernel.outward.releasing import release_row
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.storing import AUTHORITY
from ringfence.host.kernel.people import Actor
from ringfence.host.vault.renewing import Renewing


class Counter:
    """Where values are handed out."""

    def __init__(self, vault: Vault, credentials: Credentials, audit: Audit, renewing: Renewing | None = None) -> None:
        """`renewing` None: no access token is ever lent."""
        self._vault, self._credentials, self._audit, self._renewing = vault, credentials, audit, renewing

    async def release(self, actor: Actor | None, wanted: Wanted) -> Secret:
        return (await self.lend(actor, wanted)).value

    async def lend(self, actor: Actor | None, wanted: Wanted) -> Lent:
        credential, value = await self._vault.read(self._credentials, wanted.credential)
        _check(credential, wanted)
        lent = Lent(value, credential.version)
        if credential.kind == KIND:
            if self._renewing is None:
                raise Unavailable("nothing asks for access tokens here", remedy="ringfence status")
            credential, lent = await self._renewing.lent(credential, value, wanted.refused)
        await self._audit.release(actor, *release_row(credential, wanted))
        # The disk may have taken seconds: what was revoked, unbound or taken back meanwhile, and answered, holds.
        if not await self._credentials.usable(wanted.user, credential.id, wanted.binding):
            raise NotFound(f"credential {credential.id} is not the user's to use there", remedy="ringfence secret ls U")
        return lent


def _check(credential: Credential, wanted: Wanted) -> None:
    """What was opened is as it was sealed, its kind and its reach too. Without a binding it goes to the provider of a
    model."""
    if credential.kind == AUTHORITY:
        raise Refused("a CA is given to nobody")
    others = wanted.binding and credential.owner is not Owner.USER and reaches.anothers(credential, wanted.user)
    if others and not reaches.sends(credential, wanted.host, wanted.method):
        raise Refused(
            f"the owner of {credential.name!r} does not let it be sent to {wanted.host[:300]}",
            remedy="ringfence secret reach, by its owner",
        )
