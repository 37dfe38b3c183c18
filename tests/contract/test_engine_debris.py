"""The engine's half of a sweep: what the store says of what a driver found, over a driver that holds still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine.life import debris
from ringfence.host.kernel.boxes import BoxKind, Desired, Observed
from ringfence.host.kernel.errors import Invalid, NotFound, Refused
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.debris import Deed, Found, Left, Seen
from ringfence.host.kernel.ports import Sight
from tests.support.engine_rig import OPERATOR, Rig, eventually, rig
from tests.support.fake_driver import FakeDriver
from tests.support.store import newest

STRAY = BoxId("s" * 16)
GONE = Sight(Observed.ABSENT, None, 0, 0, 0, 0, 0, 0)


class Forgetful(FakeDriver):
    """Says of a box that it does not have that it is absent, as the real one does; counts looks."""

    looks = 0

    async def debris(self) -> Seen:
        self.looks += 1
        return await super().debris()

    async def observe(self, box: BoxId) -> Sight:
        return await super().observe(box) if box in self._world.boxes else GONE


@asynccontextmanager
async def scene(folder: Path, **config: Any) -> AsyncIterator[Rig]:
    async with rig(folder, **config) as r:
        await started(r, Forgetful(r.world))
        yield r


async def started(r: Rig, driver: Forgetful) -> None:
    """Anew, and the sweep of the start is over."""
    r.driver = driver
    await r.restart()
    await eventually(lambda: driver.looks == 1 and not r.engine.debris._one.locked())


async def sweep(r: Rig, *, dry_run: bool = False, boxes: tuple[str, ...] = ()) -> list[Found]:
    report = await r.engine.debris.sweep(OPERATOR, dry_run=dry_run, boxes=boxes)
    assert report.dry_run is dry_run
    return report.found


def left(box: str | None, kind: str = "cgroup", **fields: Any) -> Left:
    return Left(kind, BoxId(box) if box else None, "what", "why", **fields)


async def recorded(r: Rig) -> list[dict[str, Any]]:
    return [row for row in await newest(r.store.audit, 1000) if row["action"] in ("sweep", "sweep.removed")]


async def test_what_a_driver_found_is_taken_away_with_its_owner_told_and_recorded(tmp_path: Path) -> None:
    async with scene(tmp_path) as r:
        box = r.box("alice").id
        r.world.left = [left(box), left(None, "release"), left(box, "mount", ours=False)]
        found = await sweep(r)
        assert [(each.left.kind, each.owner, each.deed) for each in found] == [
            ("cgroup", "default/alice", Deed.REMOVED),
            ("release", "", Deed.REMOVED),
            ("mount", "default/alice", Deed.REPORTED),
        ]
        assert [each.kind for each in r.world.cleared] == ["cgroup", "release"]
        asked, done = await recorded(r)
        assert asked["action"] == "sweep" and done["details"]["count"] == 2
        assert [each["kind"] for each in done["details"]["first"]] == ["cgroup", "release"]


async def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as r:
        r.world.left = [left(r.box("alice").id), left(None, "processes")]
        await r.driver.provision(STRAY, BoxKind.HOME)
        await r.world.kill_box(r.box("bob").id)
        before = await r.store.boxes.all()
        found = await sweep(r, dry_run=True)
        assert {each.deed for each in found} == {Deed.REPORTED} and len(found) == 3
        assert r.world.cleared == [] and await r.store.boxes.all() == before and STRAY in r.world.boxes
        assert [row["action"] for row in await recorded(r)] == ["sweep"]


async def test_only_an_operator_may(tmp_path: Path) -> None:
    async with scene(tmp_path) as r:
        r.world.left = [left(None, "processes")]
        for dry_run in (False, True):
            with pytest.raises(Refused):
                await r.engine.debris.sweep(r.actors["alice"], dry_run=dry_run)
        assert r.world.cleared == []


async def test_a_box_without_an_owner_goes_only_when_it_is_named(tmp_path: Path) -> None:
    """A store that was put back from an older backup knows fewer boxes."""
    async with scene(tmp_path) as r:
        await r.driver.provision(STRAY, BoxKind.HOME)
        for _ in range(2):
            [found] = await sweep(r)
            assert (found.left.kind, found.left.box, found.deed) == ("box", STRAY, Deed.REPORTED)
        alice = r.box("alice").id
        with pytest.raises(Invalid, match="not a box without an owner"):
            await sweep(r, boxes=(STRAY, alice))
        with pytest.raises(Invalid, match="dry run"):
            await sweep(r, dry_run=True, boxes=(STRAY,))
        assert STRAY in r.world.boxes
        [found] = await sweep(r, boxes=(STRAY,))
        assert found.deed is Deed.REMOVED and STRAY not in r.world.boxes and alice in r.world.boxes


async def test_a_box_whose_directory_is_missing_is_lost_and_its_processes_are_left(tmp_path: Path) -> None:
    """As of a volume that is not mounted: with it back everything is as it was."""
    async with scene(tmp_path) as r:
        await r.exec("bob", "true")
        away = r.world.boxes.pop(r.box("alice").id)
        r.world.left = [left(None, "processes"), left(away.id, "cgroup"), left(None, "release")]
        found = {each.left.kind: each for each in await sweep(r)}
        assert found["row"].deed is found["processes"].deed is found["cgroup"].deed is Deed.REPORTED
        assert "is missing" in found["processes"].left.why and found["row"].owner == "default/alice"
        assert found["release"].deed is Deed.REMOVED
        assert (await r.store.boxes.get(away.id)).observed is Observed.LOST
        r.world.boxes[away.id] = away
        assert {each.left.kind: each.deed for each in await sweep(r)} == {
            "processes": Deed.REMOVED,
            "cgroup": Deed.REMOVED,
        }


async def test_the_row_of_a_box_that_was_to_go_and_is_gone_ends(tmp_path: Path) -> None:
    """A server that died between the deletion and the row."""
    async with scene(tmp_path) as r:
        box = r.box("alice")
        await r.engine.people.user_remove(OPERATOR, "default", "alice")
        await r.driver.remove(box.id)
        [found] = await sweep(r)
        assert (found.left.kind, found.deed) == ("row", Deed.REMOVED)
        with pytest.raises(NotFound):
            await r.store.boxes.get(box.id)
        assert await sweep(r) == []


async def test_the_box_of_a_user_whose_removal_was_cut_short_is_taken_down(tmp_path: Path) -> None:
    async with scene(tmp_path) as r:
        await r.exec("alice", "true")
        box, user = r.box("alice"), r.actors["alice"].user
        assert user is not None
        await r.store.users.remove(user.id)  # and the server dies
        [found] = await sweep(r)
        assert (found.left.kind, found.deed) == ("user", Deed.REMOVED)
        assert not box.running and box.id in r.world.boxes  # its tree is kept until it is purged
        assert (await r.store.boxes.get(box.id)).desired is Desired.REMOVED
        assert await sweep(r) == []


async def test_a_box_that_something_is_being_done_with_is_left_for_the_next_time(tmp_path: Path) -> None:
    async with scene(tmp_path) as r:
        alice, bob = r.box("alice").id, r.box("bob").id
        r.world.left = [left(alice), left(bob)]
        await r.exec("bob", "true")  # runs, with a wire
        r.world.start_seconds = 60
        starting = asyncio.ensure_future(r.exec("alice", "true"))
        await eventually(lambda: r.engine._links.slot(alice).lock.locked())
        found = await sweep(r)
        assert [each.deed for each in found] == [Deed.REPORTED] * 2 and r.world.cleared == []
        assert all(each.error == debris.AT_WORK for each in found)
        r.world.start_seconds = 0
        assert (await starting).code == 0
        for name in ("alice", "bob"):
            await r.engine.boxes.stop(OPERATOR, "default", name)
        await r.store.boxes.begin(bob, "snapshot", 60)
        assert [each.deed for each in await sweep(r)] == [Deed.REMOVED, Deed.REPORTED]
        await r.store.boxes.end(bob, "snapshot")
        assert [each.deed for each in await sweep(r)] == [Deed.REMOVED]


async def test_a_box_that_was_made_while_it_looked_is_neither_lost_nor_without_an_owner(tmp_path: Path) -> None:
    async with scene(tmp_path) as r:

        class Late(Forgetful):
            async def debris(self) -> Seen:
                seen = await super().debris()
                if self.looks > 1:
                    await r.person(f"carol{self.looks}")  # row and box come after the driver has answered
                return seen

        await started(r, Late(r.world))
        assert await sweep(r) == []
        assert (await r.store.boxes.get(r.box("carol2").id)).observed is Observed.STOPPED


async def test_what_fails_is_told_and_keeps_nothing_else_from_going(tmp_path: Path) -> None:
    async with scene(tmp_path) as r:

        class Broken(Forgetful):
            async def clear(self, box: BoxId | None, kind: str) -> bool:
                if kind == "mount":
                    raise Refused("it stays")
                return await super().clear(box, kind)

        await started(r, Broken(r.world))
        r.world.left = [left(r.box("alice").id, "mount"), left(r.box("bob").id, "loop")]
        found = await sweep(r)
        assert [(each.deed, each.error) for each in found] == [(Deed.FAILED, "it stays"), (Deed.REMOVED, "")]


async def test_the_server_sweeps_at_its_start_and_again_after_a_while(tmp_path: Path) -> None:
    async with rig(tmp_path, debris_seconds=0.05) as r:
        alice = r.box("alice").id
        for _ in range(2):
            r.world.left = [left(alice)]
            await eventually(lambda: r.world.left == [])
        await eventually(lambda: len(r.world.cleared) == 2)
        assert {row["actor"] for row in await recorded(r)} == {None}  # nobody asked for it


async def test_the_lock_of_a_box_is_given_back_whatever_happens(tmp_path: Path) -> None:
    async with scene(tmp_path) as r:
        await r.store.boxes.begin(r.box("alice").id, "reset", 60)
        r.world.left = [left(r.box("alice").id), left(STRAY)]
        assert [each.deed for each in await sweep(r)] == [Deed.REPORTED, Deed.REMOVED]
        assert all(not slot.lock.locked() for slot in r.engine._links)
        assert STRAY not in {slot.box for slot in r.engine._links}  # nothing is remembered of what is no box
        await r.store.boxes.end(r.box("alice").id, "reset")
        assert (await r.exec("alice", "echo works")).code == 0


def test_texts_of_the_host_are_for_operators_alone() -> None:
    """`sweep` is theirs, so who holds something is told with it."""
    error = Refused("loop0 is in use yet")
    error.of_host = "process 12 (fsck) works in it"
    assert debris._words(error) == "loop0 is in use yet (process 12 (fsck) works in it)"
    assert replace(left("x"), ours=False).ours is False
