"""A kernel process says that it is there, that it has gone, and what waits in its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.engine import upkeep
from ringfence.host.kernel.errors import DiskFull
from ringfence.host.store.kernels import kernels_of
from tests.support.databases import is_postgres, outside
from tests.support.engine_rig import CONFIG, OPERATOR, eventually, rig
from tests.support.store import a_team


async def test_hello_and_bye(tmp_path: Path) -> None:
    async with rig(tmp_path, people=()) as r:
        [first] = await r.store._database.read(kernels_of)
        assert (first.installation, first.ended_at) == (CONFIG.installation, None)
        await r.restart()
        assert {kernel.worker: kernel.ended_at is None for kernel in await r.store._database.read(kernels_of)} == {
            first.worker: False,
            r.engine._parts.worker: True,
        }


async def test_status_says_what_the_store_is_and_what_waits(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for text, state, reason in (("one", "failed", "retries_exhausted"), ("two", "failed", "diverged")):
            said = await r.say("alice", f"$ echo {text}")
            await r.turn(said)
            outside(tmp_path, "UPDATE runs SET state = ?, reason = ? WHERE id = ?", state, reason, said.run.id)
        waiting = await r.say("alice", "$ echo three")
        await r.turn(waiting)
        outside(tmp_path, "UPDATE runs SET state = 'parked', ended_at = NULL WHERE id = ?", waiting.run.id)
        parts = (await r.engine.health.status(OPERATOR))["parts"]
        store = parts["store"]
        kind, kept = ("postgresql", "none") if is_postgres(tmp_path) else ("sqlite", "kept")
        assert "error" not in parts["scheduler"], "nothing is wrong, and no field is blank"
        assert (store["kind"], store["generation"], store["kernels"], store["reserve"]) == (kind, 1, 1, kept)
        assert parts["queue"] == {"ok": True, "queued": 0, "oldest_seconds": 0, "parked": 1, "dead_letters": 1}
        assert parts["audit"]["ok"]
        theirs = await r.engine.health.status(r.actors["alice"])
        assert "queue" not in theirs["parts"], "of all tenants: for operators"


async def test_what_waits_is_counted(tmp_path: Path) -> None:
    async with a_team(tmp_path) as team:
        nothing = await team.store.reads.backlog()
        assert (nothing.queued, nothing.queued_since, nothing.parked, nothing.dead) == (0, None, 0, 0)
        await team.running()
        first = await team.say("waits")
        team.clock.pass_seconds(60)
        await team.say("waits too")
        found = await team.store.reads.backlog()
        assert (found.queued, found.queued_since, found.parked, found.dead) == (2, first.run.created_at, 0, 0)


async def test_each_duty_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full volume nobody can say hello; what makes room is done nevertheless."""
    monkeypatch.setattr(upkeep, "HELLO_EVERY_SECONDS", 0.0)
    async with rig(tmp_path, upkeep_seconds=0.01) as r:
        await r.turn(await r.say("alice", "hello", key="k"))
        tried: list[str] = []

        async def full(worker: str, version: str, installation: str) -> None:
            tried.append(worker)
            raise DiskFull("no space left")

        monkeypatch.setattr(r.store.kernels, "hello", full)
        await eventually(lambda: len(tried) > 1, "a turn of upkeep without a hello")
        assert outside(tmp_path, "SELECT key FROM idempotency") == [("k",)]
        outside(tmp_path, "UPDATE idempotency SET created_at = '2020-01-01 00:00:00.000000'")
        await eventually(lambda: not outside(tmp_path, "SELECT key FROM idempotency"), "the sweep")
