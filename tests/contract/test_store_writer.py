"""Group commit: many writers, few commits; neighbours do not fail each other; nobody is answered before the commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import Conflict, NotFound, Unavailable
from ringfence.host.kernel.ids import RunId, ThreadId
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store import writer
from ringfence.host.store.store import open_store
from ringfence.host.store.transact import Attempt
from ringfence.host.store.transaction import Tx
from tests.support.databases import outside
from tests.support.store import CountingIds, HandClock, Team, a_team, address


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def test_a_thousand_writers_share_their_commits(team: Team) -> None:
    threads = [await team.store.threads.add(team.tenant.id, f"t{n}", [team.alice.id], False) for n in range(20)]
    before = team.store.commits
    accept = team.store.turns.accept
    await asyncio.gather(*(accept(threads[n % 20].id, team.alice.id, str(n), "queue", None) for n in range(1000)))
    assert team.store.commits - before < 1000 / 4
    for number, thread in enumerate(threads):
        events = await team.store.events.after(thread.id, 0, 5000)
        assert [event.cursor for event in events] == list(range(1, 101))
        said = [event.body["text"] for event in events if event.kind is EventKind.MESSAGE]
        assert said == [str(n) for n in range(number, 1000, 20)], "in the order in which they were asked"


async def test_nobody_waits_for_writers_that_do_not_come(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write by itself, behind a batch of many."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def seen(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    await asyncio.gather(*(team.store.tenants.add(f"t{n}") for n in range(30)))
    monkeypatch.setattr(asyncio, "sleep", seen)
    before = team.store.commits
    await team.store.tenants.add("alone")
    assert team.store.commits == before + 1 and not any(slept)


@pytest.mark.sqlite
async def test_what_comes_while_a_batch_is_written_is_the_next_one(team: Team) -> None:
    """However long a commit takes: 30 that come one by one during it are one batch."""
    held, go, before = threading.Event(), threading.Event(), team.store.commits

    def slow(tx: Tx) -> None:
        held.set()
        assert go.wait(30)

    first = asyncio.create_task(team.store._database.write(slow))
    while not held.is_set():
        await asyncio.sleep(0.001)
    others = []
    for number in range(30):
        others.append(asyncio.create_task(team.store.tenants.add(f"t{number}")))
        await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, *others)
    assert team.store.commits == before + 2


async def test_a_write_that_fails_leaves_its_neighbours_alone(team: Team) -> None:
    async def write(n: int) -> str:
        if n % 3 == 0:
            await team.store.tenants.add(f"t{n}")
        elif n % 3 == 1:
            await team.store.tenants.add("default")
        else:
            await team.store.events.append(ThreadId("thr_none"), EventKind.BREAK_GLASS, {})
        return "done"

    before = team.store.commits
    results = await asyncio.gather(*(write(n) for n in range(30)), return_exceptions=True)
    assert team.store.commits - before <= 2, "they were in one batch"
    kinds = [result if isinstance(result, str) else type(result) for result in results]
    assert kinds == ["done", Conflict, NotFound] * 10
    assert len({id(result) for result in results if isinstance(result, Exception)}) == 20
    assert len(await team.store.tenants.all()) == 11
    assert (await team.store.health())["ok"]


async def test_a_write_may_fail_in_the_middle_and_leaves_nothing(team: Team) -> None:
    """The first of two runs is claimed already when the token of the second fails."""
    other = await team.store.threads.add(team.tenant.id, "other", [team.alice.id], False)
    await team.say()
    await team.store.turns.accept(other.id, team.alice.id, "x", "queue", None)
    given: list[RunId] = []

    def broken(run: RunId) -> str:
        given.append(run)
        if len(given) == 2:
            raise RuntimeError("no token")
        return ""

    before = team.store.commits
    results = await asyncio.gather(
        team.store.runs.claim("w1", 8, broken), team.store.tenants.add("neighbour"), return_exceptions=True
    )
    assert "no token" in str(results[0])
    assert not isinstance(results[1], BaseException)
    assert (len(given), team.store.commits) == (2, before + 1)
    assert [run.epoch for run in await team.claim()] == [1, 1]
    assert [event.cursor for event in await team.store.events.after(other.id, 0, 10)] == [1, 2, 3]


async def test_an_answer_is_on_disk(team: Team, tmp_path: Path) -> None:
    """Another connection sees the write as soon as its writer is answered."""
    for number in range(20):
        await team.say(str(number))
        assert outside(tmp_path, "SELECT count(*) FROM messages") == [(number + 1,)]


@pytest.mark.sqlite
async def test_every_connection_is_as_durable_as_promised(team: Team, tmp_path: Path) -> None:
    read = team.store._database._engines.read
    write = team.store._database._engines.write
    for pool, pragma, value in [
        (write, "synchronous", 2),
        (write, "journal_mode", "wal"),
        (write, "foreign_keys", 1),
        (read, "query_only", 1),
        (read, "journal_mode", "wal"),
    ]:
        assert await pool.run(partial(_pragma, pragma)) == value
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(files) >= 2, "the database and its log"
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600, path


def _pragma(name: str, connection: Connection) -> object:
    return connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()


async def test_cancelled_callers(team: Team) -> None:
    """Whatever was cancelled is written as a whole or not at all, and the store goes on."""
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.004):
        tasks = [asyncio.create_task(team.say(f"{delay}")) for _ in range(10)]
        tasks += [asyncio.create_task(team.store.runs.all(team.tenant.id, 5)) for _ in range(10)]  # type: ignore[arg-type]
        await asyncio.sleep(delay)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await team.say("last")
    events = await team.store.events.after(team.thread.id, 0, 1000)
    assert [event.cursor for event in events] == list(range(1, len(events) + 1))
    messages = [event for event in events if event.kind is EventKind.MESSAGE]
    assert len(messages) * 2 == len(events)
    assert len(await team.store.runs.all(team.tenant.id, 1000)) == len(messages)


async def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    store = await open_store(address(tmp_path), HandClock(), CountingIds())
    writes = [asyncio.create_task(store.tenants.add(f"t{n}")) for n in range(100)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    store = await open_store(address(tmp_path), HandClock(), CountingIds())
    assert len(await store.tenants.all()) == 100
    await store.close()


@pytest.mark.sqlite
async def test_a_database_that_another_process_keeps_locked(tmp_path: Path) -> None:
    """F21: a bounded wait, then an error that says what to do; reads go on; nothing is lost or written twice."""
    store = await open_store(address(tmp_path), HandClock(), CountingIds(), busy_seconds=0.3)
    outside = sqlite3.connect(tmp_path / "ringfence.db", isolation_level=None)
    outside.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(60):
        results = await asyncio.gather(*(store.tenants.add(f"t{n}") for n in range(5)), return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 5
    assert isinstance(results[0], Unavailable)
    assert "locked" in results[0].message
    assert "lsof" in results[0].remedy
    assert await store.tenants.all() == []
    health = await store.health()
    assert not health["ok"]
    assert "locked" in health["problem"]
    outside.execute("ROLLBACK")
    outside.close()
    await store.tenants.add("t0")
    assert (await store.health())["ok"]
    await store.close()


@pytest.mark.sqlite
async def test_a_lock_that_ends_in_time_is_waited_for(tmp_path: Path) -> None:
    store = await open_store(address(tmp_path), HandClock(), CountingIds())
    outside = sqlite3.connect(tmp_path / "ringfence.db", isolation_level=None, check_same_thread=False)
    outside.execute("BEGIN IMMEDIATE")
    adding = asyncio.create_task(store.tenants.add("t0"))
    for _ in range(30):  # the loop is not blocked: else it never came to let go, and the wait would end by itself
        await asyncio.sleep(0.01)
    assert not adding.done()
    outside.execute("COMMIT")
    await adding
    assert [tenant.name for tenant in await store.tenants.all()] == ["t0"]
    outside.close()
    await store.close()


@pytest.mark.sqlite
async def test_who_waited_behind_a_lock_is_refused_with_those_before_him(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches: each would wait for the lock as long as the first. Reads and tokens wait for nobody."""
    async with a_team(tmp_path) as team:
        await team.store.tokens.add(team.alice.id, "h1", frozenset(), "", None)
    tries = 0

    class Counted(Attempt):
        def run(self, connection: Connection) -> None:
            nonlocal tries
            tries += 1
            super().run(connection)

    monkeypatch.setattr(writer, "Attempt", Counted)
    store = await open_store(address(tmp_path), HandClock(), CountingIds(1 << 41), busy_seconds=0.3)
    other = sqlite3.connect(tmp_path / "ringfence.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        writes = [asyncio.create_task(store.tenants.add(f"t{n}")) for n in range(250)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(result) for result in results} == {Unavailable}
        assert tries <= 2, "the first, and a batch of those who came with it"
        tries = 0
        assert (await store.tokens.find("h1"))[0].last_used_at is not None
        assert tries == 0
        other.execute("ROLLBACK")
        assert (await store.tenants.add("after")).name == "after"
    finally:
        other.close()
        await store.close()


async def test_an_error_of_a_whole_batch_is_each_callers_own(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised in two places, one error would grow two tracebacks; and none is its own cause."""

    def gone(self: Attempt, connection: Connection) -> None:
        raise Unavailable("the server is gone", remedy="wait", detail=1)

    monkeypatch.setattr(Attempt, "run", gone)
    add = team.store.tenants.add
    for names in (["alone"], ["one", "two"]):
        told = await asyncio.gather(*(add(name) for name in names), return_exceptions=True)
        assert len({id(error) for error in told}) == len(names)
        for error in told:
            assert isinstance(error, Unavailable)
            assert (error.message, error.remedy, error.details) == ("the server is gone", "wait", {"detail": 1})
            assert error.__cause__ is not error
