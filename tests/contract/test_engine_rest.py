"""Boxes at rest: pause and resume, idleness, what a pause meets, adoption of a paused one, quarantine. On a driver without walls."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import Desired, Rest
from ringfence.host.kernel.errors import Conflict, Failed, Invalid, Refused, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.copies import How
from ringfence.host.kernel.life.rests import Rests
from ringfence.host.kernel.ports import Outcome
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from tests.support.clocks import HandClock
from tests.support.engine_rig import OPERATOR, Rig, eventually, rig
from tests.support.fakes import parked

NEVER = Rests(0, 0, 0, 0, 0)


async def _shown(r: Rig, name: str = "alice") -> str:
    return (await r.engine.boxes.show(OPERATOR, "default", name)).observed


async def test_the_next_use_resumes(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        alice = r.actors["alice"]
        for _ in range(3):
            for _ in range(2):  # idempotent
                view = await r.engine.life.pause(alice, "default", "alice")
                assert (view.observed, view.desired, view.rested_at is None) == ("paused", "paused", False)
            assert not r.box("alice").awake.is_set()
            assert (await r.exec("alice", "echo on")).code == 0
            assert (await _shown(r), r.box("alice").starts) == ("running", 1)
        await r.engine.life.pause(alice, "default", "alice")
        for _ in range(2):
            assert (await r.engine.life.resume(alice, "default", "alice")).observed == "running"
        assert (r.box("alice").freezes, r.box("alice").starts, r.world.dials) == (4, 1, 1)


async def test_what_cannot_be_paused(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        with pytest.raises(Conflict, match=r"absent|stopped"):
            await r.engine.life.pause(OPERATOR, "default", "alice")
        with pytest.raises(Conflict, match="cannot be asked to resume"):
            await r.engine.life.resume(OPERATOR, "default", "alice")
        await r.exec("alice", "true")
        r.world.fail_freeze = [Unavailable("this host cannot freeze")]
        with pytest.raises(Unavailable) as refused:
            await r.engine.life.pause(OPERATOR, "default", "alice")
        assert "box stop" in refused.value.remedy
        assert (await r.exec("alice", "true")).code == 0  # nothing of it is left
        assert await _shown(r) == "running"


async def test_a_live_run_refuses_and_is_parked_when_forced(tmp_path: Path) -> None:
    """M02. It loses no attempt, and nothing claims it until the box is resumed."""
    async with rig(tmp_path, script=parked, rests=NEVER) as r:
        said = await r.say("alice", "work")
        await r.loop(said)
        with pytest.raises(Conflict, match=said.run.id):
            await r.engine.life.pause(OPERATOR, "default", "alice")
        assert await _shown(r) == "running"
        await r.engine.life.pause(OPERATOR, "default", "alice", force=True)
        row = await r.store.runs.get(said.run.id)
        assert (row.state, row.reason) == (RunState.QUEUED, "box_paused")
        later = await r.say("alice", "more", thread="another")
        bob = await r.say("bob", "mine", thread="of-bob")
        await r.loop(bob)  # the scheduler has looked at what there is: bob's goes on
        assert (await r.store.runs.get(later.run.id)).state is RunState.QUEUED
        assert await _shown(r) == "paused"
        before = r.box("alice").loops.pop(said.run.id)
        await r.engine.life.resume(OPERATOR, "default", "alice")
        await r.loop(said)
        await r.loop(later)
        assert r.box("alice").loops[said.run.id] is not before
        assert (await r.store.runs.get(said.run.id)).attempts == row.attempts + 1


@pytest.mark.parametrize("paused", [False, True])
async def test_a_box_that_ends_while_it_is_paused_is_told_as_that(tmp_path: Path, paused: bool) -> None:
    """And not as a policy, whatever its row says of it still."""
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        if paused:
            await r.engine.life.pause(OPERATOR, "default", "alice")

        async def ended(box: BoxId) -> None:
            raise Refused("the box does not run")

        r.driver.freeze = ended  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="ended while it was to be paused"):
            await r.engine.life.pause(OPERATOR, "default", "alice")


async def test_commands_stand_still_and_go_on(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        pipe = tmp_path / "pipe"
        await r.exec("alice", f"mkfifo {pipe}")
        command = asyncio.create_task(r.exec("alice", f"read line < {pipe}; echo $line"))
        await eventually(lambda: len(r.box("alice").commands) == 1)
        await r.engine.life.pause(OPERATOR, "default", "alice")
        assert not command.done()
        assert (await r.engine.boxes.show(OPERATOR, "default", "alice")).pids > 1
        await r.engine.life.resume(OPERATOR, "default", "alice")
        writer = await asyncio.create_subprocess_shell(f"echo on > {pipe}")
        outcome = await command
        assert outcome.stdout is not None and outcome.stdout.head == b"on\n"
        await writer.wait()


async def test_commands_that_race_a_pause(tmp_path: Path) -> None:
    """E78. Each runs, at the latest when the box is resumed; the box is in one legal state."""
    chance = random.Random(7)
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")

        async def some() -> None:
            await asyncio.sleep(chance.random() * 0.02)
            assert (await r.exec("alice", "echo on")).code == 0

        async def pauses() -> None:
            for _ in range(20):
                await asyncio.sleep(chance.random() * 0.005)
                await r.engine.life.pause(OPERATOR, "default", "alice")
                await asyncio.sleep(chance.random() * 0.002)
                await r.engine.life.resume(OPERATOR, "default", "alice")  # what ran when it was paused goes on

        async with asyncio.timeout(120):
            for _ in range(10):
                await asyncio.gather(pauses(), *(some() for _ in range(20)))
        assert r.box("alice").freezes > 100
        assert r.box("alice").starts == 1


async def test_idle_paused_stopped(tmp_path: Path) -> None:
    """E73, E77: looking keeps nothing awake. Times are of the row: a hand turns the clock."""
    async with rig(tmp_path, rests=Rests(pause_after=100, stop_after=1000), rest_seconds=0.01) as r:
        clock = HandClock()
        r.with_parts["clock"] = clock
        await r.restart()
        await r.exec("alice", "echo kept > file")
        await _looked(r)
        assert await _shown(r) == "running"
        clock.pass_seconds(99)
        for _ in range(5):
            assert await _shown(r) == "running"  # who looks
            await _looked(r)
        clock.pass_seconds(2)
        await _until(r, "paused")
        assert (await r.exec("alice", "cat file")).code == 0
        clock.pass_seconds(101)
        await _until(r, "paused")
        clock.pass_seconds(900)
        await _until(r, "stopped")
        assert (await r.exec("alice", "cat file")).code == 0
        assert r.box("alice").starts == 2


async def _silent(r: Rig, folder: Path) -> tuple[HandClock, Path, asyncio.Task[Outcome]]:
    """A command that reads a pipe and says nothing, under a clock that is moved by hand."""
    clock, pipe = HandClock(), folder / "pipe"
    r.with_parts["clock"] = clock
    await r.restart()
    await r.exec("alice", f"mkfifo {pipe}")
    command = asyncio.create_task(r.exec("alice", f"read line < {pipe}"))
    await eventually(lambda: len(r.box("alice").commands) == 1)
    return clock, pipe, command


async def test_a_silent_command_keeps_it_awake(tmp_path: Path) -> None:
    """E76. Control: the same box without one is paused."""
    async with rig(tmp_path, rests=Rests(pause_after=5, stop_after=0), rest_seconds=0.01) as r:
        clock, pipe, command = await _silent(r, tmp_path)
        clock.pass_seconds(3600)
        await _looked(r)
        assert await _shown(r) == "running"
        writer = await asyncio.create_subprocess_shell(f"echo on > {pipe}")
        await command
        await writer.wait()
        await _looked(r)
        assert await _shown(r) == "running"  # idle from the end of the command on
        clock.pass_seconds(6)
        await _until(r, "paused")


async def test_three_separate_settings(tmp_path: Path) -> None:
    """E89: the greatest age waits for an idle moment, the time to live for nothing."""
    async with rig(tmp_path, rests=Rests(0, 0, 0, max_age=50, time_to_live=500), rest_seconds=0.01) as r:
        clock, _, command = await _silent(r, tmp_path)
        clock.pass_seconds(60)
        await _looked(r)
        assert await _shown(r) == "running"
        clock.pass_seconds(500)
        await _until(r, "stopped")
        assert (await command).reason == "box_lost"
        await r.exec("alice", "true")
        clock.pass_seconds(51)
        await _until(r, "stopped")


async def test_a_host_that_cannot_freeze_stops_instead(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=Rests(pause_after=5, stop_after=0), rest_seconds=0.01) as r:
        clock = HandClock()
        r.with_parts["clock"] = clock
        r.driver._weak = ("no-cgroup",)
        await r.restart()
        await r.exec("alice", "true")
        clock.pass_seconds(6)
        await _until(r, "stopped")
        assert r.box("alice").freezes == 0


async def test_a_paused_box_is_adopted_as_it_is(tmp_path: Path) -> None:
    """F12, F45: the row and the box agree, whichever of the two the server was killed behind."""
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        await r.exec("bob", "true")
        await r.engine.life.pause(OPERATOR, "default", "alice")
        await r.restart()
        assert (await _shown(r), await _shown(r, "bob"), r.engine.adopted) == ("paused", "running", 2)
        assert (await r.exec("alice", "true")).code == 0
        assert r.box("alice").starts == 1

        async def frozen_and_not_written() -> None:
            await r.driver.freeze(r.box("alice").id)

        await r.restart(frozen_and_not_written)
        assert await _shown(r) == "running"
        assert (await r.exec("alice", "true")).code == 0

        await r.engine.life.pause(OPERATOR, "default", "alice")

        async def thawed_and_not_written() -> None:
            await r.driver.thaw(r.box("alice").id)

        await r.restart(thawed_and_not_written)
        assert await _shown(r) == "running"
        assert (await r.store.boxes.get(r.box("alice").id)).rest is Rest.NONE
        await r.engine.life.pause(OPERATOR, "default", "alice")
        await r.restart(lambda: r.world.kill_box(r.box("alice").id))
        assert await _shown(r) == "lost"
        assert (await r.exec("alice", "true")).code == 0
        assert r.box("alice").starts == 2


async def test_idle_time_goes_on_while_there_is_no_server(tmp_path: Path) -> None:
    """E80. Swept once, by the server that comes next."""
    async with rig(tmp_path, rests=Rests(pause_after=100, stop_after=0), rest_seconds=0.01, active_seconds=0.01) as r:
        await r.exec("alice", "true")
        box = r.box("alice").id
        await eventually(lambda: r.engine._links.slot(box).saved_at > 0, "the row knows")
        clock = HandClock()
        active = (await r.store.boxes.get(box)).last_active_at
        assert active is not None
        clock.jump(active + timedelta(seconds=101) - clock.now())
        r.with_parts["clock"] = clock
        await r.restart()
        await _until(r, "paused")
        assert r.box("alice").freezes == 1


async def test_a_paused_box_that_ends_is_lost_and_starts_again(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        await r.engine.life.pause(OPERATOR, "default", "alice")
        await r.world.kill_box(r.box("alice").id)
        assert (await r.exec("alice", "true")).code == 0
        assert r.box("alice").starts == 2
        await r.engine.life.pause(OPERATOR, "default", "alice")
        assert (await r.engine.boxes.stop(OPERATOR, "default", "alice")).observed == "stopped"
        assert (await r.store.boxes.get(r.box("alice").id)).rest is Rest.NONE
        assert (await r.exec("alice", "true")).code == 0


async def test_quarantine(tmp_path: Path) -> None:
    """Nothing runs, its user has no files, runs wait and lose no attempt; released it is the same box."""
    async with rig(tmp_path, script=parked, rests=NEVER) as r:
        alice = r.actors["alice"]
        await r.exec("alice", "echo kept > file")
        said = await r.say("alice", "work")
        await r.loop(said)
        for bad in ("", "  ", "two\nlines", "x" * 501):
            with pytest.raises(Invalid, match="reason"):
                await r.engine.life.quarantine(OPERATOR, "default", "alice", bad)
        with pytest.raises(Refused):
            await r.engine.life.quarantine(alice, "default", "alice", "mine")
        view = await r.engine.life.quarantine(OPERATOR, "default", "alice", "mining")
        assert (view.observed, view.quarantine) == ("paused", "mining")
        for work in (
            r.exec("alice", "true"),
            r.engine.life.resume(OPERATOR, "default", "alice"),
            r.engine.boxes.start(alice, "default", "alice"),
            r.engine.files.stat(alice, "default", "alice", b"file"),
        ):
            with pytest.raises(Refused, match="mining"):
                await work
        assert (await r.engine.files.stat(OPERATOR, "default", "alice", b"file")).size == 5
        await r.until(said.run.id, lambda row: row.state is RunState.QUEUED)
        assert (await r.store.runs.get(said.run.id)).reason == "quarantined"
        await r.restart()
        with pytest.raises(Refused, match="mining"):
            await r.exec("alice", "true")
        assert (await r.engine.life.release(OPERATOR, "default", "alice")).quarantine is None
        r.box("alice").loops.pop(said.run.id, None)
        await r.loop(said)
        assert (await r.exec("alice", "cat file")).code == 0
        assert r.box("alice").starts == 1


async def test_quarantine_of_a_box_that_cannot_stand_still(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        r.world.fail_freeze = [Unavailable("this host cannot freeze")]
        assert (await r.engine.life.quarantine(OPERATOR, "default", "alice", "odd")).observed == "stopped"
        assert (await r.engine.life.quarantine(OPERATOR, "default", "bob", "never there")).observed == "stopped"
        with pytest.raises(Refused, match="never there"):
            await r.exec("bob", "true")


async def test_a_pause_that_fails_leaves_the_box_running(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        update = r.store.boxes.update

        async def full(box, **changes):  # type: ignore[no-untyped-def]
            if changes.get("rest") is Rest.PAUSED:
                raise Failed("no")
            return await update(box, **changes)

        r.store.boxes.update = full  # type: ignore[method-assign]
        with pytest.raises(Failed):
            await r.engine.life.pause(OPERATOR, "default", "alice")
        assert r.box("alice").awake.is_set()
        assert (await r.exec("alice", "true")).code == 0


async def test_a_paused_run_is_done_after_a_stop_too(tmp_path: Path) -> None:
    """What was parked by a forced pause waits for the box, whichever way it comes back."""
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        await r.engine.life.pause(OPERATOR, "default", "alice", force=True)
        await r.engine.boxes.stop(OPERATOR, "default", "alice")
        assert (await r.asked("alice", "hello")).state is TurnState.COMPLETED
        assert (await r.store.boxes.get(r.box("alice").id)).desired is Desired.RUNNING


async def test_a_forced_pause_that_fails_holds_nobody_back(tmp_path: Path) -> None:
    """Whatever fails: the freeze, the thaw behind it; and a server that is killed between the two rows."""
    async with rig(tmp_path, script=parked, rests=NEVER) as r:
        said = await r.say("alice", "work")
        await r.loop(said)
        thaw = r.driver.thaw

        async def no_thaw(box: BoxId) -> None:
            raise Unavailable("this host cannot freeze")

        r.world.fail_freeze = [Unavailable("this host cannot freeze")]
        r.driver.thaw = no_thaw  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await r.engine.life.pause(OPERATOR, "default", "alice", force=True)
        assert (await r.store.users.get("default", "alice")).held_back == ""
        r.driver.thaw = thaw  # type: ignore[method-assign]
        await r.exec("alice", "true")
        await r.store.boxes.hold(r.box("alice").id)  # killed here
        await r.restart()
        assert (await r.store.users.get("default", "alice")).held_back == ""


async def test_a_quarantine_meets_a_start_that_is_under_way(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        r.world.start_seconds = 3600
        starting = asyncio.create_task(r.exec("alice", "true"))
        await eventually(lambda: r.engine._links.slot(r.box("alice").id).lock.locked())
        isolating = asyncio.create_task(r.engine.life.quarantine(OPERATOR, "default", "alice", "odd"))
        await eventually(lambda: r.engine._links.slot(r.box("alice").id).quarantined)
        r.world.start_seconds = 0
        await isolating
        with pytest.raises(Refused, match="odd"):
            await starting
        assert not r.box("alice").running or not r.box("alice").awake.is_set()


async def test_a_quarantine_that_was_cut_short_is_carried_out_by_the_next_server(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        box = r.box("alice")

        async def written_and_not_frozen() -> None:
            await r.store.boxes.quarantine(box.id, "odd")

        await r.restart(written_and_not_frozen)
        assert not box.awake.is_set()
        with pytest.raises(Refused, match="odd"):
            await r.exec("alice", "true")
        await r.engine.life.release(OPERATOR, "default", "alice")
        assert (await r.exec("alice", "true")).code == 0
        assert box.starts == 1


async def test_a_process_that_does_not_freeze_escapes_no_quarantine(tmp_path: Path) -> None:
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        r.world.fail_freeze = [Failed("the box has a process that the kernel cannot stop")]
        assert (await r.engine.life.quarantine(OPERATOR, "default", "alice", "odd")).observed == "stopped"


async def test_release_frees_what_quarantine_held_and_nothing_else(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked, rests=NEVER) as r:
        said = await r.say("alice", "work")
        await r.loop(said)
        await r.engine.life.pause(OPERATOR, "default", "alice", force=True)
        await r.engine.life.release(OPERATOR, "default", "alice")
        assert (await r.store.users.get("default", "alice")).held_back == "box_paused"


async def test_what_was_at_work_when_it_was_paused_is_so_for_the_next_server(tmp_path: Path) -> None:
    """Else a command that stands still would be stopped with its box for being idle."""
    async with rig(tmp_path, rests=Rests(0, stop_after=100), rest_seconds=0.01) as r:
        clock, pipe, command = await _silent(r, tmp_path)
        await r.engine.life.pause(OPERATOR, "default", "alice")
        command.cancel()
        await r.restart()
        clock.pass_seconds(3600)
        await _looked(r)
        assert await _shown(r) == "paused"
        await r.engine.life.resume(OPERATOR, "default", "alice")
        writer = await asyncio.create_subprocess_shell(f"echo on > {pipe}")
        await writer.wait()
        slot = r.engine._links.slot(r.box("alice").id)
        await eventually(lambda: not slot.uses)
        clock.pass_seconds(101)
        await _until(r, "stopped")


async def _looked(r: Rig) -> None:
    await r.engine._idle.look()


async def _until(r: Rig, state: str) -> None:
    async with asyncio.timeout(30):  # another look may be at it
        while await _shown(r) != state:
            await _looked(r)


async def test_what_was_at_work_when_it_was_paused_is_over_with_a_stop(tmp_path: Path) -> None:
    """By hand, under another server: what nobody knows any more must not keep the box awake for ever."""
    async with rig(tmp_path, rests=Rests(0, 0, 0, 0, 0)) as r:
        await r.exec("alice", f"mkfifo {tmp_path / 'pipe'}")
        command = asyncio.create_task(r.exec("alice", f"read line < {tmp_path / 'pipe'}"))
        await eventually(lambda: len(r.box("alice").commands) == 1)
        await r.engine.life.pause(OPERATOR, "default", "alice")
        command.cancel()
        await r.restart()
        await r.engine.boxes.stop(OPERATOR, "default", "alice")
        assert (await r.exec("alice", "true")).code == 0
        await r.engine.copies.reset(
            OPERATOR, "default", "alice", How(keep=False)
        )  # which is refused where something is at work
