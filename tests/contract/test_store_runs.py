"""Claims, leases, adoption and the fence. Invariants I3 and I5 in single steps."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ringfence.bench.throwaway import CommandFailed
from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.errors import NotFound, StaleEpoch
from ringfence.host.kernel.fairness import Waiting
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import LEASE_SECONDS, RunState
from ringfence.host.kernel.threads import EventKind, TurnState
from ringfence.host.store.lanes import _WAITING
from ringfence.host.store.runs import _CHOSEN, _FEW, _HELD, SqlRuns
from tests.support.databases import outside
from tests.support.store import Team, a_team, address, opened


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


# --- claim -----------------------------------------------------------------------------------------------------------


async def test_claim(team: Team) -> None:
    first, second = await team.say(), await team.say(user=team.bob)
    [run] = await team.claim()
    assert (run.id, run.state, run.epoch, run.attempts) == (first.run.id, RunState.RUNNING, 1, 1)
    assert (run.worker, run.token_hash) == ("w1", f"hash of {run.id}")
    assert run.lease_until == team.clock.now() + timedelta(seconds=LEASE_SECONDS)
    assert run.started_at == team.clock.now()
    assert (await team.store.turns.get(run.turn)).state is TurnState.RUNNING
    event = await team.newest()
    assert (event.kind, event.run, event.actor) == (EventKind.RUN_STARTED, run.id, team.alice.id)
    assert await team.claim() == [], "the lane is taken"
    await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", "done")
    assert [run.id for run in await team.claim("w2")] == [second.run.id]


async def test_claim_takes_the_oldest_of_each_lane_up_to_the_limit(team: Team) -> None:
    threads = [await team.store.threads.add(team.tenant.id, f"t{n}", [team.alice.id], False) for n in range(5)]
    for thread in threads:
        team.clock.pass_seconds(1)
        for _ in range(2):
            await team.store.turns.accept(thread.id, team.alice.id, "x", "queue", None)
    assert await team.claim(limit=0) == []
    assert [run.thread for run in await team.claim(limit=3)] == [thread.id for thread in threads[:3]]
    assert [run.thread for run in await team.claim(limit=9)] == [thread.id for thread in threads[3:]]


async def test_the_database_itself_refuses_two_live_runs_of_a_lane(team: Team, tmp_path: Path) -> None:
    run = await team.running()
    second = await team.say()
    with pytest.raises((sqlite3.IntegrityError, CommandFailed), match=r"UNIQUE|uq_runs_lane"):
        outside(
            tmp_path,
            "UPDATE runs SET state = 'running', worker = 'w', lease_until = '2026-01-01 00:00:00.000000' WHERE id = ?",
            second.run.id,
        )
    assert (await team.get(run.id)).state is RunState.RUNNING


async def test_two_workers_never_claim_the_same(team: Team, tmp_path: Path) -> None:
    threads = [await team.store.threads.add(team.tenant.id, f"t{n}", [], False) for n in range(20)]
    for thread in threads:
        await team.store.turns.accept(thread.id, team.alice.id, "x", "queue", None)
    async with opened(tmp_path, team.clock, first=1 << 40) as other:
        claims = await asyncio.gather(
            *(store.runs.claim(f"w{n}", 3, lambda run: "") for n in range(10) for store in (team.store, other))
        )
    taken = [run.id for claim in claims for run in claim]
    assert len(taken) == len(set(taken)) == 20


@pytest.mark.postgresql
@pytest.mark.parametrize("taken", [True, False], ids=["taken", "control"])
async def test_what_another_kernel_takes_between_two_looks_is_not_claimed_twice(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """Its turn is found out without a lock: the look that locks the row asks once more whether it is queued."""
    said = await team.say()
    in_turn = SqlRuns._in_turn

    def slowly(runs: SqlRuns, *which: Any) -> list[Waiting]:
        waiting = in_turn(runs, *which)
        assert [one.run for one in waiting] == [said.run.id]
        if taken:
            outside(
                tmp_path,
                "UPDATE runs SET state = 'running', worker = 'w2', epoch = 1, lease_until = '2027-01-01' WHERE id = ?",
                said.run.id,
            )
        return waiting

    monkeypatch.setattr(SqlRuns, "_in_turn", slowly)
    claimed = await team.claim()
    assert [run.id for run in claimed] == ([] if taken else [said.run.id])
    row = await team.get(said.run.id)
    assert (row.worker, row.epoch, row.attempts) == (("w2", 1, 0) if taken else ("w1", 1, 1))


async def test_a_disabled_user_waits_and_holds_nobody_back(team: Team, tmp_path: Path) -> None:
    await team.say(user=team.alice)
    mine = await team.say(user=team.bob)
    outside(tmp_path, "UPDATE users SET disabled = true WHERE id = ?", team.alice.id)
    assert [run.id for run in await team.claim()] == [mine.run.id]


@pytest.mark.sqlite
async def test_finished_runs_cost_a_claim_nothing(team: Team, tmp_path: Path) -> None:
    """I10: the database's own plan names the indexes over live runs, and never walks the table of all runs."""
    engine = sa.create_engine(address(tmp_path))
    now = {"now": team.clock.now(), "never": team.clock.now()}
    few = _FEW.params(**now, deep=8).compile(engine, compile_kwargs={"literal_binds": True})
    chosen = _CHOSEN.params(**now, chosen=["a", "b"]).compile(
        engine, compile_kwargs={"literal_binds": True, "render_postcompile": True}
    )
    with engine.connect() as connection:
        steps = [row.detail for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {few}"))]
        steps += [row.detail for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {chosen}"))]
        beat = _HELD.params(by_worker="w").compile(engine, compile_kwargs={"literal_binds": True})
        steps += [row.detail for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {beat}"))]
        full = _WAITING.params(in_lane="l").compile(engine, compile_kwargs={"literal_binds": True})
        steps += [row.detail for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {full}"))]
    engine.dispose()
    assert {step for step in steps if "runs" in step or "other" in step} == {
        "SCAN runs USING INDEX ix_runs_live",
        "SEARCH other USING INDEX ix_runs_live (lane=?)",
        "SCAN runs USING INDEX uq_runs_lane",
        "SEARCH runs USING INDEX ix_runs_live (lane=?)",
        "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (id=?)",
    }


# --- leases ----------------------------------------------------------------------------------------------------------


async def test_heartbeat_renews_what_the_worker_holds(team: Team) -> None:
    run = await team.running()
    team.clock.pass_seconds(20)
    assert await team.store.runs.heartbeat("w1") == {run.id: 20.0}
    assert await team.store.runs.heartbeat("w2") == {}
    team.clock.pass_seconds(20)
    assert await team.store.runs.expired("w1") == []
    team.clock.pass_seconds(10)
    assert [gone.id for gone in await team.store.runs.expired("w1")] == [run.id]


async def test_what_a_run_has_worked_is_the_time_under_its_leases(team: Team) -> None:
    runs = team.store.runs
    run = await team.running()
    assert run.worked == 0
    for worked in (5.0, 10.0):
        team.clock.pass_seconds(5)
        assert await runs.heartbeat("w1") == {run.id: worked}
    assert await runs.heartbeat("w1") == {run.id: 10.0}, "no time has passed"
    team.clock.jump(timedelta(hours=3))
    assert await runs.heartbeat("w1") == {run.id: 10.0}, "the wall clock is not work"
    team.clock.pass_seconds(200)
    adopted = await runs.adopt(run.id, "w2", 1)
    assert adopted.worked == 10.0, "the time without a kernel is nobody's work"
    team.clock.pass_seconds(4)
    assert await runs.heartbeat("w2") == {run.id: 14.0}
    team.clock.pass_seconds(2)
    assert (await runs.requeue(run.id, 2, "lost")).worked == 16.0
    team.clock.pass_seconds(60)
    [again] = await team.claim("w2")
    assert again.worked == 16.0, "waiting is no work"
    team.clock.pass_seconds(3)
    assert (await runs.end(run.id, 3, RunState.COMPLETED, "", "done")).worked == 19.0
    assert (await team.get(run.id)).worked == 19.0


async def test_a_lease_that_ends_long_after_its_time_counts_once(team: Team) -> None:
    """The kernel was gone for an hour; the next one finds the run and ends its lease."""
    run = await team.running()
    team.clock.pass_seconds(3600)
    assert (await team.store.runs.requeue(run.id, 1, "lost")).worked == LEASE_SECONDS


async def test_a_lease_of_a_clock_that_was_turned_back_takes_nothing_away(team: Team, tmp_path: Path) -> None:
    run = await team.running()
    team.clock.pass_seconds(7)
    await team.store.runs.heartbeat("w1")
    team.clock.jump(timedelta(days=-1))
    async with opened(tmp_path, team.clock, first=1 << 40) as later:
        assert await later.runs.heartbeat("w1") == {run.id: 7.0}
        assert (await later.runs.end(run.id, 1, RunState.FAILED, "deadline", None)).worked == 7.0


async def test_a_run_of_another_worker_is_expired_at_once(team: Team) -> None:
    """Of an actor whose home is here: an installation has one kernel process at a time."""
    await team.store.boxes.home_of(team.alice, "fake", Limits())
    run = await team.running()
    assert await team.store.runs.expired("w1") == []
    assert [gone.id for gone in await team.store.runs.expired("w2")] == [run.id]


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1), timedelta(days=-20_000)])
async def test_leases_do_not_follow_the_wall_clock(team: Team, jump: timedelta) -> None:
    """F26."""
    run = await team.running()
    team.clock.jump(jump)
    assert await team.store.runs.expired("w1") == []
    team.clock.pass_seconds(LEASE_SECONDS)
    assert [gone.id for gone in await team.store.runs.expired("w1")] == [run.id]


async def test_adoption_raises_the_epoch_and_fences_the_old_holder(team: Team) -> None:
    run = await team.running()
    adopted = await team.store.runs.adopt(run.id, "w2", 1)
    assert (adopted.epoch, adopted.attempts, adopted.worker) == (2, 1, "w2")
    assert adopted.token_hash == run.token_hash, "its loop goes on with the token that it has"
    with pytest.raises(StaleEpoch):
        await team.store.runs.adopt(run.id, "w3", 1)
    with pytest.raises(NotFound):
        await team.store.runs.adopt(RunId("run_none"), "w2", 1)
    assert await team.store.runs.heartbeat("w1") == {}


async def test_assign(team: Team) -> None:
    run = await team.running()
    home = await team.store.boxes.home_of(team.alice, "bubblewrap", Limits())
    await team.store.runs.assign(run.id, 1, home.id, "sha")
    assigned = await team.get(run.id)
    assert (assigned.box, assigned.guest_digest) == (home.id, "sha")


async def test_all_lists_the_newest_first(team: Team) -> None:
    made = []
    for _ in range(4):
        team.clock.pass_seconds(1)
        made.append((await team.say()).run.id)
    assert [run.id for run in await team.store.runs.all(team.tenant.id, 3)] == made[:0:-1]
    other = await team.store.tenants.add("other")
    assert await team.store.runs.all(other.id, 3) == []
