"""Runs and steps: claims, leases, fencing, the journal. Invariants I3 and I5 in single steps."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.errors import Conflict, Diverged, Invalid, NotFound, StaleEpoch, StepGap, TooLarge
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.runs import LEASE_SECONDS, Effect, Run, RunState, Step, StepState
from ringfence.host.kernel.threads import Event, EventKind, TurnState
from ringfence.host.store.runs import _CLAIMABLE
from ringfence.host.store.schema import RUNNING
from tests.support.store import Team, a_team, address, opened

ARGUMENTS = {"command": "ls"}
DIGEST = digest("shell", ARGUMENTS, Effect.LOCAL)


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def begin(team: Team, run: Run, n: int, epoch: int | None = None) -> tuple[Step, bool]:
    at = run.epoch if epoch is None else epoch
    return await team.store.steps.begin(run.id, at, n, "shell", ARGUMENTS, DIGEST, Effect.LOCAL)


async def newest(team: Team) -> Event:
    return (await team.store.events.after(team.thread.id, 0, 1000))[-1]


# --- claim -----------------------------------------------------------------------------------------------------------


async def test_claim(team: Team) -> None:
    first, second = await team.say(), await team.say(user=team.bob)
    [run] = await team.claim()
    assert (run.id, run.state, run.epoch, run.attempts) == (first.run.id, RunState.RUNNING, 1, 1)
    assert (run.worker, run.token_hash) == ("w1", f"hash of {run.id}")
    assert run.lease_until == team.clock.now() + timedelta(seconds=LEASE_SECONDS)
    assert run.started_at == team.clock.now()
    assert (await team.store.turns.get(run.turn)).state is TurnState.RUNNING
    event = await newest(team)
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
    outside = sqlite3.connect(tmp_path / "ringfence.db")
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        outside.execute(
            "UPDATE runs SET state = 'running', worker = 'w', lease_until = '2026-01-01 00:00:00.000000' WHERE id = ?",
            [second.run.id],
        )
    outside.rollback()
    outside.close()
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


async def test_a_disabled_user_waits_and_holds_nobody_back(team: Team, tmp_path: Path) -> None:
    await team.say(user=team.alice)
    mine = await team.say(user=team.bob)
    outside = sqlite3.connect(tmp_path / "ringfence.db")
    outside.execute("UPDATE users SET disabled = 1 WHERE id = ?", [team.alice.id])
    outside.commit()
    outside.close()
    assert [run.id for run in await team.claim()] == [mine.run.id]


async def test_finished_runs_cost_a_claim_nothing(team: Team, tmp_path: Path) -> None:
    """I10: the database's own plan names the indexes over live runs, and never walks the table of all runs."""
    engine = sa.create_engine(address(tmp_path))
    due = _CLAIMABLE.params(now=team.clock.now(), never=team.clock.now(), count=8)
    question = due.compile(engine, compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        steps = [row.detail for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {question}"))]
        beat = f"EXPLAIN QUERY PLAN UPDATE runs SET lease_until = lease_until WHERE {RUNNING} AND worker = 'w'"
        steps += [row.detail for row in connection.execute(sa.text(beat))]
    engine.dispose()
    assert {step for step in steps if "runs" in step or "other" in step} == {
        "SCAN runs USING INDEX ix_runs_live",
        "SEARCH other USING INDEX ix_runs_live (lane=?)",
        "SCAN runs USING INDEX uq_runs_lane",
    }


# --- leases ----------------------------------------------------------------------------------------------------------


async def test_heartbeat_renews_what_the_worker_holds(team: Team) -> None:
    run = await team.running()
    team.clock.pass_seconds(20)
    assert await team.store.runs.heartbeat("w1") == [run.id]
    assert await team.store.runs.heartbeat("w2") == []
    team.clock.pass_seconds(20)
    assert await team.store.runs.expired("w1") == []
    team.clock.pass_seconds(10)
    assert [gone.id for gone in await team.store.runs.expired("w1")] == [run.id]


async def test_a_run_of_another_worker_is_expired_at_once(team: Team) -> None:
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
    assert await team.store.runs.heartbeat("w1") == []


Write = Callable[[Team, Run, int], Awaitable[object]]
WRITES: list[Write] = [
    lambda team, run, epoch: team.store.runs.adopt(run.id, "w9", epoch),
    lambda team, run, epoch: team.store.runs.assign(run.id, epoch, BoxId("a" * 16), "digest"),
    lambda team, run, epoch: team.store.runs.requeue(run.id, epoch, "why"),
    lambda team, run, epoch: team.store.runs.end(run.id, epoch, RunState.COMPLETED, "", "late"),
    lambda team, run, epoch: begin(team, run, 1, epoch),
    lambda team, run, epoch: begin(team, run, 2, epoch),
    lambda team, run, epoch: team.store.steps.end(run.id, epoch, 1, {"ok": True}, False),
    lambda team, run, epoch: team.store.steps.save_checkpoint(run.id, epoch, "before_model", 0, "state"),
]


@pytest.mark.parametrize("write", WRITES)
async def test_every_write_is_fenced(team: Team, write: Write) -> None:
    """I5, F30: by an old epoch, by one to come, and by the right one of a run that is not running."""
    run = await team.running()
    await begin(team, run, 1)
    await team.store.runs.adopt(run.id, "w2", 1)
    before = await team.get(run.id), await team.store.steps.all(run.id), await newest(team)
    for epoch in (0, 1, 3):
        with pytest.raises(StaleEpoch):
            await write(team, run, epoch)
    assert (await team.get(run.id), await team.store.steps.all(run.id), await newest(team)) == before
    await team.store.runs.requeue(run.id, 2, "lost")
    with pytest.raises(StaleEpoch):
        await write(team, run, 2)


@pytest.mark.parametrize("write", [write for number, write in enumerate(WRITES) if number != 1])
async def test_the_current_epoch_may_write(team: Team, write: Write) -> None:
    """The positive control of the fence."""
    run = await team.running()
    await begin(team, run, 1)
    await write(team, run, 1)


async def test_assign(team: Team) -> None:
    run = await team.running()
    home = await team.store.boxes.home_of(team.alice, "bubblewrap", Limits())
    await team.store.runs.assign(run.id, 1, home.id, "sha")
    assigned = await team.get(run.id)
    assert (assigned.box, assigned.guest_digest) == (home.id, "sha")


# --- the ends --------------------------------------------------------------------------------------------------------


async def test_requeue_waits_out_its_back_off_and_is_not_overtaken(team: Team) -> None:
    run = await team.running()
    await team.say(user=team.bob)
    back = await team.store.runs.requeue(run.id, 1, "lease_expired")
    assert (back.state, back.reason, back.epoch, back.attempts) == (RunState.QUEUED, "lease_expired", 1, 1)
    assert (back.worker, back.lease_until, back.token_hash) == (None, None, "")
    assert (await team.store.turns.get(run.turn)).state is TurnState.QUEUED
    for attempt, wait in ((2, 1.0), (3, 2.0)):  # 2 ** attempts * 0.5 s
        team.clock.pass_seconds(wait - 0.001)
        assert await team.claim() == [], "too early; and the later message does not overtake"
        team.clock.pass_seconds(0.001)
        [again] = await team.claim()
        assert (again.id, again.attempts, again.epoch) == (run.id, attempt, attempt)
        event = await newest(team)
        assert (event.kind, event.body) == (EventKind.RUN_REDRIVEN, {"attempt": attempt})
        await team.store.runs.requeue(run.id, again.epoch, "again")


async def test_a_back_off_does_not_outlive_a_clock_that_was_turned_back(team: Team, tmp_path: Path) -> None:
    """F26: the wall is a day earlier when the server comes back."""
    run = await team.running()
    await team.store.runs.requeue(run.id, 1, "lost")
    team.clock.jump(timedelta(days=-1))
    async with opened(tmp_path, team.clock, first=1 << 40) as later:
        assert [again.id for again in await later.runs.claim("w2", 8, lambda run: "")] == [run.id]


async def test_end_with_a_reply(team: Team) -> None:
    run = await team.running()
    team.clock.pass_seconds(1)
    ended = await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", "all \udcff done\0")
    assert (ended.state, ended.ended_at, ended.worker, ended.lease_until) == (
        RunState.COMPLETED,
        team.clock.now(),
        None,
        None,
    )
    turn = await team.store.turns.get(run.turn)
    assert (turn.state, turn.reply, turn.ended_at) == (TurnState.COMPLETED, "all \ufffd done\ufffd", team.clock.now())
    reply, end = (await team.store.events.after(team.thread.id, 0, 100))[-2:]
    [_, message] = await team.store.threads.messages(team.thread.id, None, 10)
    assert (message.author, message.author_name, message.text) == (None, "agent", turn.reply)
    assert (reply.kind, reply.cursor, reply.body["text"]) == (EventKind.REPLY, message.cursor, turn.reply)
    assert (end.kind, end.body) == (EventKind.RUN_ENDED, {"state": "completed", "reason": ""})


async def test_finishing_twice_is_one_finish(team: Team) -> None:
    runs = team.store.runs
    run = await team.running()
    first = await runs.end(run.id, 1, RunState.COMPLETED, "", "done")
    count = (await newest(team)).cursor
    assert await runs.end(run.id, 1, RunState.COMPLETED, "", "done") == first
    for state, reply in ((RunState.COMPLETED, "other"), (RunState.FAILED, "done"), (RunState.COMPLETED, None)):
        with pytest.raises(Conflict):
            await runs.end(run.id, 1, state, "", reply)
    with pytest.raises(StaleEpoch):
        await runs.end(run.id, 0, RunState.COMPLETED, "", "done")
    assert (await newest(team)).cursor == count
    assert await team.get(run.id) == first


async def test_end_refuses_what_is_no_end(team: Team) -> None:
    run = await team.running()
    for state in (RunState.QUEUED, RunState.RUNNING, RunState.PARKED):
        with pytest.raises(Invalid):
            await team.store.runs.end(run.id, 1, state, "", None)
    with pytest.raises(TooLarge):
        await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", "x" * (256 * 1024 + 1))
    with pytest.raises(NotFound):
        await team.store.runs.end(RunId("run_none"), 1, RunState.FAILED, "", None)
    failed = await team.store.runs.end(run.id, 1, RunState.FAILED, "diverged", None)
    assert (failed.state, failed.reason) == (RunState.FAILED, "diverged")
    assert (await team.store.turns.get(run.turn)).reason == "diverged"
    assert len(await team.store.threads.messages(team.thread.id, None, 10)) == 1


async def test_cancel(team: Team) -> None:
    runs = team.store.runs
    live = await team.running()
    waiting = (await team.say()).run
    cancelled = await runs.cancel(waiting.id)
    assert (cancelled.state, cancelled.cancel_requested) == (RunState.CANCELLED, True)
    assert (await team.store.turns.get(waiting.turn)).state is TurnState.CANCELLED
    assert (await newest(team)).body == {"state": "cancelled", "reason": "cancelled"}
    asked = await runs.cancel(live.id)
    assert (asked.state, asked.cancel_requested, asked.epoch) == (RunState.RUNNING, True, 1)
    commit = (await newest(team)).cursor
    assert await runs.cancel(live.id) == asked
    assert await runs.cancel(waiting.id) == cancelled
    assert (await newest(team)).cursor == commit
    ended = await runs.end(live.id, 1, RunState.CANCELLED, "cancelled", None)
    assert await runs.cancel(live.id) == ended
    with pytest.raises(NotFound):
        await runs.cancel(RunId("run_none"))


async def test_all_lists_the_newest_first(team: Team) -> None:
    made = []
    for _ in range(4):
        team.clock.pass_seconds(1)
        made.append((await team.say()).run.id)
    assert [run.id for run in await team.store.runs.all(team.tenant.id, 3)] == made[:0:-1]
    other = await team.store.tenants.add("other")
    assert await team.store.runs.all(other.id, 3) == []


# --- steps and checkpoints -------------------------------------------------------------------------------------------


async def test_the_journal_of_a_step(team: Team) -> None:
    steps = team.store.steps
    run = await team.running()
    begun, new = await begin(team, run, 1)
    assert (begun.n, begun.state, begun.result, begun.arguments, new) == (1, StepState.BEGUN, None, ARGUMENTS, True)
    event = await newest(team)
    assert (event.kind, event.actor, event.run) == (EventKind.STEP_BEGUN, team.alice.id, run.id)
    assert event.body == {"n": 1, "tool": "shell", "effect": "local"}, "no arguments in what members see"
    assert await begin(team, run, 1) == (begun, False)
    ended = await steps.end(run.id, 1, 1, {"ok": False, "stdout": "\udcff\0"}, False)
    assert (ended.state, ended.result) == (StepState.ENDED, {"ok": False, "stdout": "\udcff\0"})
    event = await newest(team)
    assert (event.kind, event.body) == (
        EventKind.STEP_ENDED,
        {"n": 1, "tool": "shell", "effect": "local", "ok": False},
    )
    assert await steps.end(run.id, 1, 1, {"ok": True}, True) == ended, "the first result stays"
    assert await begin(team, run, 1) == (ended, False)
    assert (await newest(team)).cursor == event.cursor
    await begin(team, run, 2)
    cut = await steps.end(run.id, 1, 2, {"reason": "box_lost"}, True)
    assert cut.state is StepState.INTERRUPTED
    assert (await newest(team)).body["ok"] is True
    await begin(team, run, 3)
    odd = await steps.end(run.id, 1, 3, {"ok": {"a loop": "may say anything"}}, False)
    assert (await newest(team)).body["ok"] is False, "an event has a bool there, whatever a loop says"
    assert await steps.all(run.id) == [ended, cut, odd]


async def test_the_journal_survives_a_redrive(team: Team) -> None:
    run = await team.running()
    await begin(team, run, 1)
    await team.store.runs.requeue(run.id, 1, "lost")
    team.clock.pass_seconds(1)
    [again] = await team.claim()
    assert (await begin(team, again, 1))[1] is False
    assert (await begin(team, again, 2))[1] is True


async def test_steps_that_are_refused(team: Team) -> None:
    steps = team.store.steps
    run = await team.running()
    for n in (0, 2, -1, 1 << 70):
        with pytest.raises((StepGap, Invalid)):
            await begin(team, run, n)
    await begin(team, run, 1)
    other = digest("shell", {"command": "rm"}, Effect.LOCAL)
    with pytest.raises(Diverged) as diverged:
        await steps.begin(run.id, 1, 1, "shell", {"command": "rm"}, other, Effect.LOCAL)
    assert diverged.value.details["journal"]["digest"] == DIGEST
    with pytest.raises(NotFound):
        await steps.end(run.id, 1, 2, {}, False)
    await steps.end(run.id, 1, 1, {"out": "x" * (256 * 1024 - 10)}, False)
    await begin(team, run, 2)
    for big in ({"out": "x" * (256 * 1024)}, {"out": "é" * (128 * 1024)}):
        with pytest.raises(TooLarge):
            await steps.end(run.id, 1, 2, big, False)
        with pytest.raises(TooLarge):
            await steps.begin(run.id, 1, 3, "shell", big, "d", Effect.LOCAL)
    with pytest.raises(Invalid):
        await steps.end(run.id, 1, 2, {"out": float("inf")}, False)
    with pytest.raises(Invalid):
        await steps.begin(run.id, 1, 3, "sh\0ell", {}, "d", Effect.LOCAL)
    assert (await steps.all(run.id))[1].state is StepState.BEGUN
    with pytest.raises(NotFound):
        await steps.all(RunId("run_none"))


async def test_checkpoints_refer_to_what_exists(team: Team) -> None:
    """I6."""
    steps = team.store.steps
    run = await team.running()
    assert await steps.checkpoint(run.id) is None
    first = await steps.save_checkpoint(run.id, 1, "before_model", 0, "s0")
    assert first.cursor == (await newest(team)).cursor
    assert await steps.checkpoint(run.id) == first
    await begin(team, run, 1)
    for step in (1, 2, -1):
        with pytest.raises(Conflict):
            await steps.save_checkpoint(run.id, 1, "before_model", step, "s")
    await steps.end(run.id, 1, 1, {}, False)
    second = await steps.save_checkpoint(run.id, 1, "before_model", 1, "x" * (512 * 1024))
    assert await steps.checkpoint(run.id) == second
    with pytest.raises(TooLarge):
        await steps.save_checkpoint(run.id, 1, "before_model", 1, "x" * (512 * 1024 + 1))
    with pytest.raises(NotFound):
        await steps.checkpoint(RunId("run_none"))
