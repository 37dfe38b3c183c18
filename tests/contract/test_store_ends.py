"""How runs end, wait again, are cancelled and are tried again by hand; what they have worked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, StaleEpoch, TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import REASONS, RunState, StepState
from ringfence.host.kernel.threads import EventKind, TurnState
from ringfence.host.store.steps import _CUT
from tests.support.store import Team, a_team, address, opened


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


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
        event = await team.newest()
        assert (event.kind, event.body) == (EventKind.RUN_REDRIVEN, {"attempt": attempt})
        await team.store.runs.requeue(run.id, again.epoch, "again")


@pytest.mark.sqlite
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
    assert (end.kind, end.body) == (EventKind.RUN_ENDED, {"state": "completed", "reason": "", "message": ""})


async def test_finishing_twice_is_one_finish(team: Team) -> None:
    runs = team.store.runs
    run = await team.running()
    first = await runs.end(run.id, 1, RunState.COMPLETED, "", "done")
    count = (await team.newest()).cursor
    assert await runs.end(run.id, 1, RunState.COMPLETED, "", "done") == first
    for state, reply in ((RunState.COMPLETED, "other"), (RunState.FAILED, "done"), (RunState.COMPLETED, None)):
        with pytest.raises(Conflict):
            await runs.end(run.id, 1, state, "", reply)
    with pytest.raises(StaleEpoch):
        await runs.end(run.id, 0, RunState.COMPLETED, "", "done")
    assert (await team.newest()).cursor == count
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
    assert (await team.newest()).body == {"state": "cancelled", "reason": "cancelled", "message": "it was cancelled"}
    asked = await runs.cancel(live.id)
    assert (asked.state, asked.cancel_requested, asked.epoch) == (RunState.RUNNING, True, 1)
    commit = (await team.newest()).cursor
    assert await runs.cancel(live.id) == asked
    assert await runs.cancel(waiting.id) == cancelled
    assert (await team.newest()).cursor == commit
    ended = await runs.end(live.id, 1, RunState.CANCELLED, "cancelled", None)
    assert await runs.cancel(live.id) == ended
    with pytest.raises(NotFound):
        await runs.cancel(RunId("run_none"))


@pytest.mark.parametrize("reason", [*sorted(REASONS), "a code of a loop's own"])
async def test_an_end_says_in_words_why(team: Team, reason: str) -> None:
    run = await team.running()
    await team.store.runs.end(run.id, 1, RunState.FAILED, reason, None)
    assert (await team.newest()).body == {"state": "failed", "reason": reason, "message": REASONS.get(reason, "")}


# --- again, by hand --------------------------------------------------------------------------------------------------


async def test_a_failed_run_is_reopened_with_its_journal(team: Team) -> None:
    runs, steps = team.store.runs, team.store.steps
    run = await team.running()
    await team.begin(run, 1)
    await steps.end(run.id, 1, 1, {"ok": True}, False)
    await steps.save_checkpoint(run.id, 1, "before_model", 1, "state")
    await runs.cancel(run.id)
    later = (await team.say(user=team.bob)).run
    team.clock.pass_seconds(9)
    failed = await runs.end(run.id, 1, RunState.FAILED, "deadline", "as far as I came")
    assert failed.worked == 9.0
    [other] = await team.claim()
    assert other.id == later.id
    last = (await team.say(user=team.bob)).run

    open_again = await runs.reopen(run.id)
    assert (open_again.state, open_again.reason, open_again.attempts, open_again.worked) == (
        RunState.QUEUED,
        "",
        0,
        0.0,
    )
    assert (open_again.cancel_requested, open_again.ended_at, open_again.epoch) == (False, None, 1)
    turn = await team.store.turns.get(run.turn)
    assert (turn.state, turn.reason, turn.reply, turn.ended_at) == (TurnState.QUEUED, "", None, None)
    event = await team.newest()
    assert (event.kind, event.run, event.body) == (EventKind.RUN_QUEUED, run.id, {"reason": "redriven by hand"})
    assert await team.claim() == [], "the lane is taken"
    await runs.end(other.id, 1, RunState.COMPLETED, "", "done")
    [again] = await team.claim()
    assert (again.id, again.epoch, again.attempts) == (run.id, 2, 1), (
        "its old place in the lane, before what came later"
    )
    assert ((await team.newest()).kind, (await team.newest()).body) == (EventKind.RUN_REDRIVEN, {"attempt": 1})
    assert (await team.begin(again, 1))[1] is False
    kept = await steps.checkpoint(run.id)
    assert kept is not None
    assert kept.state == "state"
    await runs.end(run.id, 2, RunState.COMPLETED, "", "done at last")
    assert (await team.store.turns.get(run.turn)).reply == "done at last"
    assert [run.id for run in await team.claim()] == [last.id]


async def test_what_is_not_reopened(team: Team) -> None:
    runs = team.store.runs
    with pytest.raises(NotFound):
        await runs.reopen(RunId("run_none"))
    run = await team.running()
    waiting = (await team.say()).run
    for live in (run, waiting):
        with pytest.raises(Conflict, match="only a failed one"):
            await runs.reopen(live.id)
    await runs.cancel(waiting.id)
    await runs.end(run.id, 1, RunState.FAILED, "diverged", None)
    for final in (waiting, run):
        before = (await team.newest()).cursor
        with pytest.raises(Conflict):
            await runs.reopen(final.id)
        assert (await team.newest()).cursor == before
    done = await team.running()
    await runs.end(done.id, 1, RunState.COMPLETED, "", "done")
    with pytest.raises(Conflict):
        await runs.reopen(done.id)


async def test_a_run_of_a_removed_user_stays_ended(team: Team) -> None:
    run = await team.running()
    await team.store.runs.end(run.id, 1, RunState.FAILED, "deadline", None)
    await team.store.users.remove(team.alice.id)
    with pytest.raises(Conflict, match="the user was removed"):
        await team.store.runs.reopen(run.id)


async def test_reopening_at_once_is_one_reopening(team: Team) -> None:
    run = await team.running()
    await team.store.runs.end(run.id, 1, RunState.FAILED, "deadline", None)
    results = await asyncio.gather(*(team.store.runs.reopen(run.id) for _ in range(10)), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 9 + ["Run"]
    kinds = [event.kind for event in await team.events()]
    assert kinds.count(EventKind.RUN_QUEUED) == 2


# --- what was under way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reason", "reply", "words"),
    [
        (RunState.CANCELLED, "cancelled", None, "it was cancelled"),
        (RunState.FAILED, "deadline", None, REASONS["deadline"]),
        (RunState.FAILED, "a_code", None, "a_code"),
        (RunState.COMPLETED, "", "done", "it is completed"),
    ],
)
async def test_a_step_under_way_is_interrupted_with_its_run(
    team: Team, state: RunState, reason: str, reply: str | None, words: str
) -> None:
    """In the same transaction, and told before the end; what had ended stays as it was."""
    run = await team.running()
    await team.begin(run, 1)
    first = await team.store.steps.end(run.id, 1, 1, {"ok": True}, False)
    await team.begin(run, 2)
    before = (await team.newest()).cursor
    await team.store.runs.end(run.id, 1, state, reason, reply)
    kept, cut = await team.store.steps.all(run.id)
    assert kept == first
    assert (cut.state, cut.ended_at) == (StepState.INTERRUPTED, team.clock.now())
    assert cut.result == {"ok": False, "reason": "interrupted", "message": f"the run ended: {words}"}
    told = [(event.kind, event.body.get("n"), event.run) for event in await team.events() if event.cursor > before]
    said = [(EventKind.REPLY, None, run.id)] if reply else []
    assert told == [(EventKind.STEP_ENDED, 2, run.id), *said, (EventKind.RUN_ENDED, None, run.id)]


async def test_a_waiting_run_that_is_cancelled_leaves_no_step_open(team: Team) -> None:
    run = await team.running()
    await team.begin(run, 1)
    await team.store.runs.requeue(run.id, 1, "lost")
    [step] = await team.store.steps.all(run.id)
    assert step.state is StepState.BEGUN, "another attempt takes it up"
    await team.store.runs.cancel(run.id)
    [step] = await team.store.steps.all(run.id)
    assert step.state is StepState.INTERRUPTED


async def test_a_redrive_by_hand_finds_it_interrupted(team: Team) -> None:
    run = await team.running()
    await team.begin(run, 1)
    await team.store.runs.end(run.id, 1, RunState.FAILED, "deadline", None)
    await team.store.runs.reopen(run.id)
    [again] = await team.claim()
    step, new = await team.begin(again, 1)
    assert (step.state, new) == (StepState.INTERRUPTED, False)


@pytest.mark.sqlite
async def test_the_end_of_a_run_reads_no_other_step(team: Team, tmp_path: Path) -> None:
    """Not even to see whether it has ended: 256 KiB of arguments lie before that."""
    engine = sa.create_engine(address(tmp_path))
    text = str(_CUT.values(state="interrupted").compile(engine))
    with engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", ("interrupted", "run")).all()
    engine.dispose()
    assert plan[0].detail == "SEARCH steps USING INDEX ix_steps_begun (run=?)"


async def test_a_run_at_work_says_that_its_user_was_removed(team: Team) -> None:
    run = await team.running()
    await team.store.users.remove(team.alice.id)
    ended = await team.store.runs.end(run.id, 1, RunState.CANCELLED, "cancelled", None)
    assert (ended.state, ended.reason) == (RunState.CANCELLED, "user_removed")
    assert (await team.store.turns.get(run.turn)).reason == "user_removed"
    assert (await team.newest()).body["message"] == REASONS["user_removed"]
    assert await team.store.runs.end(run.id, 1, RunState.CANCELLED, "cancelled", None) == ended
