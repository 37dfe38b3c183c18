"""A real store, with a clock that tests move and ids that sort by their making."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.people import Tenant, User, UserKind
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import Effect, Run, Step
from ringfence.host.kernel.threads import Event, Thread
from ringfence.host.store.store import SqlStore, open_store
from tests.support.clocks import CountingIds, HandClock
from tests.support.databases import address, hold_clock
from tests.support.seals import seals

ARGUMENTS = {"command": "ls"}
INSTALLATION = "i" * 16
DIGEST = digest("shell", ARGUMENTS, Effect.LOCAL)


@dataclass(frozen=True)
class Team:
    """An open store with a tenant, two people and a thread of theirs."""

    store: SqlStore
    clock: HandClock
    tenant: Tenant
    alice: User
    bob: User
    thread: Thread
    folder: Path = Path()  # of the database

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


async def newest(audit: Audit, limit: int) -> list[dict[str, Any]]:
    """Rows of what was done, released and intended, oldest first."""
    return (await audit.page({Lane.ACT, Lane.RELEASE, Lane.INTENT}, None, None, limit))[::-1]


@asynccontextmanager
async def opened(folder: Path, clock: HandClock | None = None, first: int = 0) -> AsyncIterator[SqlStore]:
    clock = clock or HandClock()
    clock.hold(hold_clock(folder))
    store = await open_store(address(folder), clock, CountingIds(first), installation=INSTALLATION, seals=seals(folder))
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
        yield Team(store, clock, tenant, alice, bob, thread, folder)


__all__ = [
    "ARGUMENTS",
    "DIGEST",
    "INSTALLATION",
    "CountingIds",
    "HandClock",
    "Team",
    "a_team",
    "address",
    "newest",
    "opened",
]
