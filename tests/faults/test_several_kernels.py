"""F29, F30, F03: three kernel processes on one PostgreSQL. Every turn is done once; whoever is stopped or killed is replaced,
and cannot write any more when it wakes up.

Real processes with the real engine and store; boxes are folders. The server's clock is ours: a lease of 30 s ends when the
test says so, in steps, after each of which whoever is alive has renewed its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringfence.bench.cluster import Cluster, cluster
from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.errors import StaleEpoch
from ringfence.host.kernel.ids import RunId, ThreadId
from ringfence.host.kernel.people import User, UserKind
from ringfence.host.kernel.runs import LEASE_SECONDS, RUN_FINAL, Run, RunState, StepState
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.store import SqlStore, open_store
from tests.support.databases import SEARCH_PATH
from tests.support.engine_rig import RealClock
from tests.support.kernel_process import Kernel, NumbersOf, kernel

SKEW = """
CREATE SCHEMA hand;
CREATE TABLE hand.skew AS SELECT interval '0' AS by;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    $$ SELECT pg_catalog.clock_timestamp() + by FROM hand.skew $$;
"""
FIRST = 900  # ids of the test's own store
STEP = 5  # seconds that the server's clock is put on at once
PATIENCE = 60.0


@dataclass(frozen=True)
class Stage:
    server: Cluster
    url: str
    folder: Path

    @property
    def effects(self) -> Path:
        """A line for each command that ran, whoever ran it."""
        return self.folder / "effects"

    def done(self) -> Counter[str]:
        return Counter(self.effects.read_text().split()) if self.effects.exists() else Counter()

    def pass_seconds(self, seconds: float) -> None:
        self.server.sql("kernels", f"UPDATE hand.skew SET by = by + interval '{seconds} seconds'")

    async def pass_leases(self, times: float, gone: str) -> None:
        """So many leases go by, and whoever is alive keeps its own. `gone`: the worker who is not."""
        late = f"SELECT count(*) FROM runs WHERE state = 'running' AND worker <> '{gone}' AND lease_until < "
        late += f"clock_timestamp() + interval '{LEASE_SECONDS - STEP + 1} seconds'"
        for _ in range(round(times * LEASE_SECONDS / STEP)):
            await asyncio.to_thread(self.pass_seconds, STEP)
            async with asyncio.timeout(PATIENCE):
                while (await asyncio.to_thread(self.server.sql, "kernels", late))[0][0] != "0":
                    await asyncio.sleep(0.05)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with cluster(SEARCH_PATH) as server:
        made = Stage(server, server.create("kernels"), tmp_path)

        async def migrate() -> None:
            await (await open_store(made.url, RealClock(), NumbersOf(FIRST))).close()

        asyncio.run(migrate())
        server.sql("kernels", SKEW)
        yield made


@pytest.fixture
async def store(stage: Stage) -> AsyncIterator[SqlStore]:
    """The test's own. Closed also when it fails: else nothing but that is reported."""
    made = await open_store(stage.url, RealClock(), NumbersOf(FIRST + 1))
    yield made
    await made.close()


class Talk:
    """People who say things in a thread where each has a lane of their own."""

    def __init__(self, store: SqlStore, people: list[User], threads: list[ThreadId]) -> None:
        self.store, self.people, self.threads = store, people, threads

    @classmethod
    async def among(cls, store: SqlStore, count: int, threads: int = 1) -> Talk:
        tenant = await store.tenants.add("default")
        people = [await store.users.add("default", f"u{n}", UserKind.PERSON, None) for n in range(count)]
        members = [one.id for one in people]
        made = [await store.threads.add(tenant.id, f"t{n}", members, True) for n in range(threads)]
        return cls(store, people, [thread.id for thread in made])

    def thread_of(self, person: int) -> ThreadId:
        return self.threads[person % len(self.threads)]

    async def say(self, count: int, script: str) -> list[RunId]:
        said = [
            self.store.turns.accept(
                self.thread_of(n % len(self.people)),
                self.people[n % len(self.people)].id,
                script.replace("N", str(n)),
                "queue",
                None,
            )
            for n in range(count)
        ]
        return [accepted.run.id for accepted in await asyncio.gather(*said)]

    async def ended(self, runs: list[RunId], seconds: float) -> list[Run]:
        async with asyncio.timeout(seconds):
            while True:
                rows = [await self.store.runs.get(run) for run in runs]
                if all(row.state in RUN_FINAL for row in rows):
                    return rows
                await asyncio.sleep(0.2)

    async def holder_of(self, run: RunId) -> Run:
        async with asyncio.timeout(30):
            while (row := await self.store.runs.get(run)).state is not RunState.RUNNING:
                assert row.state not in RUN_FINAL, row
                await asyncio.sleep(0.05)
            return row

    async def replies(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for thread in self.threads:
            events = await self.store.events.after(thread, 0, 10_000)
            assert [event.cursor for event in events] == list(range(1, len(events) + 1)), "gapless"
            found.update(str(event.run) for event in events if event.kind is EventKind.REPLY)
        return found


def _worker(number: int) -> str:
    """The id of the process's kernel: the first that it gives out."""
    return NumbersOf(number).new("krn")


async def test_three_kernels_do_three_hundred_turns_once_each(stage: Stage, store: SqlStore) -> None:
    with ExitStack() as stack:
        talk = await Talk.among(store, 30, threads=10)
        kernels = [stack.enter_context(kernel(stage.url, stage.folder, n, f"place{n}")) for n in range(3)]
        runs = await talk.say(300, f"$ echo N >> {stage.effects}")
        rows = await talk.ended(runs, 240)
        assert {row.state for row in rows} == {RunState.COMPLETED}
        assert {row.attempts for row in rows} == {1}
        assert stage.done() == Counter(str(n) for n in range(300)), "each once"
        assert await talk.replies() == Counter(map(str, runs))
        shares = Counter(row.box for row in rows)
        homes = {box.id: box.installation for box in await store.boxes.all()}
        assert len(homes) == 30, "one home for each, wherever it was made"
        by_place = Counter(homes[box] for box in shares.elements() if box is not None)
        assert len(by_place) == 3 and min(by_place.values()) >= 10, by_place
        assert all("Traceback" not in one.said() for one in kernels)


async def test_a_kernel_that_sleeps_three_leases_long_is_fenced(stage: Stage, store: SqlStore) -> None:
    """F30. Both are kernels of one place whose boxes anybody can make: only the lease says who may."""
    with ExitStack() as stack:
        talk = await Talk.among(store, 2)
        kernels = [stack.enter_context(kernel(stage.url, stage.folder, n)) for n in range(2)]
        # Its command ends when the test lets it. What it did is not known to whoever takes over: the step is interrupted.
        go = stage.folder / "go"
        [run] = await talk.say(1, f"$ while ! test -e {go}; do sleep 0.05; done; echo N >> {stage.effects}")
        first = await talk.holder_of(run)
        [sleeper] = [one for n, one in enumerate(kernels) if _worker(n) == first.worker]
        async with asyncio.timeout(30):
            while not await store.steps.all(run):
                await asyncio.sleep(0.05)
        os.kill(sleeper.process.pid, signal.SIGSTOP)
        await stage.pass_leases(3, str(first.worker))
        [row] = await talk.ended([run], 60)
        assert (row.state, row.attempts) == (RunState.COMPLETED, 2)
        assert row.epoch > first.epoch
        go.touch()
        os.kill(sleeper.process.pid, signal.SIGCONT)
        await _says(sleeper, f"run {run}: the lease of epoch {first.epoch} is lost")
        with pytest.raises(StaleEpoch):
            await store.steps.end(run, first.epoch, 1, {"ok": True}, False)
        assert [step.state for step in await store.steps.all(run)] == [StepState.INTERRUPTED]
        assert (await talk.replies())[run] == 1
        again = await talk.say(4, f"$ echo again-N >> {stage.effects}")
        assert {one.state for one in await talk.ended(again, 60)} == {RunState.COMPLETED}, "and it works on"


async def _says(one: Kernel, text: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while text not in one.said():
            await asyncio.sleep(0.1)


async def test_a_kernel_that_is_killed_is_replaced_where_its_boxes_can_be_reached(
    stage: Stage, store: SqlStore
) -> None:
    """F03. What has no home yet is done by the others when the lease is over; what has one waits for its own place."""
    with ExitStack() as stack:
        talk = await Talk.among(store, 12)
        lost = stack.enter_context(kernel(stage.url, stage.folder, 0, "place0"))
        at_home = await talk.say(6, f"$ echo N >> {stage.effects}")
        await talk.ended(at_home, 60)
        busy = await talk.say(6, f"$ sleep 1000; echo late-N >> {stage.effects}")
        for run in busy:
            await talk.holder_of(run)
        os.killpg(lost.process.pid, signal.SIGKILL)  # its boxes' commands are children of its boxes, not of it
        given_up, *busy = busy
        await store.runs.cancel(given_up)
        stack.enter_context(kernel(stage.url, stage.folder, 1, "place1"))
        others = [
            (
                await store.turns.accept(talk.threads[0], one.id, f"$ echo other-{n} >> {stage.effects}", "queue", None)
            ).run.id
            for n, one in enumerate(talk.people[6:])
        ]
        await stage.pass_leases(1.5, _worker(0))
        assert {row.state for row in await talk.ended(others, 60)} == {RunState.COMPLETED}
        await stage.pass_leases(1.5, _worker(0))  # now its server counts as gone
        assert [row.state for row in await talk.ended([given_up], 60)] == [RunState.CANCELLED], "by the other one"
        assert {(await store.runs.get(run)).state for run in busy} == {RunState.RUNNING}, "their boxes are elsewhere"
        assert (await store.boxes.home_of(talk.people[0], "fake", Limits())).installation == "place0"
        stack.enter_context(kernel(stage.url, stage.folder, 2, "place0"))
        # The new kernel of place0 takes them over at once, whatever their leases say: there is one at a time.
        async with asyncio.timeout(60):
            while _worker(0) in {(await store.runs.get(run)).worker for run in busy}:
                await asyncio.sleep(0.1)
        assert {(await store.runs.get(run)).attempts for run in busy} <= {1, 2}
