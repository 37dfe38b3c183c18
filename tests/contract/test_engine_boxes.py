"""Boxes up and down: one start for all who ask, adoption, a lost wire, a lost box."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.boxes import JAIL_LIMITS, Box, BoxKind, Desired, Observed
from ringfence.host.kernel.errors import BoxLost, Conflict, DiskFull, Invalid, NotFound, Refused
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.drift import drift
from ringfence.host.kernel.threads import TurnState
from tests.support.engine_rig import OPERATOR, eventually, rig


async def test_fifty_first_requests_make_one_box(tmp_path: Path) -> None:
    """E84."""
    async with rig(tmp_path) as r:
        r.world.start_seconds = 0.05
        done = await asyncio.gather(*(r.exec("alice", "echo hi") for _ in range(50)))
        assert [outcome.stdout and outcome.stdout.head for outcome in done] == [b"hi\n"] * 50
        assert (r.box("alice").starts, r.world.dials) == (1, 1)
        assert (await r.engine.boxes.show(OPERATOR, "default", "alice")).generation == 1
        assert r.box("bob").starts == 0


async def test_a_waiter_that_gives_up_does_not_end_the_start(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.world.start_seconds = 0.1
        first = asyncio.create_task(r.exec("alice", "true"))
        second = asyncio.create_task(r.exec("alice", "true"))
        await asyncio.sleep(0.03)
        first.cancel()
        assert (await second).code == 0
        assert r.box("alice").starts == 1


async def test_running_boxes_are_adopted_without_a_start(tmp_path: Path) -> None:
    """E81, of 100 boxes; with real ones: ringfence bench life."""
    people = tuple(f"user{n}" for n in range(100))
    async with rig(tmp_path, people) as r:
        await asyncio.gather(*(r.exec(name, "true") for name in people))
        await r.engine.boxes.stop(OPERATOR, "default", "user7")
        await r.restart()
        assert r.engine.adopted == 99
        assert {r.box(name).starts for name in people} == {1}
        assert all((r.box(name).link is not None) is (name != "user7") for name in people)
        status = await r.engine.health.status(OPERATOR)
        assert (status["boxes"]["running"], status["boxes"]["total"], status["ok"]) == (99, 100, True)


async def test_a_box_whose_start_never_came_into_its_row_has_drifted(tmp_path: Path) -> None:
    """What the row has is of another start. Control: one whose row has it is as it was."""
    async with rig(tmp_path) as r:
        for name in ("alice", "bob"):
            await r.exec(name, "true")
        box = r.box("alice")

        async def again() -> None:
            await r.world.kill_box(box.id)
            await r.driver.start(box.id, r.config.limits)

        await r.restart(again)
        assert r.engine.adopted == 2
        rows = [await r.store.boxes.get(r.box(name).id) for name in ("alice", "bob")]
        assert [drift(row, r.engine._parts.facts) for row in rows] == [["start"], []]
        assert [r.engine._links.slot(row.id).drifted for row in rows] == [("start",), ()]
        await r.engine.boxes.stop(OPERATOR, "default", "alice")
        await r.exec("alice", "true")
        assert drift(await r.store.boxes.get(box.id), r.engine._parts.facts) == []


async def test_a_box_that_died_meanwhile_is_started_anew(tmp_path: Path) -> None:
    """E81, E83."""
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        await r.restart(lambda: r.world.kill_box(r.box("alice").id))
        assert r.engine.adopted == 0
        assert (await r.engine.boxes.show(r.actors["alice"], "default", "alice")).observed == "lost"
        assert (await r.exec("alice", "true")).code == 0
        assert r.box("alice").starts == 2
        assert (await r.engine.boxes.show(r.actors["alice"], "default", "alice")).generation == 2


async def test_a_box_that_the_store_does_not_know_is_reported_and_not_touched(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        stranger = r.ids.box()
        await r.driver.provision(stranger, BoxKind.SCRATCH)
        await r.driver.start(stranger, r.config.limits)
        await r.restart()
        status = await r.engine.health.status(OPERATOR)
        assert status["boxes"]["unknown"] == [stranger]
        assert r.world.box(stranger).running
        assert "unknown" not in (await r.engine.health.status(r.actors["alice"]))["boxes"]


async def test_a_jail_that_nobody_waits_for_is_removed_and_one_with_a_row_is_not(tmp_path: Path) -> None:
    """Control: the box of another kind above. A jail is no box of its user's in any list."""
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        stranger, user = BoxId("j" * 16), await r.store.users.get("default", "alice")
        kept = await r.store.boxes.add(user, BoxKind.SKILL, r.driver.name, JAIL_LIMITS)
        for box in (stranger, kept.id):
            await r.driver.provision(box, BoxKind.SKILL)
            await r.driver.start(box, JAIL_LIMITS)
        await r.restart()
        assert stranger not in r.world.boxes and kept.id in r.world.boxes
        assert (await r.engine.health.status(OPERATOR))["boxes"]["unknown"] == []
        listed = {box.box for box in await r.engine.boxes.list(OPERATOR, None)}
        assert r.box("alice").id in listed and kept.id not in listed
        assert (await r.exec("alice", "true")).code == 0


async def test_a_stop_that_was_not_finished_is_finished_at_the_next_start(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        box = r.box("alice")

        async def half() -> None:

            await r.store.boxes.update(box.id, desired=Desired.STOPPED)

        await r.restart(half)
        assert not box.running
        assert r.engine.adopted == 0


async def test_a_box_runs_only_if_the_wish_for_it_is_written_too(tmp_path: Path) -> None:
    """Both go at once: a write that fails takes the box down again, and the next command starts it."""
    async with rig(tmp_path) as r:
        update = r.store.boxes.update

        async def full(box: BoxId, **changes: Any) -> Box:
            if "desired" in changes:
                raise DiskFull("no space")
            return await update(box, **changes)

        r.store.boxes.update = full  # type: ignore[method-assign]
        with pytest.raises(DiskFull):
            await r.exec("alice", "true")
        box = r.box("alice")
        assert (box.starts, box.running, r.world.dials) == (1, False, 0)
        del r.store.boxes.update
        assert (await r.exec("alice", "true")).code == 0
        row = await r.store.boxes.get(box.id)
        assert (box.starts, row.desired, row.observed) == (2, Desired.RUNNING, Observed.RUNNING)


async def test_a_start_that_fails_leaves_the_wish(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.world.fail_start = [DiskFull("no space")]
        with pytest.raises(DiskFull):
            await r.exec("alice", "true")
        assert (await r.store.boxes.get(r.box("alice").id)).desired is Desired.RUNNING
        assert (await r.exec("alice", "true")).code == 0


async def test_a_lost_wire_is_dialled_again_and_the_command_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        running = asyncio.create_task(r.exec("alice", "sleep 0.4; echo done"))
        await eventually(lambda: r.box("alice").commands)
        r.world.lose_wire(r.box("alice").id)
        await eventually(lambda: r.box("alice").link, "a new wire")
        outcome = await running
        assert (outcome.code, outcome.stdout and outcome.stdout.head) == (0, b"done\n")
        assert (r.box("alice").starts, r.world.dials) == (1, 2)


async def test_a_killed_box_ends_its_command_and_the_next_one_starts_it_once(tmp_path: Path) -> None:
    """E83, A27: noticed at once, not when the command would end."""
    async with rig(tmp_path) as r:
        running = asyncio.create_task(r.exec("alice", "sleep 600"))
        await eventually(lambda: r.box("alice").commands)
        await r.world.kill_box(r.box("alice").id)
        assert (await running).reason == "box_lost"
        await eventually(lambda: r.engine._links.slot(r.box("alice").id).link is None, "noticed")
        assert await asyncio.gather(*(r.exec("alice", "echo x") for _ in range(5)))
        assert r.box("alice").starts == 2


async def test_a_box_that_does_not_answer_is_started_again_once_and_then_said_to_be_lost(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        box = r.box("alice")
        box.deaf = True
        r.world.lose_wire(box.id)
        with pytest.raises(BoxLost, match="twice"):
            await r.exec("alice", "true")
        assert box.starts == 2  # the one that did not answer, and one more
        assert not box.running, "what answers nobody is not left running"
        box.deaf = False
        assert (await r.exec("alice", "true")).code == 0


async def test_an_error_of_the_start_reaches_everybody_who_waits_and_is_not_remembered(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.world.start_seconds = 1.0  # in which all five have come
        r.world.fail_start = [DiskFull("the disk is full")]
        done = await asyncio.gather(*(r.exec("alice", "true") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(error, DiskFull) for error in done)
        r.world.start_seconds = 0.0
        assert (await r.exec("alice", "true")).code == 0


async def test_stop_ends_everything_and_the_next_command_starts_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        running = asyncio.create_task(r.exec("alice", "sleep 30"))
        await eventually(lambda: r.box("alice").commands)
        view = await r.engine.boxes.stop(r.actors["alice"], "default", "alice")
        assert (view.desired, view.observed, view.pids) == ("stopped", "stopped", 0)
        assert (await running).reason == "box_lost"
        assert (await r.engine.boxes.start(r.actors["alice"], "default", "alice")).observed == "running"


async def test_limits_hold_at_once_and_are_checked(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        view = await r.engine.boxes.set_limits(OPERATOR, "default", "alice", {"memory": 256 << 20})
        assert view.limits["memory"] == r.box("alice").limits.memory == 256 << 20
        refused: tuple[dict[str, int], ...] = ({"memory": 1}, {"memory": True}, {"color": 1}, {"pids": 1 << 30})
        for changes in refused:
            with pytest.raises(Invalid):
                await r.engine.boxes.set_limits(OPERATOR, "default", "alice", changes)
        with pytest.raises(Refused):
            await r.engine.boxes.set_limits(r.actors["alice"], "default", "alice", {"memory": 1 << 40})


async def test_what_a_running_box_gets_at_its_next_start_only_is_told(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        boxes = r.engine.boxes
        changes = {"nofile": 1024, "run": 1 << 20, "shm": 1 << 45, "pids": 64}
        stopped = await boxes.set_limits(OPERATOR, "default", "alice", changes)
        assert stopped.from_next_start == []
        assert stopped.effective == {"shm": ((1 << 30) - (64 << 20)) // 2}
        await r.exec("alice", "true")
        again = await boxes.set_limits(OPERATOR, "default", "alice", changes)
        assert again.from_next_start == []  # nothing has changed
        changed = await boxes.set_limits(OPERATOR, "default", "alice", {"nofile": 2048, "fsize": 1 << 30, "pids": 65})
        assert changed.from_next_start == ["nofile", "fsize"]


async def test_a_removed_user_has_no_box_and_the_name_is_another_user_later(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        running = asyncio.create_task(r.exec("alice", "sleep 30"))
        await eventually(lambda: r.box("alice").commands)
        old = r.box("alice")
        await r.engine.people.user_remove(OPERATOR, "default", "alice")
        assert (await running).reason == "box_lost"
        assert not old.running
        with pytest.raises(NotFound):
            await r.exec("alice", "true")  # an actor from before the removal
        again = await r.person("alice")
        assert again.user is not None
        view = await r.engine.boxes.show(again, "default", "alice")
        assert view.box != old.id


async def test_a_user_whose_box_cannot_be_made_is_not_left_behind(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:

        async def full(box: object, kind: object, limits: object = None) -> int:
            raise DiskFull("no space")

        r.driver.provision = full  # type: ignore[method-assign]
        with pytest.raises(DiskFull):
            await r.engine.people.user_add(OPERATOR, "default", "carol")
        del r.driver.provision
        assert (await r.engine.people.user_add(OPERATOR, "default", "carol")).name == "carol"
        with pytest.raises(Conflict):
            await r.engine.people.user_add(OPERATOR, "default", "carol")


async def test_a_wire_that_ends_while_its_flight_lands_holds_nobody_up(tmp_path: Path) -> None:
    """The flight is done and still there: its callbacks run once the one who looks lets go of the loop."""
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        bringup = r.engine._bringup
        slot = bringup._links.slot(BoxId(r.box("alice").id))
        flight: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        looks = 0

        class Dead:
            @property
            def alive(self) -> bool:
                nonlocal looks
                looks += 1
                assert looks < 100, "it looks again and again, and lets nobody else run"
                return False

        living = slot.link
        dead: Any = Dead()
        flight.set_result(dead)
        slot.link, slot.flight = dead, flight
        await asyncio.wait_for(bringup.link_lost(slot.box), 30)
        assert slot.wire() is not None and slot.link is not living
        assert (await r.exec("alice", "true")).code == 0


@pytest.mark.sqlite  # no matter of the database, and 5 s of pauses
@pytest.mark.parametrize("after", [0.0, 0.01])
async def test_a_guest_that_breaks_each_wire_is_dialled_a_few_times_and_given_up(tmp_path: Path, after: float) -> None:
    """`after` 0: it breaks while the dial itself is still under way, and nobody else would dial again."""
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 60")
        await r.running_command("alice", f"s/{said.run.id}/1")
        box = r.box("alice")
        r.world.lose_wire(box.id)
        await eventually(lambda: box.link)
        assert r.world.dials == 2  # control: one lost wire is one dial
        box.brittle = after
        r.world.lose_wire(box.id)
        async with asyncio.timeout(60):
            while (await r.store.boxes.get(box.id)).observed is not Observed.LOST:
                await asyncio.sleep(0.02)
        assert 3 < r.world.dials < 20
        box.brittle = None
        assert (await r.exec("alice", "true")).code == 0
        await r.engine.boxes.stop(OPERATOR, "default", "alice")
        assert (await r.turn(said)).state is TurnState.COMPLETED, "the loop goes on in a box started anew"


async def test_a_box_that_answers_nobody_is_stopped_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        box = r.box("alice")
        box.hung = True
        r.world.lose_wire(box.id)
        await eventually(lambda: r.world.dials == 2)
        async with asyncio.timeout(30):
            assert (await r.engine.boxes.stop(OPERATOR, "default", "alice")).observed == "stopped"
        assert not box.running


async def test_last_active_is_written_lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one write of a box in each period, however many commands: the row's other writers are not counted."""
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        writes: list[dict[str, Any]] = []
        update = r.store.boxes.update

        async def counted(box: BoxId, **changes: Any) -> Any:
            writes.append(changes)
            return await update(box, **changes)

        monkeypatch.setattr(r.store.boxes, "update", counted)
        began = time.monotonic()
        for _ in range(20):
            await r.exec("alice", "true")
        periods = (time.monotonic() - began) / r.engine._parts.config.active_seconds
        assert len(writes) <= periods + 1
        assert len(writes) < 20, "a write for each command"
        await asyncio.sleep(0.5)
        view = await r.engine.boxes.show(r.actors["alice"], "default", "alice")
        assert view.last_active_at is not None
