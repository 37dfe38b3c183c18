"""The journal of a run and its checkpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.errors import Conflict, Diverged, Invalid, NotFound, StepGap, TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import Effect, StepState
from ringfence.host.kernel.threads import EventKind
from tests.support.store import ARGUMENTS, DIGEST, Team, a_team


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def test_the_journal_of_a_step(team: Team) -> None:
    steps = team.store.steps
    run = await team.running()
    begun, new = await team.begin(run, 1)
    assert (begun.n, begun.state, begun.result, begun.arguments, new) == (1, StepState.BEGUN, None, ARGUMENTS, True)
    event = await team.newest()
    assert (event.kind, event.actor, event.run) == (EventKind.STEP_BEGUN, team.alice.id, run.id)
    assert event.body == {"n": 1, "tool": "shell", "effect": "local"}, "no arguments in what members see"
    assert await team.begin(run, 1) == (begun, False)
    ended = await steps.end(run.id, 1, 1, {"ok": False, "stdout": "\udcff\0"}, False)
    assert (ended.state, ended.result) == (StepState.ENDED, {"ok": False, "stdout": "\udcff\0"})
    event = await team.newest()
    assert (event.kind, event.body) == (
        EventKind.STEP_ENDED,
        {"n": 1, "tool": "shell", "effect": "local", "ok": False},
    )
    assert await steps.end(run.id, 1, 1, {"ok": True}, True) == ended, "the first result stays"
    assert await team.begin(run, 1) == (ended, False)
    assert (await team.newest()).cursor == event.cursor
    await team.begin(run, 2)
    cut = await steps.end(run.id, 1, 2, {"reason": "box_lost"}, True)
    assert cut.state is StepState.INTERRUPTED
    assert (await team.newest()).body["ok"] is True
    await team.begin(run, 3)
    odd = await steps.end(run.id, 1, 3, {"ok": {"a loop": "may say anything"}}, False)
    assert (await team.newest()).body["ok"] is False, "an event has a bool there, whatever a loop says"
    assert await steps.all(run.id) == [ended, cut, odd]
    assert [await steps.get(run.id, n) for n in (0, 1, 2, 3, 4)] == [None, ended, cut, odd, None]
    await team.begin(run, 4)
    assert (await team.store.reads.brief(run.id, 9, 1 << 20)).steps == {
        1: StepState.ENDED,
        2: StepState.INTERRUPTED,
        3: StepState.ENDED,
        4: StepState.BEGUN,
    }


async def test_the_journal_survives_a_redrive(team: Team) -> None:
    run = await team.running()
    await team.begin(run, 1)
    await team.store.runs.requeue(run.id, 1, "lost")
    team.clock.pass_seconds(1)
    [again] = await team.claim()
    assert (await team.begin(again, 1))[1] is False
    assert (await team.begin(again, 2))[1] is True


async def test_steps_that_are_refused(team: Team) -> None:
    steps = team.store.steps
    run = await team.running()
    for n in (0, 2, -1, 1 << 70):
        with pytest.raises((StepGap, Invalid)):
            await team.begin(run, n)
    await team.begin(run, 1)
    other = digest("shell", {"command": "rm"}, Effect.LOCAL)
    with pytest.raises(Diverged) as diverged:
        await steps.begin(run.id, 1, 1, "shell", {"command": "rm"}, other, Effect.LOCAL)
    assert diverged.value.details["journal"]["digest"] == DIGEST
    with pytest.raises(NotFound):
        await steps.end(run.id, 1, 2, {}, False)
    await steps.end(run.id, 1, 1, {"out": "x" * (256 * 1024 - 10)}, False)
    await team.begin(run, 2)
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
    with pytest.raises(NotFound):
        await steps.get(RunId("run_none"), 1)


async def test_checkpoints_refer_to_what_exists(team: Team) -> None:
    """I6."""
    steps = team.store.steps
    run = await team.running()
    assert await steps.checkpoint(run.id) is None
    first = await steps.save_checkpoint(run.id, 1, "before_model", 0, "s0")
    assert first.cursor == (await team.newest()).cursor
    assert await steps.checkpoint(run.id) == first
    await team.begin(run, 1)
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
