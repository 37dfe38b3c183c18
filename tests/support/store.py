"""A real store in a file, with a clock that tests move and ids that sort by their making."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.ids import BoxId, RunId, box_id, sortable
from ringfence.host.kernel.people import Tenant, User, UserKind
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import Effect, Run, Step
from ringfence.host.kernel.threads import Event, Thread
from ringfence.host.store.store import SqlStore, open_store

ARGUMENTS = {"command": "ls"}
DIGEST = digest("shell", ARGUMENTS, Effect.LOCAL)


class HandClock:
    """Moves when it is told to. `jump` moves the wall only, as an administrator would."""

    def __init__(self) -> None:
        self._seconds = 1000.0
        self._wall = timedelta()

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds) + self._wall

    def monotonic(self) -> float:
        return self._seconds

    def pass_seconds(self, seconds: float) -> None:
        self._seconds += seconds

    def jump(self, by: timedelta) -> None:
        self._wall += by


class CountingIds:
    """Unique in the process; `first` keeps those of two processes apart."""

    def __init__(self, first: int = 0) -> None:
        self._numbers = itertools.count(first)

    def new(self, prefix: str) -> str:
        return sortable(prefix, next(self._numbers), 0)

    def box(self) -> BoxId:
        return box_id(next(self._numbers))

    def secret(self) -> str:
        return f"{next(self._numbers):052d}"


@dataclass(frozen=True)
class Team:
    """An open store with a tenant, two people and a thread of theirs."""

    store: SqlStore
    clock: HandClock
    tenant: Tenant
    alice: User
    bob: User
    thread: Thread

    async def say(self, text: str = "hello", user: User | None = None, key: str | None = None) -> Accepted:
        return await self.store.turns.accept(self.thread.id, (user or self.alice).id, text, "queue", key)

    async def steer(self, text: str = "and", user: User | None = None, key: str | None = None) -> Accepted:
        return await self.store.turns.accept(self.thread.id, (user or self.alice).id, text, "steer", key)

    async def claim(self, worker: str = "w1", limit: int = 8) -> list[Run]:
        return await self.store.runs.claim(worker, limit, lambda run: f"hash of {run}")

    async def running(self) -> Run:
        """A run that w1 has claimed."""
        await self.say()
        [run] = await self.claim()
        return run

    async def get(self, run: RunId) -> Run:
        return await self.store.runs.get(run)

    async def begin(self, run: Run, n: int, epoch: int | None = None) -> tuple[Step, bool]:
        at = run.epoch if epoch is None else epoch
        return await self.store.steps.begin(run.id, at, n, "shell", ARGUMENTS, DIGEST, Effect.LOCAL)

    async def events(self) -> list[Event]:
        return await self.store.events.after(self.thread.id, 0, 10_000)

    async def newest(self) -> Event:
        return (await self.events())[-1]


def address(folder: Path) -> str:
    return f"sqlite:///{folder / 'ringfence.db'}"


@asynccontextmanager
async def opened(folder: Path, clock: HandClock | None = None, first: int = 0) -> AsyncIterator[SqlStore]:
    store = await open_store(address(folder), clock or HandClock(), CountingIds(first))
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def a_team(folder: Path, parallel: bool = False) -> AsyncIterator[Team]:
    clock = HandClock()
    async with opened(folder, clock) as store:
        tenant = await store.tenants.add("default")
        alice = await store.users.add("default", "alice", UserKind.PERSON, None)
        bob = await store.users.add("default", "bob", UserKind.PERSON, None)
        thread = await store.threads.add(tenant.id, "#team", [alice.id, bob.id], parallel)
        yield Team(store, clock, tenant, alice, bob, thread)
