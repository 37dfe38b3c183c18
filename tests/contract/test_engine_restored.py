"""A server on a store that was put back, while the boxes of before are still at work: nothing of before is let in, and what
is done twice is nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.effects import EffectRow, EffectState
from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.gates import GateKind, GateState
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.kernels import EPOCH_JUMP
from ringfence.host.kernel.policy import Obligations, Policy, Rule, Verdict
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.kernel.script import parse_script
from ringfence.host.kernel.threads import TurnState
from ringfence.host.models.scripted import Scripted
from tests.support.engine_rig import eventually, rig
from tests.support.paying import ASK, CALL, asked, paid_key, paying
from tests.support.yesterday import backup, put_back

pytestmark = pytest.mark.alone
PATIENCE = 30.0
LOG: dict[str, Any] = {"name": "shell", "arguments": {"command": "echo x >> log"}}


async def test_a_run_with_a_journal_is_not_guessed_at(tmp_path: Path) -> None:
    """Its tree may be newer than the record: failed `incompatible`, and the command is not run a second time."""
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo x >> log; sleep 30\n$ echo on")
        await r.running_command("alice", f"s/{said.run.id}/1")
        await eventually((r.box("alice").folder / "log").exists)
        content = await backup(tmp_path)
        async with put_back(r, tmp_path, content):
            turn = await r.turn(said)
            assert (turn.state, turn.reason) == (TurnState.FAILED, "incompatible")
            assert (r.box("alice").folder / "log").read_text() == "x\n"
            again = await r.say("alice", "$ echo works")
            assert (await r.turn(again)).state is TurnState.COMPLETED


@pytest.mark.parametrize("recorded", [False, True], ids=["nothing was recorded", "a step was"])
async def test_a_run_that_had_ended_after_the_backup(tmp_path: Path, recorded: bool) -> None:
    """It begins anew, under an epoch that nobody of before has, when nothing of it was recorded; else nobody knows what of it
    is in its tree."""
    async with paying(tmp_path) as (r, _):
        model = r.model = Waits(SHELL)
        await r.restart()
        said = await r.say("alice", "pay")
        async with asyncio.timeout(PATIENCE):
            await model.asked.wait()
        if recorded:
            model.go_on.set()
            await r.running_command("alice", f"s/{said.run.id}/1")
        content = await backup(tmp_path)
        model.go_on.set()
        (r.box("alice").folder / "go").touch()
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        async with put_back(r, tmp_path, content):
            turn, run = await r.turn(said, PATIENCE), await r.store.runs.get(said.run.id)
            ended = (TurnState.FAILED, "incompatible") if recorded else (TurnState.COMPLETED, "")
            assert (turn.state, turn.reason) == ended
            assert run.epoch > EPOCH_JUMP


@pytest.mark.parametrize("since", [True, False], ids=["answered since", "not answered"])
async def test_a_question_of_the_backup_is_settled_by_evidence(tmp_path: Path, since: bool) -> None:
    """The receiver is asked by the key that the effect would have, and the run ends with what it says: nothing is sent
    again, and nothing that came after it in the box is done again."""
    answers = [{"tool_calls": [CALL]}, {"tool_calls": [LOG]}, {"text": "paid"}]
    async with paying(tmp_path, ASK) as (r, outside):
        r.model = Scripted(parse_script(json.dumps([{"when": "pay", "answers": answers}])))
        await r.restart()
        said, gate = await asked(r)
        content = await backup(tmp_path)
        key, log = paid_key(said.run.id), r.box("alice").folder / "log"
        if since:
            await r.engine.gates.answer(r.actors["alice"], gate.id, "allow", "k1")
            assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
            assert (outside.arrived, outside.looked, log.read_text()) == ({key: 1}, [], "x\n")
        async with put_back(r, tmp_path, content):
            turn = await r.turn(said, PATIENCE)
            assert (turn.state, turn.reason) == (TurnState.FAILED, "incompatible")
            assert (await r.store.gates.get(gate.id)).state is GateState.CANCELLED
            [row] = await r.store.effects.of_run(said.run.id)
            [step] = await r.store.steps.all(said.run.id)
            assert step.result is not None
            known = EffectState.DONE if since else EffectState.NOT_DONE
            assert (row.key, row.state, step.result["effect"]) == (key, known, known.value)
            assert (dict(outside.arrived), outside.looked) == ({key: 1} if since else {}, [key])
            assert log.exists() == since and (not since or log.read_text() == "x\n")


async def test_the_receiver_is_asked_about_the_call_as_it_goes_out(tmp_path: Path) -> None:
    """Of a step that was about to be asked about, a policy had taken something: the key is that of the rest."""
    policy = Policy((Rule("http.*", Verdict.ASK, obligations=Obligations(redact=("body.amount",))),))
    async with paying(tmp_path, policy) as (r, outside):
        said, gate = await asked(r)
        content = await backup(tmp_path)
        await r.engine.gates.answer(r.actors["alice"], gate.id, "allow", "k1")
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        [key] = outside.arrived
        assert key != paid_key(said.run.id) and outside.done[key] != CALL["arguments"]["body"], (
            "control: it was taken away"
        )
        async with put_back(r, tmp_path, content):
            await r.turn(said, PATIENCE)
            [row] = await r.store.effects.of_run(said.run.id)
            assert (row.key, row.state, row.arguments["body"]) == (key, EffectState.DONE, outside.done[key])
            assert (dict(outside.arrived), outside.looked) == ({key: 1}, [key])


async def test_what_was_only_intended_in_the_backup_may_have_been_sent_since(tmp_path: Path) -> None:
    """The backup is of the moment between the intent and the commit that says that it goes out. The run is over after the
    restore, and what is recorded of its effect is what the receiver says."""
    async with paying(tmp_path) as (r, outside):
        mark, kept = r.store.effects.mark, []

        async def backed_up(run: RunId, epoch: int, n: int, state: EffectState, *more: Any, **named: Any) -> EffectRow:
            [row] = await r.store.effects.of_run(run)
            assert (row.state, state, row.tries) == (EffectState.INTENDED, EffectState.SENT, 0)
            kept.append(await backup(tmp_path))
            return await mark(run, epoch, n, state, *more, **named)

        r.store.effects.mark = backed_up  # type: ignore[method-assign]
        said = await r.say("alice", "pay")
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        key = paid_key(said.run.id)
        assert (outside.arrived, outside.looked) == ({key: 1}, [])
        async with put_back(r, tmp_path, kept[0]):
            turn = await r.turn(said, PATIENCE)
            assert (turn.state, turn.reason) == (TurnState.FAILED, "incompatible")
            [row] = await r.store.effects.of_run(said.run.id)
            assert (row.state, outside.arrived, outside.looked) == (EffectState.DONE, {key: 1}, [key])


async def test_a_question_about_a_step_of_the_box_is_not_asked_again(tmp_path: Path) -> None:
    """It was answered after the backup, and the command was run: nobody can be asked whether it was."""
    policy = Policy((Rule("shell", Verdict.ASK),))
    async with paying(tmp_path, policy) as (r, _):
        said, gate = await asked(r, text="$ echo x >> log")
        assert (gate.kind, gate.wall) == (GateKind.APPROVAL, False)
        content = await backup(tmp_path)
        await r.engine.gates.answer(r.actors["alice"], gate.id, "allow", "k1")
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        async with put_back(r, tmp_path, content):
            turn = await r.turn(said, PATIENCE)
            assert (turn.state, turn.reason) == (TurnState.FAILED, "incompatible")
            assert (await r.store.gates.get(gate.id)).state is GateState.CANCELLED
            with pytest.raises(Conflict):
                await r.engine.gates.answer(r.actors["alice"], gate.id, "allow", "k2")
            assert (r.box("alice").folder / "log").read_text() == "x\n"


SHELL: dict[str, Any] = {"name": "shell", "arguments": {"command": "while ! test -e go; do sleep 0.02; done"}}
OTHER: dict[str, Any] = {"name": "http.webhook", "arguments": {"name": "pay", "body": {"amount": 6}}}


class Waits(Scripted):
    """ports.Model: wants that call, once it is let go on."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        answers = [{"tool_calls": [call]}, {"text": "paid"}]
        super().__init__(parse_script(json.dumps([{"when": "pay", "answers": answers}])))
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[str], None],
    ) -> ModelReply:
        self.asked.set()
        await self.go_on.wait()
        return await super().generate(messages, tools, on_delta)


@pytest.mark.parametrize("call", [CALL, OTHER], ids=["the same call", "another call"])
async def test_a_step_that_makes_another_call_than_the_one_that_went_out(tmp_path: Path, call: dict[str, Any]) -> None:
    """In the backup the run has no step yet; then its first one paid 5. After the restore the model may want something else
    there: no receiver and no look-up takes it for what was done. The same call is not sent twice."""
    async with paying(tmp_path) as (r, outside):
        first, second = Waits(CALL), Waits(call)
        r.model = first
        await r.restart()
        said = await r.say("alice", "pay")
        async with asyncio.timeout(PATIENCE):
            await first.asked.wait()
        content = await backup(tmp_path)
        first.go_on.set()
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        before, now = paid_key(said.run.id), paid_key(said.run.id, call=call)
        assert (dict(outside.arrived), outside.looked) == ({before: 1}, [])
        r.model = second
        second.go_on.set()
        async with put_back(r, tmp_path, content):
            assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
            assert dict(outside.arrived) == {before: 1, now: 1}
            assert outside.looked == [now], "before anything goes out, about this call and no other"
            assert outside.done[now] == call["arguments"]["body"]
            [row] = await r.store.effects.of_run(said.run.id)
            assert (row.key, row.state, row.tries) == (now, EffectState.DONE, int(call is OTHER))
