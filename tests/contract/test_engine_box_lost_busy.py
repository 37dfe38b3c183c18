"""A box that goes away while the store takes nothing: its run is redriven all the same, once the store does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.boxes import Observed
from ringfence.host.kernel.errors import RingfenceError, Unavailable
from tests.support.engine_rig import OPERATOR, Rig, RunState, rig
from tests.support.fakes import Loop, native


async def at_work_once(loop: Loop) -> None:
    """The first attempt never comes to an end by itself."""
    if loop.box.starts == 1:
        await asyncio.get_running_loop().create_future()
    await native(loop)


def refuse(r: Rig, monkeypatch: pytest.MonkeyPatch, observed: Observed) -> list[Observed]:
    """The store takes the news that a box is `observed` not once."""
    update = r.store.boxes.update
    refused: list[Observed] = []

    async def busy(box: Any, **values: Any) -> Any:
        if values.get("observed") is observed and not refused:
            refused.append(observed)
            raise Unavailable("another process kept the database locked")
        return await update(box, **values)

    monkeypatch.setattr(r.store.boxes, "update", busy)
    return refused


async def test_a_box_that_is_lost_under_a_busy_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path, script=at_work_once) as r:
        said = await r.say("alice", "hello")
        await r.loop(said)
        refused = refuse(r, monkeypatch, Observed.LOST)
        await r.world.kill_box(r.box("alice").id)
        assert (await r.ended(said.run.id, 30.0)).state is RunState.COMPLETED
        assert refused


async def test_a_box_that_is_stopped_under_a_busy_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path, script=at_work_once) as r:
        said = await r.say("alice", "hello")
        await r.loop(said)
        refused = refuse(r, monkeypatch, Observed.STOPPED)
        with pytest.raises(RingfenceError, match="locked"):
            await r.engine.boxes.stop(OPERATOR, "default", "alice")
        assert (await r.ended(said.run.id, 30.0)).state is RunState.COMPLETED
        assert refused
