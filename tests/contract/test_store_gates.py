"""A run that is held back or parked: no lease, no attempt counted, and fenced like every other write. Its gates:
answered in time, used by their own run, and no more of them than a run may ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import BoxKind, Limits
from ringfence.host.kernel.errors import Conflict, Exhausted, StaleEpoch
from ringfence.host.kernel.gates import ANEW, APPROVAL_SECONDS, MAX_OF_RUN, GateAnswer, GateKind, GateState, Question
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.policy import Obligations
from ringfence.host.kernel.runs import Run, RunState
from tests.support.store import Team, a_team
from tests.support.store_calls import PEN, answered, approved, asked, due, going

QUESTION = Question(
    GateKind.APPROVAL, 1, "shell", {"command": "ls"}, "d" * 64, "p" * 64, "", {}, Obligations(), True, None, None
)


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def test_a_run_that_is_held_back_loses_no_attempt(team: Team) -> None:
    run = await team.running()
    with pytest.raises(StaleEpoch):
        await team.store.runs.hold(run.id, 7, "user_disabled")
    held = await team.store.runs.hold(run.id, 1, "user_disabled")
    assert (held.state, held.reason, held.attempts, held.epoch, held.worker) == (
        RunState.QUEUED,
        "user_disabled",
        0,
        1,
        None,
    )
    [again] = await team.claim()
    assert (again.attempts, again.epoch) == (1, 2)


async def test_a_question_is_fenced_and_needs_its_step(team: Team) -> None:
    run = await team.running()
    gates = team.store.gates
    with pytest.raises(Conflict, match="not under way"):
        await gates.ask(run.id, 1, QUESTION, lambda gate: "m")
    await team.begin(run, 1)
    with pytest.raises(StaleEpoch):
        await gates.ask(run.id, 2, QUESTION, lambda gate: "m")
    gate = await gates.ask(run.id, 1, QUESTION, lambda gate: f"mac of {gate.id}")
    assert (gate.mac, gate.state) == (f"mac of {gate.id}", GateState.OPEN)
    assert await gates.get(gate.id) == gate
    row = await team.get(run.id)
    assert (row.state, row.attempts, row.worker, row.lease_until) == (RunState.PARKED, 0, None, None)
    assert await team.claim() == [], "a parked run is nobody's"
    with pytest.raises(StaleEpoch):
        await gates.ask(run.id, 1, replace(QUESTION, n=1), lambda gate: "m")
    await team.store.runs.cancel(run.id)
    assert (await gates.get(gate.id)).state is GateState.CANCELLED


async def test_the_newest_question_is_the_last_whatever_the_wall_says(team: Team) -> None:
    """F26. The last of a step's questions is the one that counts: a clock that was turned back would ask for ever."""
    run = await team.running()
    await team.begin(run, 1)
    gates = team.store.gates
    asked = [await gates.ask(run.id, 1, QUESTION, lambda gate: "m")]
    for epoch in (1, 2):
        await gates.answer(
            asked[-1].id, GateAnswer.ALLOW, team.alice.id, "token:1", f"k{epoch}", lambda gate: "m", lambda gate: True
        )
        [run] = await team.claim()
        await gates.void(run.id, run.epoch, asked[-1].id, "the policy has changed")
        team.clock.jump(timedelta(hours=-1))
        asked.append(await gates.ask(run.id, run.epoch, QUESTION, lambda gate: "m"))
    assert [gate.id for gate in await gates.of_run(run.id)] == [gate.id for gate in asked]


async def say_yes(team: Team, run: Run, key: str = "k") -> GateState:
    """What the run's newest gate is then."""
    gate = (await team.store.gates.of_run(run.id))[-1]
    said, _ = await team.store.gates.answer(
        gate.id, GateAnswer.ALLOW, run.actor, "token:1", key, PEN.answer, PEN.genuine
    )
    return said.state


@pytest.mark.parametrize("late", [True, False], ids=["late", "control"])
async def test_an_answer_that_comes_too_late_is_none_whoever_looks_first(team: Team, late: bool) -> None:
    """Nobody has swept since its time was over: whoever answers finds out, and the run goes on without an answer."""
    run = await asked(team, team.alice, "late")
    team.clock.pass_seconds(APPROVAL_SECONDS + (1 if late else -1))
    assert await say_yes(team, run) is (GateState.EXPIRED if late else GateState.ALLOWED)
    [gate] = await team.store.gates.of_run(run.id)
    assert (gate.answer, gate.reason) == ((None, "nobody answered in time") if late else (GateAnswer.ALLOW, ""))
    assert (await team.get(run.id)).state is RunState.QUEUED


async def test_an_approval_that_waits_too_long_for_its_use_lets_nothing_out(team: Team) -> None:
    """Answered in time, used after it: also in the transaction of the intent."""
    run = await approved(team)
    dispatch = await going(team, run)
    team.clock.pass_seconds(APPROVAL_SECONDS + 1)
    with pytest.raises(Conflict, match="expired"):
        await team.store.effects.intend(dispatch, run.epoch, PEN.usable_for(dispatch.call))
    assert await team.store.effects.of_run(run.id) == []


async def test_an_approval_of_another_run_is_none(team: Team) -> None:
    """The same person, the same call, the same step of it, and each was approved."""
    first, second = await approved(team), await answered(team, await asked(team, team.alice, "second"))
    [gate] = await team.store.gates.of_run(first.id)
    call = due(team, second, 1).call
    with pytest.raises(Conflict, match="of another run"):
        await team.store.gates.use(second.id, second.epoch, gate.id, PEN.usable_for(call))
    with pytest.raises(Conflict, match="of another run"):  # whatever the caller makes of it
        await team.store.gates.use(second.id, second.epoch, gate.id, lambda *_: "")
    assert (await team.store.gates.get(gate.id)).state is GateState.ALLOWED
    used = await team.store.gates.use(first.id, first.epoch, gate.id, PEN.usable_for(due(team, first, 1).call))
    assert used.state is GateState.USED, "control"


async def test_a_run_asks_so_often_and_no_more(team: Team) -> None:
    """J09. Each was answered, so that they wait for nobody. What became of an effect is asked all the same."""
    run = await team.running()
    await team.begin(run, 1)
    gates = team.store.gates
    for number in range(MAX_OF_RUN):
        gate = await gates.ask(run.id, run.epoch, QUESTION, PEN.question)
        await gates.answer(gate.id, GateAnswer.DENY, run.actor, "t", f"k{number}", PEN.answer, PEN.genuine)
        [run] = await team.claim()
    with pytest.raises(Exhausted, match=f"{MAX_OF_RUN} questions"):
        await gates.ask(run.id, run.epoch, QUESTION, PEN.question)
    assert (await team.get(run.id)).state is RunState.RUNNING
    assert len(await gates.of_run(run.id)) == MAX_OF_RUN == 50
    await gates.ask(run.id, run.epoch, replace(QUESTION, kind=GateKind.IN_DOUBT), PEN.question)
    other = await team.store.threads.add(team.tenant.id, "other", [team.alice.id], False)
    await team.store.turns.accept(other.id, team.alice.id, "x", "queue", None)
    [another] = await team.claim()
    await team.begin(another, 1)
    await gates.ask(another.id, another.epoch, QUESTION, PEN.question)  # control: another run of the same person


async def test_a_run_that_cannot_be_has_no_gates(team: Team) -> None:
    assert await team.store.gates.of_run(RunId("a\0b")) == []


async def test_questions_of_loops_are_bounded_and_those_about_doubts_are_not(team: Team) -> None:
    gates, doubt = team.store.gates, replace(QUESTION, kind=GateKind.IN_DOUBT)
    run = await team.running()
    await team.begin(run, 1)
    for n in range(MAX_OF_RUN):
        asked = await gates.ask(run.id, run.epoch, QUESTION, lambda gate: "m")
        await gates.answer(asked.id, GateAnswer.ALLOW, team.alice.id, "v", f"k{n}", lambda gate: "m", lambda gate: True)
        [run] = await team.claim()
        await gates.void(run.id, run.epoch, asked.id, "it is to be asked anew")
    with pytest.raises(Exhausted):
        await gates.ask(run.id, run.epoch, QUESTION, lambda gate: "m")
    assert (await gates.ask(run.id, run.epoch, doubt, lambda gate: "m")).state is GateState.OPEN


async def test_a_list_does_without_arguments(team: Team) -> None:
    run = await team.running()
    await team.begin(run, 1)
    gate = await team.store.gates.ask(run.id, 1, QUESTION, lambda gate: "m")
    for found in (
        await team.store.gates.of_users([team.alice.id], [GateState.OPEN], 10),
        await team.store.gates.of_tenant(team.tenant.id, [GateState.OPEN], 10),
    ):
        assert found == [replace(gate, arguments={})]


async def test_an_open_question_of_another_key_is_closed_and_its_run_queued(team: Team) -> None:
    await team.store.boxes.add(team.alice, BoxKind.HOME, "fake", Limits())
    run = await team.running()
    await team.begin(run, 1)
    gate = await team.store.gates.ask(run.id, 1, QUESTION, lambda gate: "m")
    assert await team.store.gates.open_here() == [gate.id]
    assert not await team.store.gates.disown(gate.id, lambda gate: True)
    assert (await team.get(run.id)).state is RunState.PARKED
    assert await team.store.gates.disown(gate.id, lambda gate: False)
    closed = await team.store.gates.get(gate.id)
    assert (closed.state, closed.reason) == (GateState.EXPIRED, ANEW)
    assert (await team.get(run.id)).state is RunState.QUEUED
    assert not await team.store.gates.disown(gate.id, lambda gate: False), "once"
    assert await team.store.gates.open_here() == []
