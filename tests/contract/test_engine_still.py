"""What PID 1 is told of a pause: by whom, how much, once. On a driver without walls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Conflict, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.rests import Rests
from tests.support.clocks import HandClock
from tests.support.engine_rig import OPERATOR, Rig, rig
from tests.support.fakes import Script, parked

NEVER = Rests(0, 0, 0, 0, 0)


@asynccontextmanager
async def _rig(folder: Path, script: Script | None = None) -> AsyncIterator[tuple[Rig, HandClock]]:
    """Alice's box runs; time passes by hand, the store's too."""
    async with rig(folder, people=("alice",), script=script, rests=NEVER) as r:
        clock = HandClock()
        r.with_parts["clock"] = clock
        await r.restart()
        await r.exec("alice", "true")
        yield r, clock


async def _paused(r: Rig) -> None:
    await r.engine.life.pause(OPERATOR, "default", "alice")


async def _resumed(r: Rig) -> None:
    assert (await r.engine.life.resume(OPERATOR, "default", "alice")).observed == "running"


async def test_each_pause_is_told_with_its_length(tmp_path: Path) -> None:
    async with _rig(tmp_path) as (r, clock):
        for seconds in (90, 5):
            await _paused(r)
            assert r.box("alice").pardoned
            clock.pass_seconds(seconds)
            assert (await r.exec("alice", "true")).code == 0  # the next use tells it as well
            clock.pass_seconds(7)
        assert list(r.box("alice").pauses.values()) == [90, 5]
        assert not r.box("alice").pardoned
        await _resumed(r)  # it runs
        assert len(r.box("alice").pauses) == 2


async def test_it_is_there_before_the_box_goes_on(tmp_path: Path) -> None:
    """A thaw that fails leaves it told; and told again it is the same pause, only longer."""
    async with _rig(tmp_path) as (r, clock):
        await _paused(r)
        clock.pass_seconds(30)
        thaw = r.driver.thaw

        async def fails(box: object) -> None:
            assert list(r.box("alice").pauses.values()) == [30]
            r.driver.thaw = thaw  # type: ignore[method-assign]
            raise Unavailable("not now")

        r.driver.thaw = fails  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await r.engine.life.resume(OPERATOR, "default", "alice")
        clock.pass_seconds(10)
        await _resumed(r)
        assert list(r.box("alice").pauses.values()) == [40]


async def test_the_next_server_tells_it_by_the_row(tmp_path: Path) -> None:
    """F12: killed before it resumed."""
    async with _rig(tmp_path) as (r, clock):
        clock.jump(await _store_ahead(r, clock))
        await _paused(r)
        clock.pass_seconds(60)
        clock.jump(timedelta(0))
        await r.restart()
        assert r.box("alice").pauses == {}
        clock.pass_seconds(30)
        await _resumed(r)
        [seconds] = r.box("alice").pauses.values()
        assert seconds == pytest.approx(90, abs=5)


async def _store_ahead(r: Rig, clock: HandClock) -> timedelta:
    """The store's clock is the real one: the hand's wall is set by it."""
    box = (await r.store.boxes.all())[0]
    assert box.last_active_at is not None or box.started_at is not None
    return (box.started_at or clock.now()) - clock.now()


@pytest.mark.parametrize("back", [timedelta(hours=1), timedelta(days=4000)])
async def test_a_clock_that_was_turned_back_is_no_pause(tmp_path: Path, back: timedelta) -> None:
    async with _rig(tmp_path) as (r, clock):
        clock.jump(await _store_ahead(r, clock))
        await _paused(r)
        clock.jump(-back)
        await r.restart()
        await _resumed(r)
        assert list(r.box("alice").pauses.values()) == [0]


async def test_a_wire_that_broke_meanwhile(tmp_path: Path) -> None:
    async with _rig(tmp_path) as (r, clock):
        await _paused(r)
        r.world.lose_wire(r.box("alice").id)
        clock.pass_seconds(20)
        await _resumed(r)
        assert list(r.box("alice").pauses.values()) == [20]
        assert (await r.exec("alice", "true")).code == 0


async def test_a_pause_that_fails_after_the_freeze_is_told_too(tmp_path: Path) -> None:
    async with _rig(tmp_path) as (r, clock):
        update = r.store.boxes.update

        async def fails(box: object, **changes: object) -> object:
            if changes.get("rest"):
                clock.pass_seconds(12)
                r.store.boxes.update = update  # type: ignore[method-assign]
                raise Unavailable("the database is away")
            return await update(box, **changes)  # type: ignore[arg-type]

        thaw, there = r.driver.thaw, list[float]()

        async def seen(box: BoxId) -> None:
            there.extend(r.box("alice").pauses.values())
            await thaw(box)

        r.store.boxes.update = fails  # type: ignore[method-assign,assignment]
        r.driver.thaw = seen  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await _paused(r)
        assert there == list(r.box("alice").pauses.values()) == [12]
        assert (await r.exec("alice", "true")).code == 0


async def test_what_was_never_frozen_is_told_nothing(tmp_path: Path) -> None:
    async with _rig(tmp_path) as (r, clock):
        await _paused(r)
        await _resumed(r)
        r.box("alice").pauses.clear()
        clock.pass_seconds(50)
        r.world.fail_freeze = [Unavailable("this host cannot freeze")]
        with pytest.raises(Unavailable):
            await _paused(r)
        assert sum(r.box("alice").pauses.values()) == 0


async def test_nor_is_what_was_refused(tmp_path: Path) -> None:
    """After a pause that was one."""
    async with _rig(tmp_path, parked) as (r, clock):
        await _paused(r)
        clock.pass_seconds(5)
        await _resumed(r)
        said = await r.say("alice", "work")
        await r.loop(said)
        clock.pass_seconds(50)
        with pytest.raises(Conflict, match=said.run.id):
            await _paused(r)
        assert list(r.box("alice").pauses.values()) == [5]
