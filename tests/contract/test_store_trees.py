"""Another tree in a box: each run that has begun goes by the redrive table before it goes on, whatever it was doing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import BoxKind, Limits
from ringfence.host.kernel.errors import StaleEpoch
from ringfence.host.kernel.gates import GateState
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.kernels import RESTORED
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.kernel.threads import TurnState
from tests.support.store import Team, a_team
from tests.support.store_calls import asked, began
from tests.support.store_work import Db


async def home(team: Team) -> BoxId:
    return (await team.store.boxes.add(team.alice, BoxKind.HOME, "fake", Limits())).id


async def left(team: Team) -> Run:
    """The one run that is claimed and not started."""
    assert await team.claim() == []
    [run] = await team.store.runs.expired("w1")
    assert (run.state, run.worker, run.other_tree) == (RunState.RUNNING, RESTORED, True)
    return run


async def test_a_run_at_work_is_taken_at_once(tmp_path: Path) -> None:
    async with a_team(tmp_path) as team:
        run = await team.running()
        assert await team.store.boxes.new_tree(await home(team)) == 1
        with pytest.raises(StaleEpoch):
            await team.store.runs.requeue(run.id, run.epoch, "late")
        lost = await left(team)
        assert (lost.id, lost.attempts) == (run.id, 1)


async def test_a_question_is_closed_and_its_run_decided(tmp_path: Path) -> None:
    async with a_team(tmp_path) as team:
        run = await asked(team, team.alice, "pay")
        assert await team.store.boxes.new_tree(await home(team)) == 1
        [gate] = await team.store.gates.of_run(run.id)
        assert gate.state is GateState.CANCELLED
        lost = await left(team)
        turn = await team.store.turns.get(run.turn)
        assert (lost.id, turn.state, turn.reason) == (run.id, TurnState.RUNNING, "")
    assert await Db(tmp_path, team.clock).findings() == set()


async def test_each_of_a_lane_in_its_turn(tmp_path: Path) -> None:
    """The second was parked when the first was tried again by hand: it does not go on unseen when its turn comes."""
    async with a_team(tmp_path) as team:
        first = await team.running()
        await team.store.runs.end(first.id, first.epoch, RunState.FAILED, "loop_failed", None)
        second = await began(team, (await team.say("pay")).run.id)
        await team.store.runs.reopen(first.id)
        assert [run.id for run in await team.claim()] == [first.id]
        assert await team.store.boxes.new_tree(await home(team)) == 2
        lost = await left(team)
        assert lost.id == first.id
        await team.store.runs.end(lost.id, lost.epoch, RunState.FAILED, "incompatible", None)
        assert (await left(team)).id == second.id


async def test_one_that_is_held_or_waits_keeps_the_mark(tmp_path: Path) -> None:
    """A user who is disabled meanwhile: the table holds the run, and sees it again when it may go on."""
    async with a_team(tmp_path) as team:
        run = await team.running()
        await team.store.boxes.new_tree(await home(team))
        lost = await left(team)
        await team.store.runs.hold(lost.id, lost.epoch, "user_disabled")
        again = await left(team)
        assert (again.id, again.attempts) == (run.id, 0)
        await team.store.runs.requeue(again.id, again.epoch, "executor_lost")
        team.clock.pass_seconds(60)
        [started] = await team.claim()
        assert (started.id, started.other_tree) == (run.id, False), (
            "the table let it go on: what it does now is its own"
        )


async def test_a_failed_one_that_is_tried_again_by_hand(tmp_path: Path) -> None:
    async with a_team(tmp_path) as team:
        run = await team.running()
        await team.store.runs.end(run.id, run.epoch, RunState.FAILED, "loop_failed", None)
        assert await team.store.boxes.new_tree(await home(team)) == 0
        await team.store.runs.reopen(run.id)
        assert (await left(team)).id == run.id


async def test_runs_of_others_and_runs_that_have_not_begun(tmp_path: Path) -> None:
    async with a_team(tmp_path, parallel=True) as team:
        box = await home(team)
        bobs = await team.say(user=team.bob)
        assert len(await team.claim()) == 1
        hers = await team.say()
        assert await team.store.boxes.new_tree(box) == 0
        [started] = await team.claim()
        assert (started.id, started.other_tree) == (hers.run.id, False)
        assert (await team.get(bobs.run.id)).worker == "w1"
