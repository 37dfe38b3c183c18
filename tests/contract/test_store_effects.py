"""The ledger of effects in the store: evidence is about one try, the audit knows what the ledger knows, a cancellation hears
what a person has said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import Conflict, RingfenceError
from ringfence.host.kernel.gates import GateAnswer, GateState
from ringfence.host.kernel.runs import Run, RunState
from tests.support.databases import outside
from tests.support.store import Team, a_team, newest
from tests.support.store_calls import PEN, answered, approved, asked, intended, out

DONE, NOT_DONE, UNKNOWN = EffectState.DONE, EffectState.NOT_DONE, EffectState.UNKNOWN
SENT, INTENDED = EffectState.SENT, EffectState.INTENDED


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def sent(team: Team) -> Run:
    run = await approved(team)
    await intended(team, run)
    await team.store.effects.mark(run.id, run.epoch, 1, SENT)
    return run


async def audited(team: Team) -> list[tuple[int, list[dict[str, Any]]]]:
    """Of each intent, oldest first: which try it is of, and what is said of it."""
    rows = [row for row in await newest(team.store.audit, 100) if row["lane"] == "intent" and row["ref"] is None]
    return [
        (row["details"]["try"], [said["details"] for said in await team.store.audit.outcomes(row["id"])])
        for row in rows
    ]


# --- one try ---------------------------------------------------------------------------------------------------------


async def test_evidence_of_an_older_try_says_nothing_of_a_newer_one(team: Team) -> None:
    run, effects = await sent(team), team.store.effects
    await effects.mark(run.id, run.epoch, 1, INTENDED, {}, tries=1)
    row = await effects.mark(run.id, run.epoch, 1, SENT, tries=1)
    assert row.tries == 2
    for state in (INTENDED, UNKNOWN, SENT):
        with pytest.raises(Conflict, match="sent 2 times by now, not 1"):
            await effects.mark(run.id, run.epoch, 1, state, {}, tries=1)
    with pytest.raises(Conflict, match="sent 2 times by now, not 1"):
        await effects.settle(run.id, run.epoch, 1, NOT_DONE, {}, {"ok": False}, tries=1)
    assert await effects.get(run.id, 1) == row, "nothing of it was written"
    assert (await audited(team))[1] == (2, [])
    await effects.settle(run.id, run.epoch, 1, DONE, {}, {"ok": True}, tries=2)
    kept = await effects.get(run.id, 1)
    assert kept is not None and kept.state is DONE


# --- the audit -------------------------------------------------------------------------------------------------------


async def test_each_try_has_an_intent_and_what_became_known_of_it(team: Team) -> None:
    run, effects = await sent(team), team.store.effects
    assert await audited(team) == [(1, [])]
    await effects.mark(run.id, run.epoch, 1, UNKNOWN, {"error": "no answer"})
    await effects.mark(run.id, run.epoch, 1, UNKNOWN, {"error": "still none"})
    await effects.mark(run.id, run.epoch, 1, INTENDED)
    await effects.mark(run.id, run.epoch, 1, SENT)
    await effects.settle(run.id, run.epoch, 1, DONE, {"body": "canary"}, {"ok": True})
    assert await audited(team) == [
        (1, [{"outcome": "unknown"}, {"outcome": "not_done"}]),
        (2, [{"outcome": "done"}]),
    ]
    assert "canary" not in repr(await newest(team.store.audit, 100))


async def test_a_try_that_is_repeated_without_evidence_was_unknown(team: Team) -> None:
    run = await sent(team)
    await team.store.effects.mark(run.id, run.epoch, 1, SENT)
    assert await audited(team) == [(1, [{"outcome": "unknown"}]), (2, [])]


async def test_what_is_not_let_out_has_no_intent(team: Team) -> None:
    """The attack on whoever reads the audit: an intent that looks as if it had gone out. The control is above."""
    run = await approved(team)
    await intended(team, run)
    await team.store.runs.cancel(run.id)
    with pytest.raises(Conflict, match="being cancelled"):
        await team.store.effects.mark(run.id, run.epoch, 1, SENT)
    assert await audited(team) == []


@pytest.mark.parametrize(
    ("answer", "known"), [(GateAnswer.DONE, "done"), (GateAnswer.NOT_DONE, "not_done"), (GateAnswer.AGAIN, "unknown")]
)
async def test_a_persons_word_is_an_outcome(team: Team, answer: GateAnswer, known: str) -> None:
    run = await out(team, answer)
    gate = (await team.store.gates.of_run(run.id))[-1]
    await team.store.effects.resolve(run.id, run.epoch, 1, gate.id, lambda *_: "", lambda _: {"ok": True})
    said = {"outcome": known, "gate": gate.id, "by": team.alice.id, "answer": answer.value}
    assert await audited(team) == [(1, [said])]


async def test_what_is_out_when_its_run_ends_is_unknown_and_may_be_known_late(team: Team) -> None:
    run = await sent(team)
    await team.store.runs.end(run.id, run.epoch, RunState.FAILED, "deadline", None)
    assert await audited(team) == [(1, [{"outcome": "unknown"}])]
    assert await team.store.effects.settle_late(run.id, run.epoch, 1, DONE, {}) is not None
    assert await audited(team) == [(1, [{"outcome": "unknown"}, {"outcome": "done"}])]


# --- a cancellation --------------------------------------------------------------------------------------------------


async def waiting(team: Team, answer: GateAnswer) -> Run:
    """Queued with an answer about its effect in doubt that nothing has used."""
    run = await out(team, answer)
    return await team.store.runs.requeue(run.id, run.epoch, "executor_lost")


@pytest.mark.parametrize(("answer", "known"), [(GateAnswer.DONE, DONE), (GateAnswer.NOT_DONE, NOT_DONE)])
async def test_a_cancelled_run_ends_as_a_person_has_said(team: Team, answer: GateAnswer, known: EffectState) -> None:
    run = await waiting(team, answer)
    assert (await team.store.runs.cancel(run.id, PEN.judge)).state is RunState.CANCELLED
    [row] = await team.store.effects.of_run(run.id)
    [step] = await team.store.steps.all(run.id)
    gate = (await team.store.gates.of_run(run.id))[-1]
    assert (row.state, gate.state) == (known, GateState.USED)
    assert step.result is not None and step.result["effect"] == known.value
    assert (await audited(team))[0][1][-1]["answer"] == answer.value


@pytest.mark.parametrize("why_not", ["again", "another hand"])
async def test_a_word_that_says_nothing_leaves_it_unknown(team: Team, why_not: str) -> None:
    """`again` says that nobody knows; an answer of another hand than ours is none. The control is above."""
    run = await waiting(team, GateAnswer.AGAIN if why_not == "again" else GateAnswer.DONE)
    if why_not == "another hand":
        gate = (await team.store.gates.of_run(run.id))[-1]
        outside(team.folder, "UPDATE gates SET answer_mac = 'forged' WHERE id = ?", gate.id)
    await team.store.runs.cancel(run.id, PEN.judge)
    [row] = await team.store.effects.of_run(run.id)
    gate = (await team.store.gates.of_run(run.id))[-1]
    assert (row.state, gate.state) == (UNKNOWN, GateState.CANCELLED)


# --- gates whose time is over ----------------------------------------------------------------------------------------


async def test_a_gate_that_cannot_be_read_is_in_nobodys_way(team: Team) -> None:
    runs = [await asked(team, user, user.name) for user in (team.alice, team.bob)]
    gates = [(await team.store.gates.of_run(run.id))[0] for run in runs]
    outside(team.folder, "UPDATE gates SET obligations = '{' WHERE id = ?", gates[0].id)
    team.clock.pass_seconds(8 * 86_400)
    assert await team.store.gates.due(8) == [gate.id for gate in gates]
    with pytest.raises(RingfenceError):
        await team.store.gates.expire(gates[0].id)
    assert (await team.store.gates.expire(gates[1].id)).state is GateState.EXPIRED
    assert (await team.store.gates.expire(gates[1].id)).state is GateState.EXPIRED, "twice is once"
    assert await team.store.gates.due(8) == [gates[0].id]


async def test_a_row_that_cannot_be_read_leaves_no_reader_in_the_past(team: Team) -> None:
    """SQLite: a question that breaks off in the middle of its rows would keep its connection in that snapshot."""
    run = await out(team)
    assert len(await team.store.gates.of_run(run.id)) == 2, "one is read, and one is not"
    outside(team.folder, "UPDATE gates SET obligations = '{' WHERE run = ?", run.id)
    kept: list[BaseException] = []  # and with them whatever their frames hold
    for _ in range(4):
        with pytest.raises(RingfenceError) as caught:
            await team.store.gates.of_run(run.id)
        kept.append(caught.value)
    await team.store.runs.requeue(run.id, run.epoch, "executor_lost")
    seen = await asyncio.gather(*(team.get(run.id) for _ in range(16)))
    assert {each.state for each in seen} == {RunState.QUEUED}
    assert kept


async def test_a_gate_whose_time_is_not_over_stays_open(team: Team) -> None:
    run = await asked(team, team.alice, "alice")
    [gate] = await team.store.gates.of_run(run.id)
    assert (await team.store.gates.expire(gate.id)).state is GateState.OPEN
    await answered(team, run)
    assert (await team.store.gates.expire(gate.id)).state is GateState.ALLOWED
