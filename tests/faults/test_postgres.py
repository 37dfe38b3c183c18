"""PostgreSQL itself fails: it is killed under a running store, its connections are cut, its answers are lost, rows of it are
locked. Nothing acknowledged is lost, nothing unknown is called written or not written, and the store comes back by itself.

On a cluster of its own, with fsync as PostgreSQL has it by itself.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from ringfence.bench.cluster import Cluster, cluster
from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.errors import Conflict, Unavailable
from ringfence.host.kernel.people import UserKind
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store import events as store_events
from ringfence.host.store.store import SqlStore, open_store
from tests.support.engine_rig import RealClock
from tests.support.kernel_process import NumbersOf

NEVER = 3600.0  # seconds: later than any test ends
CUT = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'ringfence%'"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with cluster(durable=True) as running:
        yield running


@pytest.fixture
def url(server: Cluster) -> Iterator[str]:
    yield server.create("fault")
    server.drop("fault")


@asynccontextmanager
async def opened(url: str, first: int = 1, busy: float = 30.0, installation: str = "") -> AsyncIterator[SqlStore]:
    store = await open_store(url, RealClock(), NumbersOf(first << 10), busy_seconds=busy, installation=installation)
    try:
        yield store
    finally:
        await store.close()


async def test_killed_under_a_running_store(url: str, server: Cluster) -> None:
    """F16 for PostgreSQL: what was acknowledged is there when the server has recovered."""
    async with opened(url) as store:
        acknowledged: set[str] = set()
        refused = 0

        async def write(n: int) -> None:
            nonlocal refused
            try:
                acknowledged.add((await store.tenants.add(f"t{n}")).name)
            except Unavailable as error:
                assert error.remedy
                refused += 1

        writes = [asyncio.create_task(write(n)) for n in range(100)]
        await asyncio.gather(*writes[:30])
        await asyncio.to_thread(server.stop, "immediate")
        await asyncio.gather(*writes)
        late = asyncio.gather(*(write(n) for n in range(100, 110)))
        await late
        assert refused >= 10
        with pytest.raises(Unavailable, match="cannot be used"):
            await store.tenants.all()
        assert not (await store.health())["ok"]
        await asyncio.to_thread(server.start)
        names = {tenant.name for tenant in await store.tenants.all()}
        assert acknowledged <= names
        assert (await store.tenants.add("after")).name == "after"
        assert (await store.health())["ok"]


async def test_connections_that_are_cut_between_two_questions_are_noticed_by_nobody(url: str, server: Cluster) -> None:
    async with opened(url) as store:
        for n in range(5):
            await store.tenants.add(f"t{n}")
            await asyncio.to_thread(server.sql, "fault", CUT)
            assert len(await store.tenants.all()) == n + 1


class Wire:
    """Between a store and the server. Once `armed`, the next COMMIT reaches the server and its answer reaches nobody."""

    def __init__(self, server: Path) -> None:
        self.server = server
        self.armed = False

    async def served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(str(self.server))
        answers = asyncio.create_task(self._passed(there, writer))
        try:
            while data := await reader.read(65536):
                if self.armed and b"COMMIT;" in data:
                    self.armed = False
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    back.write(data)
                    await back.drain()
                    await there.read(65536)  # the answer
                    break
                back.write(data)
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            back.close()
            writer.close()

    async def _passed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


async def test_a_commit_whose_answer_is_lost_is_unknown_and_its_key_tells(
    url: str, server: Cluster, tmp_path: Path
) -> None:
    """Written, but nobody knows: never answered as written or refused; the same key then gives the same turn."""
    wire = Wire(server.folder / ".s.PGSQL.5432")
    listening = await asyncio.start_unix_server(wire.served, tmp_path / ".s.PGSQL.5432")
    async with listening, opened(url.replace(str(server.folder), str(tmp_path))) as store:
        tenant = await store.tenants.add("default")
        alice = await store.users.add("default", "alice", UserKind.PERSON, None)
        thread = await store.threads.add(tenant.id, "t", [alice.id], False)
        wire.armed = True
        with pytest.raises(Unavailable, match="not known") as error:
            await store.turns.accept(thread.id, alice.id, "once", "queue", "key")
        assert not wire.armed
        assert error.value.details["outcome"] == "unknown"
        assert not (await store.health())["ok"]
        again = await store.turns.accept(thread.id, alice.id, "once", "queue", "key")
        assert again.repeated
        assert len(await store.threads.messages(thread.id, None, 10)) == 1
        wire.armed = True
        with pytest.raises(Unavailable, match="not known"):
            await store.runs.claim("w1", 8, str)
        assert await store.runs.heartbeat("w1") == {again.run.id: pytest.approx(0, abs=5)}, "it is ours all the same"


async def test_a_row_that_stays_locked(url: str, server: Cluster) -> None:
    """F21: a bounded wait, who holds it in the remedy, neighbours in the same batch not harmed."""
    async with opened(url, busy=1.0) as store:
        tenant = await store.tenants.add("default")
        alice = await store.users.add("default", "alice", UserKind.PERSON, None)
        threads = [await store.threads.add(tenant.id, f"t{n}", [alice.id], False) for n in range(4)]
        with _held(server, f"SELECT 1 FROM threads WHERE id = '{threads[1].id}' FOR UPDATE"):
            said = [store.turns.accept(thread.id, alice.id, "x", "queue", None) for thread in threads]
            answers = await asyncio.gather(*said, return_exceptions=True)
        assert [type(answer).__name__ for answer in answers] == ["Accepted", "Unavailable", "Accepted", "Accepted"]
        assert "pg_stat_activity" in str(getattr(answers[1], "remedy", ""))
        await store.turns.accept(threads[1].id, alice.id, "x", "queue", None)


@contextmanager
def _held(server: Cluster, statement: str) -> Iterator[None]:
    """What it locks is locked until the end. It answers with a row."""
    words = ["psql", "-X", "-q", "-A", "-t", "-h", str(server.folder), "-U", "ringfence", "-d", "fault"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        holder.stdin.write(f"BEGIN; {statement};\n")
        holder.stdin.flush()
        try:
            assert holder.stdout.readline() == "1\n"
            yield
        finally:
            holder.stdin.close()  # and what it has begun is rolled back
            holder.wait()


async def test_two_stores_in_each_others_way_lose_nothing(url: str) -> None:
    """Batches that lock the same threads in opposite orders: deadlocks are run again, cursors stay gapless."""
    async with opened(url, 1) as one, opened(url, 2) as two:
        tenant = await one.tenants.add("default")
        alice = await one.users.add("default", "alice", UserKind.PERSON, None)
        threads = [await one.threads.add(tenant.id, f"t{n}", [alice.id], False) for n in range(8)]

        async def grow(store: SqlStore, order: list[int]) -> None:
            for number in range(20):
                body = {"n": number}
                await asyncio.gather(*(store.events.append(threads[n].id, EventKind.BREAK_GLASS, body) for n in order))

        await asyncio.gather(grow(one, list(range(8))), grow(two, list(range(7, -1, -1))))
        for thread in threads:
            cursors = [event.cursor for event in await two.events.after(thread.id, 0, 1000)]
            assert cursors == list(range(1, 41))


async def test_races_of_two_stores_end_as_on_one(url: str) -> None:
    async with opened(url, 1) as one, opened(url, 2) as two:
        stores = (one, two)
        await one.tenants.add("default")
        made = await asyncio.gather(
            *(store.users.add("default", "alice", UserKind.PERSON, None) for store in stores), return_exceptions=True
        )
        [conflict] = [answer for answer in made if isinstance(answer, BaseException)]
        assert isinstance(conflict, Conflict)
        assert "exists" in conflict.message
        alice = await one.users.get("default", "alice")
        thread = await one.threads.add(alice.tenant, "t", [alice.id], False)
        for number in range(20):
            both = await asyncio.gather(
                *(store.turns.accept(thread.id, alice.id, f"{number}", "queue", f"k{number}") for store in stores)
            )
            assert both[0].turn.id == both[1].turn.id
            assert sorted(answer.repeated for answer in both) == [False, True]
        assert len(await two.threads.messages(thread.id, None, 1000)) == 20


async def test_another_process_wakes_and_its_bell_may_break(
    url: str, server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event of another store is seen without a look; after the connections were cut by the next look, and then
    without one again."""
    async with opened(url, 1) as one, opened(url, 2) as two:
        tenant = await one.tenants.add("default")
        thread = await one.threads.add(tenant.id, "t", [], False)

        async def seen(poll: float) -> None:
            """Within a minute, by whoever looks again after `poll` seconds, or is woken."""
            monkeypatch.setattr(store_events, "POLL_SECONDS", poll)
            cursor = (await one.events.append(thread.id, EventKind.BREAK_GLASS, {})).cursor
            async with asyncio.timeout(60):
                waiting = asyncio.create_task(one.events.changed(thread.id, cursor, 2 * NEVER))
                await asyncio.sleep(0)  # it waits: how far the thread is is known here
                await two.events.append(thread.id, EventKind.BREAK_GLASS, {})
                assert await waiting

        async def settled() -> None:
            async with asyncio.timeout(30):
                while not all(store._database._bell.hears for store in (one, two)):  # type: ignore[attr-defined]
                    await asyncio.sleep(0.02)

        await settled()
        await seen(NEVER)
        await asyncio.to_thread(server.sql, "fault", CUT)
        await seen(1.0)
        await settled()
        await seen(NEVER)


async def test_a_run_is_claimed_where_its_home_is(url: str) -> None:
    """Decision 0032, with the bell: who can claim it is told, who cannot is not."""
    async with opened(url, 1, installation="a") as one, opened(url, 2, installation="b") as two:
        tenant = await one.tenants.add("default")
        alice = await one.users.add("default", "alice", UserKind.PERSON, None)
        nobody = await one.users.add("default", "nobody", UserKind.PERSON, None)
        assert (await two.boxes.home_of(alice, "fake", Limits())).installation == "b"
        assert (await one.boxes.home_of(alice, "fake", Limits())).installation == "b", "there is one home"
        thread = await one.threads.add(tenant.id, "t", [alice.id, nobody.id], True)
        told = asyncio.create_task(two.runs.offered(0.1))
        await told  # what was offered when the bell began
        told = asyncio.create_task(two.runs.offered(5))
        await asyncio.sleep(0.2)
        said = await one.turns.accept(thread.id, alice.id, "x", "queue", None)
        assert await told
        assert await one.runs.claim("w1", 8, str) == []
        [run] = await two.runs.claim("w2", 8, str)
        assert run.id == said.run.id
        homeless = await one.turns.accept(thread.id, nobody.id, "x", "queue", None)
        [run] = await one.runs.claim("w1", 8, str)
        assert run.id == homeless.run.id
        # A new kernel of installation b: what the former one held is lost at once; what others hold is theirs.
        assert [gone.id for gone in await two.runs.expired("w3")] == [said.run.id]
        assert await one.runs.expired("w4") == []
