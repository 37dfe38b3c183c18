"""The vault as operators see it: whether it is open, and rotation of the key that wraps. It never reads a value."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ringfence.host.engine.doors import Doors, no_user
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.stored import NO_VAULT
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.errors import NotFound, Unavailable
from ringfence.host.kernel.outward.ports import Vault
from ringfence.host.kernel.people import Actor

_MOST_TOLD = 1000  # ids in one row of the audit


class VaultKeeper:
    def __init__(self, parts: Parts, doors: Doors) -> None:
        self._parts, self._doors = parts, doors
        self._one = asyncio.Lock()  # two at once would do no harm, and each other's work

    async def status(self, actor: Actor) -> Mapping[str, Any]:
        """As `kernel.outward.ports.Vault.look`, and "altered": what of bindings, rules and grants is not as it was
        sealed, [{"of", "why", "odd", "lost"}]; "restored": the generation of the store, when it is higher than what
        this host agrees to, else 0."""
        await self._doors.operator_only(Action.VAULT, actor, "vault")
        vault = self._vault()
        found = [] if vault.sealed else await self._parts.store.rolls.altered()
        number = await self._parts.store.kernels.generation()
        return {
            **await vault.look(self._parts.store.credentials),
            "altered": [asdict(each) for each in found],
            "restored": number if number > vault.generation else 0,
        }

    async def restored(self, actor: Actor) -> int:
        """The store was put back by another host: what is older in it is right. The generation that counts from now
        on."""
        await self._doors.operator_only(Action.VAULT, actor, "vault")
        number = await self._parts.store.kernels.generation()
        await self._parts.store.audit.record(actor, "vault.restored", "vault", {"generation": number})
        await self._vault().restored(number)
        return number

    async def forget_ca(self, actor: Actor, tenant: str, user: str) -> None:
        """The user's CA, such as one that cannot be opened any more. The user's boxes get another at their next start.
        NotFound."""
        await self._doors.operator_only(Action.VAULT, actor, "vault")
        try:
            target = await self._parts.store.users.get(tenant, user)
        except NotFound:
            raise no_user(tenant, user) from None
        if self._parts.egress is None:
            raise Unavailable("boxes have no way out here, and so no CA", remedy="set egress.enabled = true")
        await self._parts.store.audit.record(actor, "vault.forget_ca", f"user:{target.id}", {})
        await self._parts.egress.forget_authority(target.tenant, target.id)

    async def rotate(self, actor: Actor) -> Mapping[str, Any]:
        """{"rewrapped", "resigned", "left", "damaged"}: `left` of values and rolls together, `damaged` also in the
        audit. May be cut off anywhere and asked again. Unavailable: the vault is sealed."""
        await self._doors.operator_only(Action.VAULT, actor, "vault")
        vault = self._vault()
        async with self._one:
            await self._parts.store.audit.record(actor, "vault.rotate", "vault", {})
            values = await vault.rotate(self._parts.store.credentials)
            if values.damaged:
                details = {"credentials": list(values.damaged[:_MOST_TOLD]), "damaged": len(values.damaged)}
                await self._parts.store.audit.record(actor, "vault.damaged", "vault", details)
            rolls = await self._parts.store.rolls.resign()
            return {
                "rewrapped": values.rewrapped,
                "resigned": rolls["resigned"],
                "left": values.left + rolls["left"],
                "damaged": list(values.damaged),
            }

    def _vault(self) -> Vault:
        if self._parts.vault is None:
            raise Unavailable(NO_VAULT, remedy="ringfence status")
        return self._parts.vault
