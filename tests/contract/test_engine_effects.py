"""Effects of the host, once: allowed by policy, sent, redriven, looked up, asked about. The receiver counts."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.capabilities import register
from ringfence.host.kernel.effects import EffectRow, EffectState
from ringfence.host.kernel.gates import GateKind, GateState
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.policy import Policy
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from ringfence.wire import messages as wire
from tests.support.approving import lost_while_sent
from tests.support.engine_rig import eventually, rig
from tests.support.fakes import Loop
from tests.support.paying import ASK, CALL, Repeatable, hook, paid_key, parked, paying
from tests.support.receiver import SECRET, receiver
from tests.support.store import newest


async def test_an_allowed_effect_is_sent_once_and_its_outcome_is_the_steps(tmp_path: Path) -> None:
    async with paying(tmp_path) as (r, outside):
        said = await r.say("alice", "pay")
        turn = await r.turn(said)
        assert (turn.state, turn.reply) == (TurnState.COMPLETED, "paid")
        key = paid_key(said.run.id)
        assert (outside.arrived, outside.done, outside.bad) == ({key: 1}, {key: {"amount": 5}}, [])
        [step] = await r.store.steps.all(said.run.id)
        assert (step.effect.value, step.state.value) == ("once", "ended")
        assert step.result == {"ok": True, "effect": "done", "status": 200, "body": '{"id": 7}', "cut": False}
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, row.tries, row.key, row.gate) == (EffectState.DONE, 1, key, None)


async def test_without_a_rule_nothing_goes_out(tmp_path: Path) -> None:
    async with paying(tmp_path, Policy()) as (r, outside):
        said = await r.say("alice", "pay")
        assert (await r.turn(said)).state is TurnState.COMPLETED
        [step] = await r.store.steps.all(said.run.id)
        assert step.result is not None
        assert (step.result["reason"], step.result["effect"]) == ("refused", "not_done")
        assert not outside.arrived
        assert await r.store.effects.of_run(said.run.id) == []


@pytest.mark.parametrize("says_pure", ["pure", "idempotent", "local", "host"])
async def test_what_a_loop_calls_it_does_not_matter(tmp_path: Path, says_pure: str) -> None:
    """A loop that names another class gets around neither policy nor ledger."""

    async def sly(loop: Loop) -> None:
        params = wire.StepBegin(loop.start["token"], 1, "http.webhook", CALL["arguments"], says_pure)  # type: ignore[arg-type]
        begun = await loop.ask("step.begin", params)
        await loop.ask("run.finish", wire.RunFinish(loop.start["token"], begun["decision"], 1 << 40))

    async with receiver() as outside:
        tool = hook(outside)
        parts = {"capabilities": register([tool]), "policy": Policy()}
        async with rig(tmp_path, script=sly, parts=parts) as r:
            said = await r.say("alice", "pay")
            assert (await r.turn(said)).reply == "done"
            [step] = await r.store.steps.all(said.run.id)
            assert (step.effect.value, (step.result or {})["reason"]) == ("once", "refused")
            assert not outside.arrived
        await tool.close()


@pytest.mark.parametrize("behave", ["fail_after", "cut_after", "redirect"])
async def test_an_answer_that_says_nothing_is_looked_up(tmp_path: Path, behave: str) -> None:
    async with paying(tmp_path) as (r, outside):
        outside.behave = behave
        said = await r.say("alice", "pay")
        assert (await r.turn(said)).state is TurnState.COMPLETED
        key = paid_key(said.run.id)
        assert (outside.arrived[key], outside.looked) == (1, [key])
        [row] = await r.store.effects.of_run(said.run.id)
        assert row.state is EffectState.DONE


async def test_what_did_not_arrive_is_sent_again_under_the_same_key(tmp_path: Path) -> None:
    async with paying(tmp_path) as (r, outside):
        outside.behave = "fail_before"
        said = await r.say("alice", "pay")
        await eventually(lambda: outside.looked)
        outside.behave = "ok"
        assert (await r.turn(said)).state is TurnState.COMPLETED
        key = paid_key(said.run.id)
        assert outside.arrived == {key: 2}
        assert (await r.store.effects.of_run(said.run.id))[0].tries == 2


async def test_a_refusal_of_the_receiver_is_not_done(tmp_path: Path) -> None:
    async with paying(tmp_path) as (r, outside):
        outside.behave = "refuse"
        said = await r.say("alice", "pay")
        assert (await r.turn(said)).state is TurnState.COMPLETED
        [step] = await r.store.steps.all(said.run.id)
        assert step.result is not None
        assert (step.result["ok"], step.result["effect"], step.result["status"]) == (False, "not_done", 422)
        assert outside.looked == []


@pytest.mark.parametrize(("behave", "state", "arrived"), [("hang_after", "done", 1), ("hang_before", "not_done", 2)])
async def test_a_server_killed_while_it_was_sent_looks_it_up(
    tmp_path: Path, behave: str, state: str, arrived: int
) -> None:
    """F06. The receiver had done it: recorded. It had not, and says so: executed, under the same key."""
    async with paying(tmp_path) as (r, outside):
        outside.behave, outside.says = behave, state
        said = await r.say("alice", "pay")
        await asyncio.wait_for(outside.seen.wait(), 30)
        outside_behaves = "ok" if behave == "hang_before" else behave

        async def loop_dies() -> None:
            outside.behave = outside_behaves
            await r.world.kill_box(r.box("alice").id)

        await r.restart(loop_dies)
        turn = await r.turn(said, 30)
        assert turn.state is TurnState.COMPLETED
        key = paid_key(said.run.id)
        assert (outside.arrived[key], len(outside.done)) == (arrived, 1)
        assert (await r.store.effects.of_run(said.run.id))[0].state is EffectState.DONE


async def test_an_intent_that_was_never_sent_is_sent_without_a_look(tmp_path: Path) -> None:
    """F05: the kernel is gone between the intent and the effect."""
    async with paying(tmp_path) as (r, outside):
        outside.says = "unknown"  # a look would end at a gate
        gone = asyncio.Event()
        mark = r.store.effects.mark

        async def never(*_args: Any, **_more: Any) -> Any:
            gone.set()
            await asyncio.get_running_loop().create_future()

        r.store.effects.mark = never  # type: ignore[method-assign]
        said = await r.say("alice", "pay")
        await asyncio.wait_for(gone.wait(), 30)
        [row] = await r.store.effects.of_run(said.run.id)
        assert row.state is EffectState.INTENDED

        async def down() -> None:
            r.store.effects.mark = mark  # type: ignore[method-assign]
            await r.world.kill_box(r.box("alice").id)

        await r.restart(down)
        assert (await r.turn(said, 30)).state is TurnState.COMPLETED
        assert (outside.arrived, outside.looked) == ({paid_key(said.run.id): 1}, [])


async def test_what_nobody_knows_is_asked(tmp_path: Path) -> None:
    """F06 without evidence: parked at a gate in_doubt, never sent again by itself, also not by another server."""
    async with paying(tmp_path) as (r, outside):
        said = await lost_while_sent(r, outside)
        await parked(r, said)
        await r.restart()
        await asyncio.sleep(0.3)
        run = await r.store.runs.get(said.run.id)
        assert (run.state, run.reason, run.worker, run.attempts) == (RunState.PARKED, "in_doubt", None, 0)
        assert outside.arrived == {paid_key(said.run.id): 1}
        [gate] = await r.store.gates.of_run(said.run.id)
        assert (gate.kind, gate.state, gate.expires_at, gate.wall) == (GateKind.IN_DOUBT, GateState.OPEN, None, True)


@pytest.mark.parametrize(
    ("answer", "arrived", "state", "ok"),
    [("done", 1, "done", True), ("not-done", 1, "not_done", False), ("again", 2, "done", True)],
)
async def test_a_person_says_what_became_of_it(tmp_path: Path, answer: str, arrived: int, state: str, ok: bool) -> None:
    async with paying(tmp_path) as (r, outside):
        said = await lost_while_sent(r, outside)
        await parked(r, said)
        outside.behave = "ok"
        [gate] = await r.store.gates.of_run(said.run.id)
        await r.engine.gates.answer(r.actors["alice"], gate.id, answer, None)
        turn = await r.turn(said, 30)
        assert turn.state is TurnState.COMPLETED
        assert outside.arrived[paid_key(said.run.id)] == arrived
        [row] = await r.store.effects.of_run(said.run.id)
        [step] = await r.store.steps.all(said.run.id)
        assert (row.state.value, (step.result or {})["ok"]) == (state, ok)
        assert (await r.store.gates.get(gate.id)).state is GateState.USED


@pytest.mark.parametrize(("says", "known"), [("done", "done"), ("not_done", "not_done"), ("unknown", "unknown")])
async def test_a_cancelled_run_says_what_became_of_its_effect(tmp_path: Path, says: str, known: str) -> None:
    async with paying(tmp_path) as (r, outside):
        outside.behave, outside.says = "hang_after", says
        said = await r.say("alice", "pay")
        await asyncio.wait_for(outside.seen.wait(), 30)

        async def down() -> None:
            await r.store.runs.cancel(said.run.id)
            await r.world.kill_box(r.box("alice").id)

        await r.restart(down)
        turn = await r.turn(said, 30)
        assert turn.state is TurnState.CANCELLED
        [step] = await r.store.steps.all(said.run.id)
        [row] = await r.store.effects.of_run(said.run.id)
        assert ((step.result or {})["effect"], row.state.value) == (known, known)
        assert outside.arrived == {paid_key(said.run.id): 1}


async def test_a_cancel_by_another_kernel_just_before_it_goes_out(tmp_path: Path) -> None:
    """The intent is on disk; the wish to cancel comes before the commit that says that it goes out: nothing does."""
    async with paying(tmp_path) as (r, outside):
        mark = r.store.effects.mark

        async def cancelled(run: RunId, epoch: int, n: int, state: EffectState, *more: Any, **named: Any) -> EffectRow:
            if state is EffectState.SENT:
                await r.store.runs.cancel(run)
            return await mark(run, epoch, n, state, *more, **named)

        r.store.effects.mark = cancelled  # type: ignore[method-assign]
        said = await r.say("alice", "pay")
        assert (await r.turn(said)).state is TurnState.CANCELLED
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, row.tries, row.intent) == (EffectState.NOT_DONE, 0, None)
        assert (dict(outside.arrived), outside.looked) == ({}, [])


async def test_a_cancel_while_it_is_out_waits_for_its_end(tmp_path: Path) -> None:
    async with paying(tmp_path) as (r, outside):
        outside.behave = "hang_before"
        said = await r.say("alice", "pay")
        await asyncio.wait_for(outside.seen.wait(), 30)
        asyncio.get_running_loop().call_later(0.5, outside.gate.set)
        await r.engine.runs.cancel(r.actors["alice"], said.run.id)
        turn = await r.turn(said)
        [row] = await r.store.effects.of_run(said.run.id)
        assert (turn.state, row.state) == (TurnState.CANCELLED, EffectState.DONE)


async def test_the_secret_and_the_query_are_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with paying(tmp_path, ASK) as (r, outside):
        outside.behave = "cut_after"
        outside.says = b'{"state": "canary-state"}'
        said = await r.say("alice", "pay")
        await parked(r, said)
        [gate] = await r.store.gates.of_run(said.run.id)
        await r.engine.gates.answer(r.actors["alice"], gate.id, "allow", None)
        await eventually(lambda: len(outside.looked) >= 3)
        await parked(r, said)
        events = await r.store.events.after(said.turn.thread, 0, 1000)
        gates = await r.store.gates.of_run(said.run.id)
        rows = await r.store.effects.of_run(said.run.id)
        kept = [*events, *gates, *rows, *await r.store.steps.all(said.run.id), await newest(r.store.audit, 100)]
        text = repr(kept) + caplog.text + repr(r.with_parts["capabilities"]["http.webhook"]._places)
        for file in tmp_path.glob("ringfence.db*"):
            text += file.read_bytes().decode(errors="replace")
        assert f"http://127.0.0.1:{outside.port}'" in text, "the host is shown"
        assert "/hook" not in text and "/look" not in text, "the path is often a secret"
        assert SECRET.decode() not in text
        assert "canary-query" not in text


async def test_an_idempotent_call_that_is_cancelled_between_two_tries_may_have_been_carried_out(tmp_path: Path) -> None:
    """The ledger says so; that it was not done, evidence alone may say."""
    async with paying(tmp_path, kind=Repeatable) as (r, outside):
        outside.behave = "fail_after"
        said = await r.say("alice", "pay")
        await asyncio.wait_for(outside.seen.wait(), 30)
        await r.engine.runs.cancel(r.actors["alice"], said.run.id)
        await r.until(said.run.id, lambda run: run.state is RunState.CANCELLED)
        [row] = await r.store.effects.of_run(said.run.id)
        assert row.key in outside.done
        assert row.state is EffectState.UNKNOWN


async def test_an_idempotent_call_goes_out_again_under_its_key(tmp_path: Path) -> None:
    async with paying(tmp_path, kind=Repeatable) as (r, outside):
        outside.first = "fail_after"
        said = await r.say("alice", "pay")
        await r.until(said.run.id, lambda run: run.state is RunState.COMPLETED)
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, row.tries, outside.arrived[row.key], outside.looked) == (EffectState.DONE, 2, 2, [])


async def test_a_refusal_says_nothing_of_the_try_before_it(tmp_path: Path) -> None:
    async with paying(tmp_path, kind=Repeatable) as (r, outside):
        outside.first, outside.behave = "fail_after", "refuse"
        said = await r.say("alice", "pay")
        await r.until(said.run.id, lambda run: run.state is RunState.COMPLETED)
        [row] = await r.store.effects.of_run(said.run.id)
        assert row.key in outside.done
        assert row.state is EffectState.UNKNOWN
        [step] = await r.store.steps.all(said.run.id)
        assert step.result is not None and step.result["effect"] == "unknown"
