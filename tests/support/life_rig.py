"""Boxes whose life is under test, on a driver without walls: none rests by itself, and copies of their trees can be held on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ringfence.host.drivers.shelf import FileShelf
from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.copies import Kept
from ringfence.host.kernel.life.rests import Rests
from tests.support.engine_rig import Rig, eventually, rig

NEVER = Rests(0, 0, 0, 0, 0)


class Gate:
    """Something that is held on its way until it is told to go on."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def pass_by(self) -> None:
        self.reached.set()
        await self.open.wait()

    def before(
        self, work: Callable[[BoxId, Limits], Awaitable[None]]
    ) -> Callable[[BoxId, Limits], Coroutine[Any, Any, None]]:
        async def held(box: BoxId, limits: Limits) -> None:
            await self.pass_by()
            await work(box, limits)

        return held


class HeldShelf(FileShelf):
    """The next copy is held before its first byte, once there is a gate."""

    gate: Gate | None = None

    async def keep(self, copy: str, data: AsyncIterator[bytes]) -> Kept:
        gate, self.gate = self.gate, None
        if gate is not None:
            await gate.pass_by()
        return await super().keep(copy, data)


@asynccontextmanager
async def scene(folder: Path, **config: Any) -> AsyncIterator[tuple[Rig, HeldShelf]]:
    (folder / "snapshots").mkdir()
    shelf = HeldShelf(folder)
    async with rig(folder, parts={"shelf": shelf}, **({"rests": NEVER} | config)) as r:
        yield r, shelf


async def put(r: Rig, name: str, text: bytes, user: str = "alice") -> None:
    async def content() -> AsyncIterator[bytes]:
        yield text

    await r.engine.files.put(r.actors[user], "default", user, name.encode(), content(), 0o600)


async def got(r: Rig, name: str, user: str = "alice") -> bytes:
    async with r.engine.files.get(r.actors[user], "default", user, name.encode()) as (_, pieces):
        return b"".join([piece async for piece in pieces])


@asynccontextmanager
async def at_work(r: Rig, folder: Path, user: str = "alice") -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A silent command; what is yielded ends it."""
    pipe = folder / f"pipe-{user}"
    await r.exec(user, f"mkfifo {pipe}")
    command = asyncio.create_task(r.exec(user, f"read line < {pipe}"))
    await eventually(lambda: len(r.box(user).commands) == 1)

    async def end() -> None:
        writer = await asyncio.create_subprocess_shell(f"echo on > {pipe}")
        await command
        await writer.wait()

    yield end
    command.cancel()
    with suppress(asyncio.CancelledError, RingfenceError):
        await command
