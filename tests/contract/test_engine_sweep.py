"""The sweep, when something is broken: what cannot be decided is in nobody's way, and a loop that has ended makes health red."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.capabilities.webhook import WebhookTool
from ringfence.host.kernel.capabilities import Sending, Sent
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.gates import GateKind, GateState
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from tests.support.databases import outside as somebody_else
from tests.support.engine_rig import OPERATOR, Rig, eventually, rig
from tests.support.paying import ASK, asked, parked, paying

PATIENCE = 30.0


class Broken(WebhookTool):
    """A tool that raises what no tool may."""

    where = "both"

    async def send(self, sending: Sending) -> Sent:
        if self.where == "both":
            raise ZeroDivisionError("canary")
        return await super().send(sending)

    async def look_up(self, sending: Sending) -> Sent:
        raise ZeroDivisionError("canary")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.host.engine.sending.PAUSE", 0.0)


async def test_a_tool_that_breaks_is_an_answer_like_none(tmp_path: Path) -> None:
    """It may have done anything: a person is asked, and the server goes on for everybody else."""
    async with paying(tmp_path, kind=Broken) as (r, _):
        said, gate = await asked(r)
        assert gate.kind is GateKind.IN_DOUBT
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, "canary" in repr(row.outcome)) == (EffectState.UNKNOWN, False)


async def test_a_look_up_that_breaks_does_not_end_the_sweep(tmp_path: Path) -> None:
    """The box dies while the call is out; nothing can be found out. The run is asked about, and other runs are redriven."""
    async with paying(tmp_path, kind=Broken) as (r, outside):
        r.with_parts["capabilities"]["http.webhook"].where = "look_up"
        outside.behave = "hang_after"
        said = await r.say("alice", "pay")
        await asyncio.wait_for(outside.seen.wait(), PATIENCE)
        await r.restart(lambda: r.world.kill_box(r.box("alice").id))
        assert (await parked(r, said)).kind is GateKind.IN_DOUBT
        assert (await r.engine.health.status(OPERATOR))["parts"]["scheduler"]["ok"]


async def test_a_gate_that_cannot_be_read_holds_up_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with paying(tmp_path, ASK) as (r, _):
        (_, bad), (said, good) = await asked(r), await asked(r, "bob", thread="b")
        somebody_else(tmp_path, "UPDATE gates SET obligations = '{' WHERE id = ?", bad.id)
        await r.engine.stop()
        later = (await r.store.gates.get(good.id)).expires_at
        assert later is not None
        r.store.onward.hear(later)
        await r.restart()
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert (await r.store.gates.get(good.id)).state is GateState.EXPIRED
        await asyncio.sleep(5 * r.config.sweep_seconds)
        told = [one for one in caplog.messages if one.startswith("sweep:") and bad.id in one]
        assert len(told) == 1, "once, and not at each sweep"


async def test_runs_that_cannot_be_decided_hold_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than are taken at once, and all in front."""
    monkeypatch.setattr("ringfence.host.engine.sweep._AT_ONCE", 2)
    async with paying(tmp_path) as (r, outside):
        outside.behave, outside.says = "hang_after", "done"
        runs = [await r.say("bob", "pay", thread=f"t{n}") for n in range(3)]
        await eventually(lambda: len(outside.done) == 3, "all are out", PATIENCE)
        runs.append(await r.say("alice", "pay"))
        await eventually(lambda: len(outside.done) == 4, "the last one is out", PATIENCE)

        async def down() -> None:
            for name in ("alice", "bob"):
                await r.world.kill_box(r.box(name).id)
            for each in runs[:-1]:
                somebody_else(tmp_path, "UPDATE effects SET arguments = '{' WHERE run = ?", each.run.id)

        await r.restart(down)
        outside.gate.set()
        assert (await r.turn(runs[-1], PATIENCE)).state is TurnState.COMPLETED
        assert {(await r.store.runs.get(each.run.id)).state for each in runs[:-1]} == {RunState.RUNNING}


async def test_a_loop_of_the_server_that_ends_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def falls(_: Any) -> None:
        raise ZeroDivisionError("canary")

    monkeypatch.setattr("ringfence.host.engine.sweep.Sweep.once", falls)
    async with rig(tmp_path) as r:
        await eventually(lambda: r.engine._crew.fallen, "a fallen loop", PATIENCE)
        scheduler = await _scheduler(r)
        assert scheduler["ok"] is False
        assert "sweep has ended (ZeroDivisionError: canary)" in scheduler["error"]


async def test_a_server_whose_loops_work_is_well(tmp_path: Path) -> None:
    """The control."""
    async with rig(tmp_path) as r:
        await asyncio.sleep(3 * r.config.sweep_seconds)
        assert (await _scheduler(r))["ok"]


async def _scheduler(r: Rig) -> dict[str, Any]:
    status = await r.engine.health.status(OPERATOR)
    return dict(status["parts"]["scheduler"])
