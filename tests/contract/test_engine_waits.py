"""Who waits for evidence of what may have gone out: a receiver that never answers holds up its own run alone.

A look is without an end here, so that nothing rests on seconds: whoever waited for it would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.capabilities.webhook import WebhookTool
from ringfence.host.kernel.capabilities import Sending, Sent
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.gates import GateState
from ringfence.host.kernel.policy import Policy
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from tests.support.approving import yes
from tests.support.engine_rig import OPERATOR, Rig, eventually
from tests.support.paying import ALLOW, ASK, asked, paid_key, paying
from tests.support.receiver import Receiver

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.host.engine.doubts.EVIDENCE_SECONDS", None)


class Hanging(WebhookTool):
    """The call arrives, and its answer is not there until it is let go on."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.out, self.let_go = asyncio.Event(), asyncio.Event()

    async def send(self, sending: Sending) -> Sent:
        said = await super().send(sending)
        self.out.set()
        await self.let_go.wait()
        return said


@asynccontextmanager
async def hanging(folder: Path, policy: Policy = ALLOW) -> AsyncIterator[tuple[Rig, Receiver, Hanging]]:
    async with paying(folder, policy, kind=Hanging) as (r, outside):
        tool = r.with_parts["capabilities"]["http.webhook"]
        assert isinstance(tool, Hanging)
        yield r, outside, tool


async def is_out(r: Rig, tool: Hanging) -> Accepted:
    said = await r.say("alice", "pay")
    await asyncio.wait_for(tool.out.wait(), PATIENCE)
    return said


async def is_looked_for(r: Rig, said: Accepted) -> None:
    """Of a run whose box is gone: nothing is decided yet, as the look is under way."""
    held = r.engine._live.get(said.run.id)
    assert held is not None and held.gone
    await eventually(held.deciding.locked, "a decision", PATIENCE)
    [row] = await r.store.effects.of_run(said.run.id)
    assert row.state is EffectState.SENT


async def comes_to_its_end(r: Rig, outside: Receiver, tool: Hanging, said: Accepted) -> None:
    tool.let_go.set()
    assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
    [row] = await r.store.effects.of_run(said.run.id)
    assert (row.state, outside.arrived[paid_key(said.run.id)]) == (EffectState.DONE, 1)


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_box_is_stopped_and_started_while_evidence_is_looked_for(tmp_path: Path, how: str) -> None:
    async with hanging(tmp_path) as (r, outside, tool):
        said = await is_out(r, tool)
        if how == "stopped":
            await asyncio.wait_for(r.engine.boxes.stop(OPERATOR, "default", "alice"), PATIENCE)
        else:
            held = r.engine._live.get(said.run.id)
            await r.world.kill_box(r.box("alice").id)
            await eventually(lambda: held is not None and held.gone, "the loss of the box", PATIENCE)
        await is_looked_for(r, said)
        assert (await asyncio.wait_for(r.exec("alice", "true"), PATIENCE)).code == 0
        await is_looked_for(r, said)
        await comes_to_its_end(r, outside, tool, said)


async def test_a_sweep_does_not_wait_for_evidence(tmp_path: Path) -> None:
    """The gates of others expire meanwhile."""
    async with hanging(tmp_path, ASK) as (r, outside, tool):
        said, gate = await asked(r)
        await yes(r, gate)
        await asyncio.wait_for(tool.out.wait(), PATIENCE)
        other, open_gate = await asked(r, "bob", thread="b")
        held = r.engine._live.get(said.run.id)
        await r.world.kill_box(r.box("alice").id)
        await eventually(lambda: held is not None and held.gone, "the loss of the box", PATIENCE)
        await is_looked_for(r, said)
        await asyncio.sleep(3 * r.config.sweep_seconds)  # one that waits does so by now
        assert open_gate.expires_at is not None
        r.store.onward.hear(open_gate.expires_at)
        assert (await r.turn(other, PATIENCE)).state is TurnState.COMPLETED
        assert (await r.store.gates.get(open_gate.id)).state is GateState.EXPIRED
        await is_looked_for(r, said)
        await comes_to_its_end(r, outside, tool, said)


async def test_leases_are_renewed_while_a_run_that_nobody_works_on_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with hanging(tmp_path) as (r, outside, tool):
        said = await is_out(r, tool)
        held = r.engine._live.get(said.run.id)
        assert held is not None
        r.engine._live.drop(held)  # as when the answer to its claim was lost
        await eventually(lambda: "nobody works on it" in caplog.text, "a stray", PATIENCE)
        renewed, heartbeat = 0, r.store.runs.heartbeat

        async def counted(worker: str) -> Any:
            nonlocal renewed
            renewed += 1
            return await heartbeat(worker)

        monkeypatch.setattr(r.store.runs, "heartbeat", counted)
        await eventually(lambda: renewed > 2, "leases renewed again and again", PATIENCE)
        assert (await r.store.runs.get(said.run.id)).state is RunState.RUNNING
        await comes_to_its_end(r, outside, tool, said)
