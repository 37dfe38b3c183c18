"""Evidence that comes late, and what is on record when it does: in the ledger, in the audit, for a run that is cancelled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.capabilities.webhook import WebhookTool
from ringfence.host.kernel.capabilities import Sending, Sent
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.gates import GateKind, GateState
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.script import parse_script
from ringfence.host.kernel.threads import TurnState
from ringfence.host.models.scripted import Scripted
from ringfence.wire import messages as wire
from tests.support.approving import lost_while_sent
from tests.support.engine_rig import Rig, eventually
from tests.support.fakes import Loop
from tests.support.fakes import parked as idle
from tests.support.paying import ASK, CALL, asked, paid_key, parked, paying
from tests.support.receiver import Receiver
from tests.support.store import newest

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between tries, and between looks."""
    for module in ("capability_asks", "sending"):
        monkeypatch.setattr(f"ringfence.host.engine.{module}.PAUSE", 0.0)


class Crossed(WebhookTool):
    """Two look-ups cross: the first is answered when the second has been, and the second says so only when it is let go on."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.asked = 0
        self.second, self.let_go = asyncio.Event(), asyncio.Event()

    async def look_up(self, sending: Sending) -> Sent:
        self.asked += 1
        number, said = self.asked, await super().look_up(sending)
        if number == 1:
            await self.second.wait()
        if number == 2:
            self.second.set()
            await self.let_go.wait()
        return said


def tool_of(r: Rig) -> Crossed:
    tool = r.with_parts["capabilities"]["http.webhook"]
    assert isinstance(tool, Crossed)
    return tool


async def crossed(
    r: Rig, outside: Receiver, said: Accepted, ends: Callable[[], Awaitable[None]]
) -> asyncio.Future[None]:
    """The first try was not carried out, as two look-ups found; the step has sent the second, which is out, and `ends` still
    has the answer about the first."""
    tool, key = tool_of(r), paid_key(said.run.id)
    await eventually(lambda: tool.asked == 1, "a look-up of the step", PATIENCE)
    outside.behave = "hang_before"
    ending = asyncio.ensure_future(ends())
    await eventually(lambda: outside.arrived[key] == 2, "a second try", PATIENCE)
    tool.let_go.set()
    return ending


async def test_evidence_of_the_first_try_does_not_end_the_second(tmp_path: Path) -> None:
    """The run ends meanwhile (deadline): its own look-up said `not_done`, and by then that is of no try that counts."""

    async def pays(loop: Loop) -> None:
        """And says no more: a reply could end the run before its time does."""
        await loop.ask("step.begin", wire.StepBegin(loop.start["token"], 1, CALL["name"], CALL["arguments"], "host"))
        await idle(loop)

    async with paying(tmp_path, kind=Crossed, script=pays) as (r, outside):
        outside.behave = "fail_before"
        said = await r.say("alice", "pay")

        async def deadline() -> None:
            held = r.engine._live.get(said.run.id)
            assert held is not None
            await r.engine._endings.fail(held.run, "deadline", {"code": "deadline", "message": "its time is over"})

        ending = await crossed(r, outside, said, deadline)
        await asyncio.sleep(0.1)
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, row.tries) == (EffectState.SENT, 2), "it is out"
        outside.gate.set()
        await ending
        turn = await r.turn(said, PATIENCE)
        [row], [step] = await r.store.effects.of_run(said.run.id), await r.store.steps.all(said.run.id)
        assert (turn.state, row.state, (step.result or {})["effect"]) == (TurnState.FAILED, EffectState.DONE, "done")
        assert outside.arrived == {paid_key(said.run.id): 2}


async def test_evidence_of_the_first_try_sends_no_third(tmp_path: Path) -> None:
    """The loop is lost meanwhile, and the run is redriven."""
    async with paying(tmp_path, kind=Crossed) as (r, outside):
        outside.behave = "fail_before"
        said = await r.say("alice", "pay")
        ending = await crossed(r, outside, said, lambda: r.world.kill_box(r.box("alice").id))
        await asyncio.sleep(0.1)
        outside.behave = "ok"
        outside.gate.set()
        await ending
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, outside.arrived) == (EffectState.DONE, {paid_key(said.run.id): 2})


# --- the audit -------------------------------------------------------------------------------------------------------


async def outcomes(r: Rig) -> list[list[str]]:
    """Of each intent, oldest first."""
    intents = [row for row in await newest(r.store.audit, 200) if row["lane"] == "intent" and row["ref"] is None]
    return [[said["details"]["outcome"] for said in await r.store.audit.outcomes(row["id"])] for row in intents]


async def test_the_audit_has_one_outcome_of_an_effect_that_went_well(tmp_path: Path) -> None:
    async with paying(tmp_path) as (r, _):
        await r.turn(await r.say("alice", "pay"), PATIENCE)
        assert await outcomes(r) == [["done"]]


async def test_the_audit_has_the_outcome_that_a_look_up_found(tmp_path: Path) -> None:
    async with paying(tmp_path) as (r, outside):
        said = await lost_while_sent(r, outside, "done")
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert await outcomes(r) == [["done"]]


async def test_the_audit_has_the_outcome_that_a_person_said(tmp_path: Path) -> None:
    async with paying(tmp_path) as (r, outside):
        said = await lost_while_sent(r, outside)
        gate = await parked(r, said)
        await r.engine.gates.answer(r.actors["alice"], gate.id, "done", None)
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert await outcomes(r) == [["unknown", "done"]]


# --- an answer that nothing has used ---------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["queued", "at work"])
async def test_a_cancellation_hears_what_a_person_has_said(tmp_path: Path, when: str) -> None:
    """Acknowledged, and not used yet: the run waits for its turn, or its loop has not asked again."""
    async with paying(tmp_path) as (r, outside):
        said = await lost_while_sent(r, outside)
        gate = await parked(r, said)
        assert gate.kind is GateKind.IN_DOUBT
        r.world.script = idle
        if when == "queued":
            r.engine._work.drain()
        await r.engine.gates.answer(r.actors["alice"], gate.id, "done", None)
        wanted = RunState.QUEUED if when == "queued" else RunState.RUNNING
        await r.until(said.run.id, lambda run: run.state is wanted, PATIENCE)
        await r.engine.runs.cancel(r.actors["alice"], said.run.id)
        assert (await r.turn(said, PATIENCE)).state is TurnState.CANCELLED
        [row], [step] = await r.store.effects.of_run(said.run.id), await r.store.steps.all(said.run.id)
        assert (row.state, (step.result or {})["effect"]) == (EffectState.DONE, "done")
        assert (await r.store.gates.get(gate.id)).state is GateState.USED


# --- a loop that was renewed -----------------------------------------------------------------------------------------


def scripted(calls: list[dict[str, Any]]) -> Scripted:
    """One answer with all of them, then the end."""
    answers = [{"tool_calls": calls}, {"text": "both are done"}]
    return Scripted(parse_script(json.dumps([{"when": "both", "answers": answers}])))


TWO = {"name": "shell", "arguments": {"command": "echo x >> log"}}


@pytest.mark.parametrize("before", [[], [TWO]], ids=["nothing recorded", "a step recorded"])
@pytest.mark.parametrize("renewed", [False, True], ids=["the same loop", "renewed"])
async def test_a_run_that_waited_while_its_loop_was_renewed(
    tmp_path: Path, before: list[dict[str, Any]], renewed: bool
) -> None:
    """It goes on if nothing was recorded after its checkpoint; the step that waits at the gate has not been done."""
    async with paying(tmp_path, ASK) as (r, outside):
        r.model = scripted([*before, CALL])
        await r.restart()
        said, gate = await asked(r, text="both")

        async def upgraded() -> None:
            await r.world.kill_box(r.box("alice").id)
            if renewed:
                r.world.digest = r.driver._digest = "d2"

        await r.restart(upgraded)
        await r.engine.gates.answer(r.actors["alice"], gate.id, "allow", None)
        turn = await r.turn(said, PATIENCE)
        if renewed and before:
            assert (turn.state, turn.reason) == (TurnState.FAILED, "incompatible")
            assert "agent loop is another one" in repr(await r.details("alice"))
            assert not outside.arrived
            assert [row.state for row in await r.store.effects.of_run(said.run.id)] == []
        else:
            assert (turn.state, len(outside.done)) == (TurnState.COMPLETED, 1)
