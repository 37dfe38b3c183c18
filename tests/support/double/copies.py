"""Copies of the double: rows without files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.ids import BoxId, UserId
from ringfence.host.kernel.life.copies import CopyKind, How, Snapshot
from ringfence.host.kernel.people import Actor
from tests.support.double.boxes import BoxKeeper, BoxView
from tests.support.double.world import now


@dataclass
class Taken:
    snapshot: Snapshot
    left_out: Mapping[str, int] = field(default_factory=lambda: {"fifo": 2})


@dataclass
class Changed:
    box: BoxView
    before: Snapshot | None
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Mended:
    action: str
    found: str = "clean"
    freed: int = 0
    removed: tuple[str, ...] = ()


@dataclass
class Copies:
    keeper: BoxKeeper
    kept: dict[str, list[Snapshot]] = field(default_factory=dict)

    async def snapshot(self, actor: Actor, tenant: str, user: str, name: str = "", *, force: bool = False) -> Taken:
        await self.keeper.show(actor, tenant, user)
        rows = self.kept.setdefault(user, [])
        sizes = {"entries": 3, "bytes": 20, "stored": 10}
        id_ = f"snp_{len(rows):020d}".replace("0", "a").replace("1", "b")
        made = Snapshot(
            id_,
            tenant,
            UserId(user),
            BoxId("b" * 16),
            name,
            CopyKind.ASKED,
            True,
            "",
            "i",
            digest="",
            created_at=now(),
            **sizes,
        )
        rows.append(made)
        return Taken(made)

    async def list(self, actor: Actor, tenant: str, user: str) -> list[Snapshot]:
        await self.keeper.show(actor, tenant, user)
        return list(self.kept.get(user, ()))

    async def remove(self, actor: Actor, tenant: str, user: str, wanted: str) -> None:
        found = await self._found(actor, tenant, user, wanted)
        self.kept[user].remove(found)

    async def restore(self, actor: Actor, tenant: str, user: str, wanted: str, how: How) -> Changed:
        found = await self._found(actor, tenant, user, wanted)
        return await self._changed(actor, tenant, user, replace(found, kind=CopyKind.BEFORE) if how.keep else None)

    async def clone(self, actor: Actor, tenant: str, user: str, to: str, wanted: str | None, how: How) -> Changed:
        self.keeper.world.operator(actor)
        return await self._changed(actor, tenant, to, None)

    async def reset(self, actor: Actor, tenant: str, user: str, how: How, *, keep_files: bool = False) -> Changed:
        return await self._changed(actor, tenant, user, None)

    async def archive(self, actor: Actor, tenant: str, user: str, how: How) -> BoxView:
        return await self.keeper.stop(actor, tenant, user)

    async def recover(self, actor: Actor, tenant: str, user: str, action: str, how: How) -> tuple[BoxView, Mended]:
        self.keeper.world.operator(actor)
        return await self.keeper.stop(actor, tenant, user), Mended(action)

    @asynccontextmanager
    async def export(
        self, actor: Actor, tenant: str, user: str, *, force: bool = False
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.keeper.world.operator(actor)
        await self.keeper.show(actor, tenant, user)

        async def content() -> AsyncIterator[bytes]:
            yield b"a tar"

        yield content()

    async def _found(self, actor: Actor, tenant: str, user: str, wanted: str) -> Snapshot:
        for each in await self.list(actor, tenant, user):
            if wanted in (each.id, each.name):
                return each
        raise NotFound(f"no such copy: {wanted!r}")

    async def _changed(self, actor: Actor, tenant: str, user: str, before: Snapshot | None) -> Changed:
        return Changed(await self.keeper.stop(actor, tenant, user), before)
