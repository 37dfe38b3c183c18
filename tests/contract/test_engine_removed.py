"""What is left of a user who was removed: nothing that the server remembers, waits for or warns of."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from ringfence.host.engine.commands import ExecRequest
from ringfence.host.kernel.boxes import Desired, Observed
from ringfence.host.kernel.errors import Failed, NotFound
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.runs import StepState
from ringfence.host.kernel.threads import TurnState
from ringfence.wire import messages as wire
from tests.support.databases import outside
from tests.support.engine_rig import OPERATOR, Rig, eventually, rig
from tests.support.fakes import Loop, parked

BUSY = ExecRequest(argv=[b"/bin/sh", b"-c", b"while echo x; do sleep 0.02; done"], env={})


async def remove(r: Rig, purge: bool) -> None:
    await r.engine.people.user_remove(OPERATOR, "default", "alice", purge)


def slots(r: Rig) -> set[str]:
    return {slot.box for slot in r.engine._links}


async def stepping(loop: Loop) -> None:
    """In the middle of a command for as long as it lives."""
    begin = wire.StepBegin(loop.start["token"], 1, "shell", {"command": "sleep 60"}, "local")
    await loop.ask("step.begin", begin)
    await parked(loop)


@pytest.mark.parametrize("purge", [False, True])
async def test_its_box_is_forgotten_whatever_it_does(
    tmp_path: Path, purge: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With a command that still writes, a run in the middle of a step, and somebody who watches."""
    caplog.set_level(logging.WARNING)
    async with rig(tmp_path, script=stepping, active_seconds=0.05) as r:
        said = await r.say("alice", "work")
        await r.running_command("alice", f"s/{said.run.id}/1")
        command = await r.engine.commands.run(r.actors["alice"], "default", "alice", BUSY)
        output = command.output()
        await anext(output)
        watch = await r.engine.threads.watch(r.actors["alice"], "default", "t")
        box, bobs = r.box("alice").id, r.box("bob").id
        await r.exec("bob", "true")
        assert slots(r) == {box, bobs}, "the control"
        await remove(r, purge)
        assert slots(r) == {bobs}
        assert len(r.engine._viewers) == 0
        with pytest.raises(NotFound):
            await r.engine.commands.run(r.actors["alice"], "default", "alice", BUSY)
        async for _ in output:
            pass
        await command.outcome()  # which marks the box as active once more
        caplog.clear()
        await asyncio.sleep(0.3)
        assert [record.message for record in caplog.records if box in record.getMessage()] == []
        assert slots(r) == {bobs}
        watch.close()


async def test_its_run_at_work_ends_as_of_a_removed_user(tmp_path: Path) -> None:
    async with rig(tmp_path, script=stepping) as r:
        said = await r.say("alice", "work")
        await r.running_command("alice", f"s/{said.run.id}/1")
        await remove(r, False)
        turn = await r.turn(said)
        assert (turn.state, turn.reason) == (TurnState.CANCELLED, "user_removed")
        [step] = await r.store.steps.all(said.run.id)
        assert step.state is StepState.INTERRUPTED and step.result is not None


async def test_one_that_another_server_removed_is_forgotten_at_its_next_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with rig(tmp_path, active_seconds=0.05) as r:
        await r.exec("alice", "true")
        box = r.box("alice").id
        await r.store.boxes.update(box, desired=Desired.REMOVED, observed=Observed.ABSENT)
        r.engine._links.slot(box).active_at += 1
        await eventually(lambda: box not in slots(r), "it is forgotten")
        assert caplog.records == []


@pytest.mark.parametrize("at", ["stop", "remove"])
async def test_a_removal_whose_box_cannot_be_taken_away_is_said_and_finished_when_asked_again(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        box = r.box("alice")
        driver = r.engine._parts.driver

        async def refuses(box: object) -> None:
            raise Failed("the disk cannot be mounted")

        with monkeypatch.context() as patch:
            patch.setattr(driver, at, refuses)
            with pytest.raises(Failed, match="'alice' is removed, its box is not yet: the disk cannot") as caught:
                await remove(r, True)
            assert "user rm --tenant default --purge alice" in caught.value.remedy
            with pytest.raises(Failed):
                await remove(r, True)
        assert (await r.engine._parts.store.boxes.get(box.id)).desired is Desired.REMOVED
        with pytest.raises(NotFound):  # others are told nothing of it
            await r.engine.people.user_remove(r.actors["bob"], "default", "alice", True)
        await remove(r, True)
        with pytest.raises(NotFound):
            await r.engine._parts.store.boxes.get(box.id)
        with pytest.raises(NotFound):
            await remove(r, True)
        await r.exec("bob", "true")  # somebody else's is there


async def test_a_tree_that_was_kept_can_still_be_purged_and_a_new_user_of_the_name_comes_first(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        kept = r.box("alice").id
        await remove(r, False)
        with pytest.raises(NotFound):
            await remove(r, False)
        await r.engine.people.user_add(OPERATOR, "default", "alice")
        await remove(r, True)
        assert (await r.engine._parts.store.boxes.get(kept)).desired is Desired.REMOVED
        with pytest.raises(NotFound):  # the last of the name is gone whole
            await remove(r, True)
        assert kept in {box.id for box in await r.engine._parts.store.boxes.all()}


async def _used(r: Rig, box: BoxId) -> None:
    """When it was last used is written a moment behind the answer."""
    async with asyncio.timeout(30):
        while (await r.store.boxes.get(box)).last_active_at is None:
            await asyncio.sleep(0.01)


async def test_a_box_of_another_installation_is_left_to_its_server(tmp_path: Path) -> None:
    """A removal that was cut short there is asked for again here. Where one installation has the database, the box is ours."""
    async with rig(tmp_path) as r:
        await r.exec("alice", "true")
        box, stop = r.box("alice").id, r.driver.stop
        await _used(r, box)

        async def cut_short(box: BoxId) -> None:
            raise Failed("no")

        r.driver.stop = cut_short  # type: ignore[method-assign]
        with pytest.raises(Failed):
            await remove(r, True)
        r.driver.stop = stop  # type: ignore[method-assign]
        outside(tmp_path, "UPDATE boxes SET installation = 'there', desired = 'stopped' WHERE id = ?", box)
        before = await r.store.boxes.get(box)
        if not r.store.shared:
            await remove(r, True)
            assert box not in r.world.boxes
            return
        with pytest.raises(Failed, match="installation there") as refused:
            await remove(r, True)
        assert "on that installation's server" in refused.value.remedy
        assert await r.store.boxes.get(box) == before
        assert box in r.world.boxes
