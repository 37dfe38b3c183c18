"""The end of credentials: in the store, in every worker, and in what the vault has seen, whatever fails on the way.

What was ended in the store and not noted by the vault is found again by that, so whoever asks once more brings it to
its end. Must never leave a value in a worker because something else could not be written.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import RingfenceError, Unavailable
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.credentials import Credential
from ringfence.host.kernel.outward.ports import Vault


async def end(parts: Parts, vault: Vault, credential: str, bound: Collection[UserId] | None) -> None:
    """For good. `bound`: who has bound it; None: it is not known. Out of the workers also when this raises."""
    try:
        await vault.revoke(parts.store.credentials, credential)
    finally:
        await out_of_workers(parts, credential, bound)


async def out_of_workers(parts: Parts, credential: str, bound: Collection[UserId] | None) -> None:
    """And out of calls of models. The value first, then what stands for it, which no command is given any more."""
    if parts.withdraw is not None:
        parts.withdraw(credential)
    if parts.egress is None:
        return
    try:
        await parts.egress.revoke(credential)
    finally:
        if bound is None or bound:
            await parts.egress.reload(bound)


async def unfinished(
    parts: Parts, vault: Vault, tenant: TenantId, user: UserId | None, name: str = ""
) -> list[Credential]:
    """Revoked in the store, and not noted here that they were, the newest first. Of a user or with None the tenant's
    own."""
    ended = await parts.store.credentials.ended(tenant, user, name)
    return [each for each in ended if not await _noted(vault, each.id)]


async def _noted(vault: Vault, credential: str) -> bool:
    try:
        return await vault.ended(credential)
    except Unavailable:  # what was seen of it cannot be read: it is written anew
        return False


async def bound_with(parts: Parts, user: UserId) -> set[UserId]:
    """Others who have bound what the user stored: for `forget`, once the user is removed."""
    mine = [each.id for each in await parts.store.credentials.visible(user) if each.user == user]
    bound = {one for each in mine for one in await parts.store.credentials.bound_by(each)}
    return bound - {user}


async def unforgotten(parts: Parts, tenant: TenantId, user: UserId) -> bool:
    """Whether `forget` has something to do."""
    return parts.vault is not None and bool(await unfinished(parts, parts.vault, tenant, user))


async def forget(parts: Parts, tenant: TenantId, user: UserId | None, bound: Collection[UserId] | None) -> bool:
    """Of a user, or a tenant, that was removed, so that they are revoked already: no worker has them when this returns,
    and no older state of the store brings them back. What cannot be done is logged, and found again. Whether there were
    any."""
    vault = parts.vault
    if vault is None:
        return False
    left = await unfinished(parts, vault, tenant, user)
    for each in left:
        try:
            await end(parts, vault, each.id, ())
        except RingfenceError as error:
            logging.getLogger("ringfence.engine").error("credential %s of who was removed: %s", each.id, error)
    if left and parts.egress is not None and (bound is None or bound):
        try:
            await parts.egress.reload(bound)
        except RingfenceError as error:
            logging.getLogger("ringfence.engine").error("what stood for credentials of who was removed: %s", error)
    return bool(left)
