"""J06, J09, F48: answers that come too late, from somebody else, twice, or that nobody could give for their number."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.engine.gates import GateView
from ringfence.host.kernel.errors import Conflict, Invalid, KeyReused, NotFound, Refused
from ringfence.host.kernel.gates import MAX_OPEN, Gate, GateState
from ringfence.host.kernel.people import Actor, Scope, UserKind
from ringfence.host.kernel.policy import Policy, Rule, Verdict
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from tests.support.approving import newer, result, yes
from tests.support.engine_rig import OPERATOR, Rig, eventually
from tests.support.paying import ASK, asked, paying
from tests.support.store import newest

# --- J06: too late, or somebody else ---------------------------------------------------------------------------------


async def test_j06_after_a_cancel(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await r.engine.runs.cancel(r.actors["alice"], said.run.id)
        assert (await r.store.gates.get(gate.id)).state is GateState.CANCELLED
        with pytest.raises(Conflict, match="cancelled"):
            await yes(r, gate)
        assert (await r.turn(said)).state is TurnState.CANCELLED
        assert not outside.arrived


async def test_j06_a_cancel_between_the_answer_and_the_use(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        r.engine._work.drain()
        await yes(r, gate)
        await r.store.runs.cancel(said.run.id)
        await r.restart()
        assert (await r.turn(said)).state is TurnState.CANCELLED
        assert (await r.store.gates.get(gate.id)).state is GateState.CANCELLED
        assert not outside.arrived


BRIEF = Policy((replace(ASK.rules[0], obligations=replace(ASK.rules[0].obligations, expire_seconds=3600)),))


def its_time_is_over(r: Rig, gate: Gate) -> None:
    """At once. Who has a token that ends later has it still."""
    assert gate.expires_at is not None
    r.store.onward.hear(gate.expires_at + timedelta(seconds=1))


async def approved_too_early(r: Rig) -> tuple[Accepted, Gate]:
    """The answer is there, and its time is over before the next server uses it."""
    said, gate = await asked(r)
    r.engine._work.drain()
    await yes(r, gate)
    its_time_is_over(r, gate)
    await r.restart()
    return said, gate


async def test_j06_after_its_time(tmp_path: Path) -> None:
    """Not answered in time: the model is told, the run goes on; an answer that comes then is none."""
    async with paying(tmp_path, BRIEF) as (r, outside):
        said, gate = await asked(r)
        its_time_is_over(r, gate)
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert "nobody answered in time" in (await result(r, said))["error"]
        with pytest.raises(Conflict, match="expired"):
            await yes(r, gate)
        assert not outside.arrived


async def test_j06_after_its_time_when_nobody_has_looked(tmp_path: Path) -> None:
    """Whoever answers finds it out: it does not wait for a sweep."""
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await r.engine.stop()
        its_time_is_over(r, gate)
        with pytest.raises(Conflict, match="nobody answered in time"):
            await yes(r, gate)
        assert (await r.store.gates.get(gate.id)).state is GateState.EXPIRED
        await r.restart()
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert not outside.arrived


async def test_j06_an_approval_expires_before_it_is_used(tmp_path: Path) -> None:
    """The call itself was to go out by then."""
    async with paying(tmp_path, BRIEF) as (r, outside):
        said, _ = await approved_too_early(r)
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert (await result(r, said))["reason"] == "refused"
        assert not outside.arrived


async def test_j06_a_yes_of_last_week_is_asked_for_anew(tmp_path: Path) -> None:
    """The policy sets no time: a server that was away for longer than an approval lasts."""
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await approved_too_early(r)
        again = await newer(r, said, gate)
        assert (again.state, again.digest) == (GateState.OPEN, gate.digest)
        assert (await r.store.gates.get(gate.id)).reason == "the approval has expired"
        assert not outside.arrived
        await yes(r, again)
        assert (await r.turn(said)).reply == "paid", "control"


async def test_j06_the_user_is_removed(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await r.engine.people.user_remove(OPERATOR, "default", "alice")
        assert (await r.store.gates.get(gate.id)).state is GateState.CANCELLED
        assert (await r.ended(said.run.id)).state is RunState.CANCELLED
        assert not outside.arrived


@pytest.mark.parametrize("answer", [Verdict.DENY, Verdict.ASK], ids=["denied by now", "other rules"])
async def test_j06_the_policy_is_another_one(tmp_path: Path, answer: Verdict) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        r.engine._work.drain()
        await yes(r, gate)
        r.with_parts["policy"] = Policy((Rule("http.webhook", answer),))
        await r.restart()
        if answer is Verdict.DENY:
            assert (await r.turn(said)).state is TurnState.COMPLETED
            assert (await result(r, said))["reason"] == "refused"
        else:
            again = await newer(r, said, gate)
            assert (again.state, again.policy) == (GateState.OPEN, r.with_parts["policy"].digest)
            assert (await r.store.gates.get(gate.id)).state is GateState.EXPIRED
        assert not outside.arrived


async def test_j06_only_the_acting_user_or_its_owner(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        robot = await r.store.users.add("default", "robot", UserKind.AGENT, "bob")
        r.actors["robot"] = Actor(user=robot, operator=False, via="token:r")
        said, gate = await asked(r)
        theirs, owned = await asked(r, "robot", thread="robots")
        gates = r.engine.gates
        with pytest.raises(NotFound):
            await gates.answer(r.actors["bob"], gate.id, "allow", None)
        with pytest.raises(Refused):
            await gates.answer(OPERATOR, gate.id, "allow", None)
        with pytest.raises(Refused):
            await gates.answer(replace(r.actors["alice"], scopes=frozenset({Scope.READ})), gate.id, "allow", None)
        with pytest.raises(Refused):  # an agent does not answer for itself
            await gates.answer(r.actors["robot"], owned.id, "allow", None)
        assert not outside.arrived
        shown = await gates.show(OPERATOR, gate.id)
        assert (shown.call, shown.gate.arguments, shown.user) == (None, {}, "alice")
        assert (await gates.show(r.actors["bob"], owned.id)).answerer == "bob"
        await gates.answer(r.actors["bob"], owned.id, "allow", None)
        assert (await r.turn(theirs)).reply == "paid"
        await yes(r, gate)
        assert (await r.turn(said)).reply == "paid"
        recorded = [row["action"] for row in await newest(r.store.audit, 50)]
        assert recorded.count("gate.answer") == 2


# --- F48: when answers come ------------------------------------------------------------------------------------------


async def test_f48_an_answer_that_comes_twice_is_one(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        first = await yes(r, gate, key="k1")
        assert (await yes(r, gate, key="k1")).gate.answered_at == first.gate.answered_at
        await yes(r, gate, key="k2")
        await r.turn(said)
        await yes(r, gate, key="k1")
        with pytest.raises(KeyReused):
            await r.engine.gates.answer(r.actors["alice"], gate.id, "deny", "k1")
        with pytest.raises(Conflict, match="used"):
            await r.engine.gates.answer(r.actors["alice"], gate.id, "deny", None)
        with pytest.raises(Invalid):
            await r.engine.gates.answer(r.actors["alice"], gate.id, "again", None)
        assert sum(outside.arrived.values()) == 1


async def test_many_answers_at_once_are_one(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        gates, alice = r.engine.gates, r.actors["alice"]
        tries = [gates.answer(alice, gate.id, answer, None) for answer in ["allow", "deny"] * 10]
        answered = await asyncio.gather(*tries, return_exceptions=True)
        said_yes = {view.gate.answer for view in answered if isinstance(view, GateView)}
        assert len(said_yes) == 1
        assert all(isinstance(error, Conflict) for error in answered if isinstance(error, Exception))
        await r.turn(said)
        assert sum(outside.arrived.values()) <= 1


# --- J09: floods -----------------------------------------------------------------------------------------------------


async def test_j09_a_call_that_was_denied_is_not_asked_again_in_its_run(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r, text="twice")
        await r.engine.gates.answer(r.actors["alice"], gate.id, "deny", None)
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert "the answer was no" in (await result(r, said, 2))["error"]
        assert len(await r.store.gates.of_run(said.run.id)) == 1
        assert not outside.arrived


async def test_j09_so_many_questions_and_no_more(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        gates = [(await asked(r, thread=f"t{n}"))[1] for n in range(MAX_OPEN)]
        more = await r.say("alice", "pay", "more")
        assert (await r.turn(more)).state is TurnState.COMPLETED
        assert f"{MAX_OPEN} questions wait" in (await result(r, more))["error"]
        shown = await r.engine.gates.ls(r.actors["alice"], "default", [], None, 100)
        assert {view.equal for view in shown} == {MAX_OPEN - 1}, "each says how many ask the very same"
        bobs, _ = await asked(r, "bob", thread="bobs")  # hers are not his
        assert bobs
        await yes(r, gates[0])
        await eventually(lambda: outside.arrived)
        assert sum(outside.arrived.values()) == 1, "a yes to one is no yes to the others"
