"""An engine with a real vault, and in the place of workers a recorder of what they would be told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringfence.host.engine.secrets import SecretView
from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.outward.ports import Hold, HoldSaid, Invocation, Invoker
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import BindingWish
from ringfence.host.kernel.people import Actor
from ringfence.host.vault.vault import SealedVault
from tests.support.engine_rig import Rig, rig
from tests.support.store import newest
from tests.support.vault_rig import CANARY, a_vault, put_key


@dataclass
class OpenHolds:
    """kernel.outward.ports.Holds, without connections."""

    there: list[Hold] = field(default_factory=list)
    answers: list[tuple[str, str, str]] = field(default_factory=list)  # (via, hold, said)

    def of(self, users: Collection[UserId]) -> list[Hold]:
        return [each for each in self.there if each.who.user in users]

    async def answer(self, actor: Actor, hold: str, said: HoldSaid) -> Hold:
        found = next((each for each in self.there if each.id == hold), None)
        if found is None:
            raise NotFound(f"no such question: {hold!r}", remedy="ringfence gate ls")
        self.there.remove(found)
        self.answers.append((actor.via, hold, said))
        return found

    def asks(self, actor: Actor, host: str, number: int = 1) -> Hold:
        assert actor.user is not None
        who = Invoker(actor.user.tenant, actor.user.id, BoxId("b" * 16), "x/1")
        rule = EgressRule("", Verdict.ALLOW, host, methods=frozenset({"POST"}), paths=("/x\u202e",))
        made = Hold(f"hld_{number}", who, rule, datetime(2026, 1, number, tzinfo=UTC), 1)
        self.there.append(made)
        return made


@dataclass
class Told:
    """kernel.outward.ports.Egress: what workers would be told, in order."""

    reloads: list[Collection[UserId] | None] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    forgotten: list[UserId] = field(default_factory=list)  # whose CA
    holds: OpenHolds = field(default_factory=OpenHolds)
    settings_rules: Sequence[EgressRule] = ()

    async def prepare(self, box: BoxId, tenant: TenantId, user: UserId) -> None: ...
    async def open(self, box: BoxId, tenant: TenantId, user: UserId, keys: Collection[str]) -> None: ...
    async def suspend(self, box: BoxId) -> None: ...
    async def close(self, box: BoxId) -> None: ...
    async def begin(self, who: Invoker) -> Invocation:
        return Invocation("inv_1", who, 100, {})

    def end(self, box: BoxId, key: str) -> None: ...
    def keep(self, box: BoxId, keys: Collection[str]) -> None: ...
    async def reload(self, users: Collection[UserId] | None) -> None:
        self.reloads.append(None if users is None else list(users))

    async def revoke(self, credential: str) -> None:
        self.revoked.append(credential)

    async def forget_authority(self, tenant: TenantId, user: UserId) -> None:
        self.forgotten.append(user)

    def facts(self, box: BoxId) -> Mapping[str, Any]:
        return {"open": True, "worker": True, "requests": 2, "denials": 1, "crashes": 0, "holds": 0}

    async def stop(self) -> None: ...


@dataclass
class Out:
    rig: Rig
    vault: SealedVault
    told: Told

    def actor(self, name: str) -> Actor:
        return self.rig.actors[name]

    async def set(self, name: str, secret: str = "gh", value: bytes = CANARY, **more: Any) -> SecretView:
        return await self.rig.engine.secrets.set(self.actor(name), "default", name, secret, Secret(value), **more)

    async def value(self, credential: str) -> bytes:
        opening = await self.rig.store.credentials.opening(credential)
        return (await self.vault.open(*opening)).reveal()

    async def bound(self, name: str, host: str = "api.test", **more: Any) -> SecretView:
        return await self.set(name, wish=BindingWish(host=host, **more))

    async def recorded(self, prefix: str) -> list[Mapping[str, Any]]:
        return [each for each in await newest(self.rig.store.audit, 1000) if each["action"].startswith(prefix)]


@asynccontextmanager
async def out(folder: Path) -> AsyncIterator[Out]:
    put_key(folder)
    async with rig(folder) as made:
        vault, told = await a_vault(folder, made.store), Told()
        made.with_parts = {"vault": vault, "egress": told}
        await made.restart()
        yield Out(made, vault, told)
