"""A run that is to be cancelled, as another kernel says it in the store, lets nothing out any more: neither an intent nor a byte."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.gates import GateState
from ringfence.host.kernel.runs import RunState
from tests.support.store import Team, a_team
from tests.support.store_calls import approved, intended, mended


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "control"])
async def test_nothing_is_intended_by_a_run_that_is_to_be_cancelled(team: Team, cancelled: bool) -> None:
    run = await approved(team)
    if cancelled:
        assert (await team.store.runs.cancel(run.id)).state is RunState.RUNNING, "its holder ends it"
        with pytest.raises(Conflict, match="cancelled"):
            await intended(team, run)
    else:
        assert await intended(team, run) is EffectState.INTENDED
    [gate] = await team.store.gates.of_run(run.id)
    assert gate.state is (GateState.ALLOWED if cancelled else GateState.USED)
    assert len(await team.store.effects.of_run(run.id)) == (not cancelled)


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "control"])
async def test_nothing_is_sent_by_a_run_that_is_to_be_cancelled(team: Team, cancelled: bool) -> None:
    run = await mended(team)
    if cancelled:
        await team.store.runs.cancel(run.id)
        with pytest.raises(Conflict, match="cancelled"):
            await team.store.effects.mark(run.id, run.epoch, 1, EffectState.SENT)
    else:
        await team.store.effects.mark(run.id, run.epoch, 1, EffectState.SENT)
    [row] = await team.store.effects.of_run(run.id)
    now = (EffectState.INTENDED, 0, None) if cancelled else (EffectState.SENT, 1, team.clock.now())
    assert (row.state, row.tries, row.sent_at) == now
