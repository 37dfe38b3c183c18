"""An engine over a real store and the fakes, with two people; it can be ended and started anew like a killed server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringfence.host.engine.commands import ExecRequest
from ringfence.host.engine.engine import Engine
from ringfence.host.engine.parts import Config, Parts
from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.ids import BoxId, RunId, box_id, sortable
from ringfence.host.kernel.people import Actor, Scope, UserKind
from ringfence.host.kernel.ports import Accepted, Clock, Model, Outcome
from ringfence.host.kernel.runs import RUN_FINAL, Run, RunState
from ringfence.host.kernel.threads import Turn
from ringfence.host.models.scripted import Scripted
from ringfence.host.store.store import SqlStore, open_store
from tests.support.databases import address
from tests.support.fake_driver import FakeDriver
from tests.support.fakes import FakeBox, FakeBroker, Loop, Script, World
from tests.support.seals import seals

FAR = 1 << 40  # a cursor behind everything that is said: a finish that answers it all
OPERATOR = Actor(user=None, operator=True, via="socket:0", scopes=frozenset(Scope))
CONFIG = Config(
    installation="i" * 16,
    version="1",
    mode="shared",
    model="scripted",
    limits=Limits(),
    adopt_seconds=1.0,
    sweep_seconds=0.05,
    heartbeat_seconds=0.1,
    active_seconds=0.2,
    watch_seconds=0.05,
    leave_seconds=0.3,
)


class RealClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class Numbers:
    """Ids in order, of one process."""

    def __init__(self) -> None:
        self._last = 0

    def _next(self) -> int:
        self._last += 1
        return self._last

    def new(self, prefix: str) -> str:
        return sortable(prefix, self._next(), 0)

    def box(self) -> BoxId:
        return box_id(self._next())

    def secret(self) -> str:
        return f"{self._next():052d}"


class Rig:
    def __init__(
        self,
        store: SqlStore,
        world: World,
        config: Config,
        model: Model | None = None,
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        """`parts`: further fields of engine.parts.Parts."""
        self.store, self.world, self.config = store, world, config
        self.model: Model = model or Scripted()
        self.ids = Numbers()
        self.clock: Clock = RealClock()
        self.with_parts: dict[str, Any] = dict(parts or {})  # what is changed here, the next engine has
        self.driver = FakeDriver(world)
        self.actors: dict[str, Actor] = {}
        self.engine = self._made()

    def _made(self) -> Engine:
        models = {"scripted": self.model}
        worker = self.ids.new("krn")
        broker = FakeBroker(self.world)
        parts = Parts(self.store, self.driver, broker, models, self.clock, self.ids, self.config, worker)
        return Engine(replace(parts, **self.with_parts))

    async def restart(self, down: Callable[[], Any] | None = None) -> None:
        """The kernel process is gone (nothing of it is finished); another one starts. `down`: what happens between."""
        await self.engine.stop()
        if down is not None:
            await down()
        self.engine = self._made()
        await self.engine.start()

    async def person(self, name: str, tenant: str = "default") -> Actor:
        user = await self.engine.people.user_add(OPERATOR, tenant, name)
        actor = self.actors[name] = Actor(user=user, operator=False, via="token:t")
        return actor

    def box(self, name: str) -> FakeBox:
        """The box of a person; boxes are provisioned in the order in which people are added."""
        return list(self.world.boxes.values())[list(self.actors).index(name)]

    async def exec(self, name: str, script: str, **fields: Any) -> Outcome:
        request = ExecRequest(argv=[b"/bin/sh", b"-c", script.encode()], env={}, output="keep")
        command = await self.engine.commands.run(self.actors[name], "default", name, replace(request, **fields))
        return await command.outcome()

    async def say(
        self, name: str, text: str, thread: str = "t", mode: str = "queue", key: str | None = None
    ) -> Accepted:
        return await self.engine.threads.say(self.actors[name], "default", thread, text, mode, key)

    async def turn(self, accepted: Accepted, seconds: float = 30.0) -> Turn:
        """The turn once it has ended."""
        await self.ended(accepted.run.id, seconds)
        return await self.store.turns.get(accepted.turn.id)

    async def ended(self, run: RunId, seconds: float = 30.0) -> Run:
        return await self.until(run, lambda row: row.state in RUN_FINAL, seconds)

    async def until(self, run: RunId, reached: Callable[[Run], bool], seconds: float = 30.0) -> Run:
        async with asyncio.timeout(seconds):
            while not reached(row := await self.store.runs.get(run)):
                await asyncio.sleep(0.01)
            return row

    async def asked(self, name: str, text: str) -> Turn:
        return await self.turn(await self.say(name, text))

    async def running_command(self, name: str, key: str) -> None:
        await eventually(lambda: key in self.box(name).commands, f"command {key}")

    async def details(self, name: str, thread: str = "t") -> list[dict[str, Any]]:
        """Why runs failed, as far as the person may read it."""
        events = await self.engine.threads.events(self.actors[name], "default", thread, 0, 1000)
        return [event["body"] for event in events if event["kind"] == "run.detail"]

    async def loop(self, said: Accepted) -> Loop:
        """Of a run, once it is there."""
        name = next(name for name, actor in self.actors.items() if actor.user and actor.user.id == said.run.actor)
        await eventually(lambda: said.run.id in self.box(name).loops, f"a loop of {said.run.id}")
        return self.box(name).loops[said.run.id]

    async def states(self, run: RunId) -> list[str]:
        return [step.state.value for step in await self.store.steps.all(run)]


async def eventually(true: Callable[[], Any], what: str = "", seconds: float = 30.0) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not true():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what}") from None


@asynccontextmanager
async def rig(
    folder: Path,
    people: tuple[str, ...] = ("alice", "bob"),
    script: Script | None = None,
    model: Model | None = None,
    parts: Mapping[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[Rig]:
    world = World(folder / "world", script)
    store = await open_store(
        address(folder), RealClock(), Numbers(), installation=CONFIG.installation, seals=seals(folder)
    )
    made = Rig(store, world, replace(CONFIG, **config), model, parts)
    try:
        await store.tenants.add("default")
        await made.engine.start()
        for name in people:
            await made.person(name)
        yield made
    finally:
        await made.engine.stop()
        await world.close()
        await store.close()


__all__ = ["CONFIG", "FAR", "OPERATOR", "Rig", "RunState", "UserKind", "eventually", "rig"]
