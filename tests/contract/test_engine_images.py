"""Which image boxes are started with: bound by their first start, moved by `upgrade` alone, back where they were when that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import Failed, Invalid, NotFound, Unavailable
from ringfence.host.kernel.life.rests import DRIFT_IDLE, Rests
from tests.support.clocks import HandClock
from tests.support.engine_rig import OPERATOR, Rig, rig

OLD, NEW = f"tree:{'1' * 32}", f"tree:{'2' * 32}"
NEVER = Rests(pause_after=0, stop_after=0)


async def row(r: Rig, user: str = "alice") -> Box:
    whose = await r.store.users.get("default", user)
    return await r.store.boxes.home_of(whose, r.driver.name, r.config.limits)


async def has(r: Rig, user: str = "alice") -> str:
    """What its box was started with last."""
    return r.world.box((await row(r, user)).id).image


async def upgrade(r: Rig, image: str | None = None, user: str = "alice", **options: Any) -> list[str]:
    return (await r.engine.life.upgrade(OPERATOR, "default", user, image=image, **options))[1]


async def test_a_name_that_moves_moves_no_box_until_it_is_upgraded(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER, image="debian") as r:
        r.world.images = {"debian": OLD}
        await r.exec("alice", "true")
        assert await has(r) == OLD == (await row(r)).image_bound
        r.world.images = {"debian": NEW, "former": OLD}
        await r.engine.boxes.stop(OPERATOR, "default", "alice")
        await r.exec("alice", "true")
        await r.exec("bob", "true")
        assert (await has(r), await has(r, "bob")) == (OLD, NEW)
        view, drifted = await r.engine.life.upgrade(OPERATOR, "default", "alice")
        assert drifted == ["image"] and (view.observed, view.image, view.image_wanted) == ("running", NEW, "")
        assert await has(r) == NEW
        assert await upgrade(r) == []
        assert await upgrade(r, "host") == ["image"] and await has(r) == "host"
        assert await upgrade(r, "default") == ["image"] and await has(r) == NEW


async def test_a_box_that_does_not_run_is_bound_at_once_and_started_with_it(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        r.world.images = {"debian": OLD}
        await upgrade(r, "debian")
        assert (await row(r)).image_bound == OLD
        assert not any(each.running for each in r.world.boxes.values())
        await r.exec("alice", "true")
        assert await has(r) == OLD


async def test_an_idle_look_recycles_no_box_for_a_name_that_moved(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER, rest_seconds=3600, image="debian") as r:
        clock = HandClock()
        r.with_parts["clock"] = clock
        r.world.images = {"debian": OLD}
        await r.restart()
        await r.exec("alice", "true")
        r.world.images = {"debian": NEW, "former": OLD}
        clock.pass_seconds(DRIFT_IDLE + 1)
        await r.restart()
        clock.pass_seconds(DRIFT_IDLE + 1)
        await r.engine._idle.look()
        assert r.world.box((await row(r)).id).running


async def test_a_box_that_does_not_come_up_goes_on_with_what_it_had(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        r.world.images, r.world.broken_images = {"debian": OLD, "next": NEW}, {NEW}
        await r.exec("alice", "true")
        await upgrade(r, "debian")
        for before in (OLD, "host"):
            with pytest.raises(Failed, match=f"does not come up on image {NEW}.*goes on with {before}"):
                await upgrade(r, "next")
            now = await row(r)
            assert (now.image_bound, await has(r)) == (before, before)
            assert r.world.box(now.id).running
            await upgrade(r, "host")
        assert (await row(r)).image_wanted == "host"


async def test_an_image_that_is_gone_is_said_and_nothing_takes_its_place(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER, image="debian") as r:
        with pytest.raises(Unavailable, match="no image 'debian'") as unbound:
            await r.engine.boxes.start(OPERATOR, "default", "bob")
        assert unbound.value.remedy is not None and "image build" in unbound.value.remedy
        r.world.images = {"debian": OLD}
        await r.exec("alice", "true")
        await r.engine.boxes.stop(OPERATOR, "default", "alice")
        r.world.images = {"debian": NEW}
        with pytest.raises(Unavailable, match=f"no image {OLD}"):
            await r.engine.boxes.start(OPERATOR, "default", "alice")
        assert (await row(r)).image_bound == OLD
        await upgrade(r)
        assert (await r.engine.boxes.start(OPERATOR, "default", "alice")).observed == "running"
        assert await has(r) == NEW


async def test_what_is_no_image_changes_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        before = await row(r)
        for image in ("", "../x", "a/b", "tree:1", "Ä", "a" * 64, f"tree:{'g' * 32}", "x\0"):
            with pytest.raises(Invalid, match="is no image"):
                await upgrade(r, image)
        for image in (NEW, "unknown"):
            with pytest.raises(NotFound):
                await upgrade(r, image)
        now = await row(r)
        assert (now.image_wanted, now.image_bound, now.identity) == ("", "host", before.identity)


async def test_an_upgrade_of_a_box_that_is_being_started_is_not_lost(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        r.world.images = {"a": OLD, "b": NEW}
        await upgrade(r, "a")
        begins, goes_on, start = asyncio.Event(), asyncio.Event(), r.driver.start

        async def held(*given: Any) -> Any:
            begins.set()
            await goes_on.wait()
            return await start(*given)

        r.driver.start = held  # type: ignore[method-assign, assignment]
        starting = asyncio.create_task(r.engine.boxes.start(OPERATOR, "default", "alice"))
        await begins.wait()
        upgrading = asyncio.create_task(upgrade(r, "b"))
        await asyncio.sleep(0.1)  # it may go wrong only when it comes before the start's end
        goes_on.set()
        await starting
        assert await upgrading == ["image"]
        assert (await has(r), (await row(r)).image_bound) == (NEW, NEW)


async def test_what_is_not_the_images_fault_takes_no_image_back(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        r.world.images = {"a": OLD, "b": NEW}
        await upgrade(r, "a")
        await r.exec("alice", "true")
        r.world.fail_start = [Unavailable("no process is left for another box")]
        with pytest.raises(Unavailable, match="no process is left"):
            await upgrade(r, "b")
        assert (await r.exec("alice", "true")).code == 0 and await has(r) == NEW
