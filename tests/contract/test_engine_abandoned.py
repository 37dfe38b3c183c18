"""What the engine says and does of a run whose installation is gone, where several share a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import RunState
from ringfence.host.store.store import open_store
from tests.support.databases import address, outside
from tests.support.engine_rig import OPERATOR, Numbers, RealClock, Rig, rig

pytestmark = pytest.mark.postgresql
GONE = "its server (installation gone) has not been heard of at all"


async def left_behind(r: Rig, folder: Path) -> RunId:
    """A run of alice on an installation that is gone; another message of hers waits behind it."""
    outside(folder, "UPDATE boxes SET installation = 'gone' WHERE id = ?", r.box("alice").id)
    ids = Numbers()
    ids._last = 1 << 40
    there = await open_store(address(folder), RealClock(), ids, installation="gone")
    try:
        said = await r.say("alice", "$ true")
        await r.say("alice", "$ true")
        [run] = await there.runs.claim("w-gone", 8, lambda run: f"hash of {run}")
    finally:
        await there.close()
    assert run.id == said.run.id
    return run.id


@pytest.mark.parametrize("by", ["cancel", "sweep"])
async def test_who_asks_is_told_and_a_cancel_frees_the_lane(tmp_path: Path, by: str) -> None:
    async with rig(tmp_path) as r:
        run, alice = await left_behind(r, tmp_path), r.actors["alice"]
        assert (await r.engine.runs.show(alice, run)).detail == "", "control: its lease is not over"
        assert (await r.engine.health.status(OPERATOR))["parts"]["queue"]["ok"]
        outside(tmp_path, "UPDATE runs SET lease_until = '1970-01-01 00:00:00+00' WHERE id = ?", run)
        assert (await r.engine.runs.show(alice, run)).detail == GONE
        assert [view.detail for view in await r.engine.runs.list(alice, "default", 8)] == ["", GONE]
        status = await r.engine.health.status(OPERATOR)
        queue = status["parts"]["queue"]
        assert (status["ok"], queue["ok"]) == (False, False)
        assert queue["problem"] == f"others wait behind run {run}: {GONE}; start it, or: ringfence run cancel {run}"
        if by == "cancel":
            assert (await r.engine.runs.cancel(alice, run)).state is RunState.CANCELLED
        else:
            outside(tmp_path, "UPDATE runs SET cancel_requested = true WHERE id = ?", run)
            assert (await r.ended(run)).state is RunState.CANCELLED
        assert (await r.engine.runs.show(alice, run)).detail == ""
        assert (await r.engine.health.status(OPERATOR))["parts"]["queue"]["ok"]
