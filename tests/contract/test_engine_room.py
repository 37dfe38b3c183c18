"""Room for one more box: caps, the longest idle goes, one at work never does; a host short of memory. On a driver without walls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.errors import Failed, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.caps import Caps, Load
from ringfence.host.kernel.life.rests import DRIFT_IDLE, Rests
from tests.support.clocks import HandClock
from tests.support.databases import outside
from tests.support.engine_rig import OPERATOR, Rig, eventually, rig

NEVER = Rests(0, 0, 0, 0, 0)
PEOPLE = ("alice", "bob", "carol", "dave")


async def _observed(r: Rig) -> list[str]:
    boxes = await r.engine.boxes.list(OPERATOR, None)
    return [next(box.observed for box in boxes if box.user == name) for name in r.actors]


async def _at_work(r: Rig, name: str, pipe: Path) -> asyncio.Task[object]:
    await r.exec(name, f"mkfifo {pipe}")
    task: asyncio.Task[object] = asyncio.create_task(r.exec(name, f"read line < {pipe}"))
    await eventually(lambda: len(r.box(name).commands) == 1)
    return task


async def _release(pipe: Path, task: asyncio.Task[object]) -> None:
    await (await asyncio.create_subprocess_shell(f"echo on > {pipe}")).wait()
    await task


async def test_the_longest_idle_makes_room(tmp_path: Path) -> None:
    async with rig(tmp_path, PEOPLE, rests=NEVER, caps=Caps(most=3, memory_low_percent=0)) as r:
        for name in PEOPLE[:3]:
            await r.exec(name, "true")
        await r.exec("alice", "true")  # used again: bob is the longest idle one
        await r.exec("dave", "true")
        assert await _observed(r) == ["running", "stopped", "running", "running"]
        await r.engine.life.pause(OPERATOR, "default", "carol")  # a paused one counts, and goes
        await r.exec("bob", "true")
        assert await _observed(r) == ["running", "running", "stopped", "running"]


async def test_one_at_work_never_goes_and_who_waits_is_served_in_turn(tmp_path: Path) -> None:
    async with rig(tmp_path, PEOPLE, rests=NEVER, caps=Caps(most=2, wait_seconds=30, memory_low_percent=0)) as r:
        works = [await _at_work(r, name, tmp_path / name) for name in PEOPLE[:2]]
        order: list[str] = []

        async def wants(name: str) -> None:
            await r.exec(name, "true")
            order.append(name)

        waiting = [asyncio.create_task(wants("carol"))]
        await eventually(lambda: len(r.engine._bringup.admission._waiting) == 1)
        waiting.append(asyncio.create_task(wants("dave")))
        await eventually(lambda: len(r.engine._bringup.admission._waiting) == 2)
        assert await _observed(r) == ["running", "running", "stopped", "stopped"]
        await _release(tmp_path / "alice", works[0])
        await asyncio.gather(*waiting)
        assert order == ["carol", "dave"]
        assert (await _observed(r))[1] == "running"  # bob works
        await _release(tmp_path / "bob", works[1])


async def test_who_finds_no_room_is_told_what_keeps_it(tmp_path: Path) -> None:
    async with rig(tmp_path, PEOPLE, rests=NEVER, caps=Caps(most_tenant=1, wait_seconds=0, memory_low_percent=0)) as r:
        work = await _at_work(r, "alice", tmp_path / "pipe")
        with pytest.raises(Unavailable, match=r"1 boxes of the tenant run.*at work") as refused:
            await r.exec("bob", "true")
        assert "try again" in refused.value.remedy
        await r.store.tenants.add("other")
        await r.engine.people.user_add(OPERATOR, "other", "erin")
        assert (
            await r.engine.boxes.start(OPERATOR, "other", "erin")
        ).observed == "running"  # another tenant has its own
        await _release(tmp_path / "pipe", work)
        await r.exec("bob", "true")
        assert r.engine._bringup.admission._starting == {}


async def test_a_start_that_fails_leaves_its_place(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER, caps=Caps(most=1, wait_seconds=0, memory_low_percent=0)) as r:
        r.world.fail_start = [Unavailable("no")]
        with pytest.raises(Unavailable, match="no"):
            await r.exec("alice", "true")
        assert (await r.exec("bob", "true")).code == 0


async def test_after_a_restart_what_runs_counts(tmp_path: Path) -> None:
    async with rig(tmp_path, PEOPLE, rests=NEVER, caps=Caps(most=2, wait_seconds=0, memory_low_percent=0)) as r:
        await r.exec("alice", "true")
        await r.exec("bob", "true")
        await r.restart()
        await r.exec("carol", "true")
        assert sorted(await _observed(r)) == ["running", "running", "stopped", "stopped"]


async def test_a_host_short_of_memory(tmp_path: Path) -> None:
    """Idle boxes go, one at each look; none starts while there is nobody to stop; one at work goes on."""
    left = [50.0]
    parts = {"load": lambda: Load(memory_left=left[0])}
    caps = Caps(wait_seconds=0, memory_low_percent=10)
    async with rig(tmp_path, PEOPLE, parts=parts, rests=NEVER, caps=caps, rest_seconds=3600) as r:
        for name in PEOPLE[:2]:
            await r.exec(name, "true")
        work = await _at_work(r, "carol", tmp_path / "pipe")
        left[0] = 9.0
        await r.engine._idle.look()
        assert await _observed(r) == ["stopped", "running", "running", "stopped"]
        await r.engine._idle.look()
        await r.engine._idle.look()
        assert await _observed(r) == ["stopped", "stopped", "running", "stopped"]
        with pytest.raises(Unavailable, match=r"9\.0 % of the host's memory"):
            await r.exec("dave", "true")
        left[0] = 50.0
        assert (await r.exec("dave", "true")).code == 0
        await _release(tmp_path / "pipe", work)


async def test_what_has_drifted_is_recycled_when_it_is_idle(tmp_path: Path) -> None:
    """And not by a restart of the server alone; one at work goes on as it is."""
    async with rig(tmp_path, rests=NEVER, rest_seconds=3600) as r:
        clock = HandClock()
        r.with_parts["clock"] = clock
        await r.restart()
        await r.exec("alice", "true")
        work = await _at_work(r, "bob", tmp_path / "pipe")
        clock.pass_seconds(DRIFT_IDLE + 1)
        await r.restart()
        await r.engine._idle.look()
        assert await _observed(r) == ["running", "running"]
        r.driver._digest = "d2"
        await r.restart()
        clock.pass_seconds(DRIFT_IDLE + 1)
        await r.engine._idle.look()
        assert await _observed(r) == ["stopped", "running"]
        assert not work.done()
        view, drifted = await r.engine.life.upgrade(OPERATOR, "default", "alice")
        assert (view.observed, drifted) == ("stopped", ["guest"])  # its next start is as it is to be
        await r.exec("alice", "true")
        assert (await r.engine.life.upgrade(OPERATOR, "default", "alice"))[1] == []
        assert await r.engine.boxes.set_limits(OPERATOR, "default", "alice", {"nofile": Limits().nofile - 1})
        view, drifted = await r.engine.life.upgrade(OPERATOR, "default", "alice")
        assert (view.generation, drifted) == (3, ["limits"])
        await (await asyncio.create_subprocess_shell(f"echo on > {tmp_path / 'pipe'}")).wait()
        work.cancel()


@pytest.mark.parametrize("noted", [None, {"busy": False}])
async def test_what_an_older_release_started_is_started_anew_by_an_upgrade(
    tmp_path: Path, noted: dict[str, object] | None
) -> None:
    """Its row does not say what that was, also once something else was noted there. Control: by this release, nothing is to be done."""
    async with rig(tmp_path, rests=NEVER, rest_seconds=3600) as r:
        await r.exec("alice", "true")
        assert (await r.engine.life.upgrade(OPERATOR, "default", "alice"))[1] == []
        outside(tmp_path, "UPDATE boxes SET made_of = NULL WHERE id = ?", r.box("alice").id)
        if noted is not None:
            await r.store.boxes.update(r.box("alice").id, made_of=noted)
        view, drifted = await r.engine.life.upgrade(OPERATOR, "default", "alice")
        assert (view.generation, drifted) == (2, ["start"])


async def test_a_tenant_that_waits_for_its_own_room_holds_up_nobody_else(tmp_path: Path) -> None:
    caps = Caps(most=10, most_tenant=1, wait_seconds=30, memory_low_percent=0)
    async with rig(tmp_path, PEOPLE, rests=NEVER, caps=caps) as r:
        work = await _at_work(r, "alice", tmp_path / "pipe")
        waiting = asyncio.create_task(r.exec("bob", "true"))
        await eventually(lambda: len(r.engine._bringup.admission._waiting) == 1)
        await r.store.tenants.add("other")
        await r.engine.people.user_add(OPERATOR, "other", "erin")
        assert (await r.engine.boxes.start(OPERATOR, "other", "erin")).observed == "running"
        assert not waiting.done()
        await _release(tmp_path / "pipe", work)
        assert (await waiting).code == 0


async def test_a_box_in_quarantine_makes_no_room(tmp_path: Path) -> None:
    async with rig(tmp_path, PEOPLE, rests=NEVER, caps=Caps(most=2, wait_seconds=0, memory_low_percent=0)) as r:
        await r.exec("alice", "true")
        await r.engine.life.quarantine(OPERATOR, "default", "alice", "odd")
        await r.exec("bob", "true")
        await r.exec("carol", "true")
        assert await _observed(r) == ["paused", "stopped", "running", "stopped"]


async def test_one_that_cannot_be_stopped_is_in_nobodys_way(tmp_path: Path) -> None:
    parts = {"load": lambda: Load(memory_left=1.0)}
    never = Caps(wait_seconds=0, memory_low_percent=0)
    async with rig(tmp_path, PEOPLE, parts=parts, rests=NEVER, caps=never, rest_seconds=3600) as r:
        for name in PEOPLE[:2]:
            await r.exec(name, "true")
        stop, stuck = r.driver.stop, r.box("alice").id

        async def stops(box: BoxId) -> None:
            if box == stuck:
                raise Failed("it does not end")
            await stop(box)

        r.driver.stop = stops  # type: ignore[method-assign]
        object.__setattr__(r.engine._parts.config, "caps", Caps(wait_seconds=0, memory_low_percent=10))
        await r.engine._idle.look()
        assert (await _observed(r))[1] == "stopped"
        r.driver.stop = stop  # type: ignore[method-assign]
