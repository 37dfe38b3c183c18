"""What becomes of a run whose loop, box or server is gone: replay, attach, adoption, redrive, and when it is given up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import NotFound, StaleEpoch, Unavailable
from ringfence.host.kernel.threads import TurnState
from ringfence.wire import messages as wire
from tests.support.engine_rig import OPERATOR, Rig, eventually, rig
from tests.support.fakes import Loop, native


async def kinds(r: Rig, turn: Any) -> list[str]:
    return [event.kind.value for event in await r.store.events.after(turn.thread, 0, 1000)]


async def test_a_killed_loop_is_redriven_and_attaches_to_its_command(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo one >> log; sleep 1.5; echo end >> log\n$ cat log")
        await r.running_command("alice", f"s/{said.run.id}/1")
        await r.world.kill_loop(r.box("alice").id, said.run.id)
        turn = await r.turn(said)
        assert turn.state is TurnState.COMPLETED
        assert (r.box("alice").folder / "log").read_text() == "one\nend\n"
        assert r.box("alice").spawned.count(f"s/{said.run.id}/1") == 1
        assert "run.redriven" in await kinds(r, turn)
        run = await r.store.runs.get(said.run.id)
        assert (run.epoch, run.attempts) == (2, 2)


async def test_recorded_steps_are_answered_from_the_journal(tmp_path: Path) -> None:
    """The loop is killed between two steps and forgets what it knew: nothing recorded happens again."""
    killed: list[bool] = []

    async def forgetful(loop: Loop) -> None:
        if not killed:
            killed.append(True)
            await loop.ask(
                "step.begin", wire.StepBegin(loop.start["token"], 1, "shell", {"command": "echo x >> log"}, "local")
            )
            raise NotFound("this loop dies")
        await native(loop)

    async with rig(tmp_path, script=forgetful) as r:
        turn = await r.asked("alice", "$ echo x >> log\n$ cat log")
        assert turn.state is TurnState.COMPLETED
        assert (r.box("alice").folder / "log").read_text() == "x\n"
        assert turn.run is not None
        assert await r.states(turn.run) == ["ended", "ended"]


async def test_a_box_that_was_restarted_interrupts_the_step_and_does_not_run_it_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo x >> log; sleep 30; echo never >> log\n$ echo on")
        await r.running_command("alice", f"s/{said.run.id}/1")
        await eventually((r.box("alice").folder / "log").exists)
        await r.world.kill_box(r.box("alice").id)
        turn = await r.turn(said)
        assert turn.state is TurnState.COMPLETED
        assert turn.reply is not None
        assert "interrupted" in turn.reply
        assert await r.states(said.run.id) == ["interrupted", "ended"]
        assert (r.box("alice").folder / "log").read_text() == "x\n"
        assert r.box("alice").starts == 2


async def test_the_same_when_no_server_saw_the_box_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo x >> log; sleep 30\n$ echo on")
        await r.running_command("alice", f"s/{said.run.id}/1")
        await eventually((r.box("alice").folder / "log").exists)
        await r.restart(lambda: r.world.kill_box(r.box("alice").id))
        turn = await r.turn(said)
        assert turn.state is TurnState.COMPLETED
        assert await r.states(said.run.id) == ["interrupted", "ended"]
        assert (r.box("alice").folder / "log").read_text() == "x\n"


async def test_a_box_stopped_under_a_turn(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 30; echo never >> log\n$ echo on")
        await r.running_command("alice", f"s/{said.run.id}/1")
        await r.engine.boxes.stop(OPERATOR, "default", "alice")
        turn = await r.turn(said)
        assert (turn.state, await r.states(said.run.id)) == (TurnState.COMPLETED, ["interrupted", "ended"])
        assert not (r.box("alice").folder / "log").exists()


async def test_a_lost_wire_changes_nothing_for_a_run(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo x >> log; sleep 0.7\n$ cat log")
        await r.running_command("alice", f"s/{said.run.id}/1")
        for _ in range(3):
            r.world.lose_wire(r.box("alice").id)
            await eventually(lambda: r.box("alice").link)
        turn = await r.turn(said)
        run = await r.store.runs.get(said.run.id)
        assert (turn.state, run.epoch, run.attempts) == (TurnState.COMPLETED, 1, 1)
        assert (r.box("alice").folder / "log").read_text() == "x\n"


async def test_a_restarted_server_adopts_the_run_with_a_new_epoch(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo x >> log; sleep 0.7\n$ cat log")
        await r.running_command("alice", f"s/{said.run.id}/1")
        await r.restart()
        turn = await r.turn(said)
        run = await r.store.runs.get(said.run.id)
        assert (turn.state, run.epoch, run.attempts) == (TurnState.COMPLETED, 2, 1)
        assert (r.box("alice").folder / "log").read_text() == "x\n"
        assert (await kinds(r, turn)).count("run.ended") == 1
        with pytest.raises(StaleEpoch):  # what the former kernel would write now
            await r.store.steps.save_checkpoint(said.run.id, 1, "final", 0, "late")


async def test_a_command_that_ended_while_no_server_ran_is_recorded(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo x >> log; sleep 0.3; exit 7\n$ cat log")
        await r.running_command("alice", f"s/{said.run.id}/1")
        command = r.box("alice").commands[f"s/{said.run.id}/1"]

        async def ends() -> None:
            await command.ended

        await r.restart(ends)
        turn = await r.turn(said)
        assert turn.reply is not None
        assert "exit code 7" in turn.reply
        assert (r.box("alice").folder / "log").read_text() == "x\n"


async def test_a_run_whose_loop_does_not_show_itself_is_redriven(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 0.5; echo x >> log")
        await r.running_command("alice", f"s/{said.run.id}/1")

        async def loop_dies() -> None:
            await r.world.kill_loop(r.box("alice").id, said.run.id)
            r.box("alice").reports.clear()

        await r.restart(loop_dies)
        turn = await r.turn(said)
        assert (turn.state, (await r.store.runs.get(said.run.id)).attempts) == (TurnState.COMPLETED, 2)
        assert (r.box("alice").folder / "log").read_text() == "x\n"


async def test_a_loop_with_a_wrong_token_is_not_adopted(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 1")
        await r.running_command("alice", f"s/{said.run.id}/1")
        loop = r.box("alice").loops[said.run.id]

        async def forged() -> None:
            loop.start = {**loop.start, "token": "forged"}

        await r.restart(forged)
        assert loop.task is not None
        await asyncio.wait({loop.task}, timeout=30)
        assert loop.task.done()
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert (await r.store.runs.get(said.run.id)).attempts == 2


async def test_a_guest_that_does_not_end_a_loop_holds_up_neither_the_server_nor_its_stop(tmp_path: Path) -> None:
    """It names a run that it was not given, and never answers the order to end it."""
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 30")
        await r.running_command("alice", f"s/{said.run.id}/1")
        loop = r.box("alice").loops[said.run.id]

        async def forged() -> None:
            loop.start = {**loop.start, "token": "forged"}
            r.box("alice").mute = True

        async with asyncio.timeout(30):
            await r.restart(forged)
            assert (await r.engine.boxes.stop(OPERATOR, "default", "alice")).observed == "stopped"


async def test_another_ask_than_the_recorded_one_fails_the_run_as_diverged(tmp_path: Path) -> None:
    tries: list[int] = []

    async def changes_its_mind(loop: Loop) -> None:
        tries.append(1)
        command = "echo first" if len(tries) == 1 else "echo second"
        await loop.ask("step.begin", wire.StepBegin(loop.start["token"], 1, "shell", {"command": command}, "local"))
        raise NotFound("this loop dies")

    async with rig(tmp_path, script=changes_its_mind) as r:
        turn = await r.asked("alice", "go")
        assert (turn.state, turn.reason) == (TurnState.FAILED, "diverged")
        seen = await r.engine.threads.events(r.actors["alice"], "default", "t", 0, 100)
        [detail] = [event["body"] for event in seen if event["kind"] == "run.detail"]
        assert "echo first" in str(detail["recorded"])
        assert "echo second" in str(detail["asked"])
        assert f"s/{turn.run}/1" in r.box("alice").spawned
        assert len(r.box("alice").spawned) == 1


async def test_three_attempts_are_enough(tmp_path: Path) -> None:
    async def dies(loop: Loop) -> None:
        raise NotFound("always")

    async with rig(tmp_path, script=dies) as r:
        turn = await r.asked("alice", "go")
        assert (turn.state, turn.reason) == (TurnState.FAILED, "retries_exhausted")
        assert (await r.store.runs.get(turn.run)).attempts == 3  # type: ignore[arg-type]
        [detail] = await r.details("alice")
        assert detail == {
            "code": "retries_exhausted",
            "cause": "loop_ended",
            "message": "tried 3 times; the last time the agent loop ended with status 1",
        }


async def test_what_the_server_failed_in_is_tried_again_and_named_in_the_end(tmp_path: Path) -> None:
    async def gives_up(loop: Loop) -> None:
        await loop.ask("run.fail", wire.RunFail(loop.start["token"], "unavailable", "the model is overloaded"))

    async with rig(tmp_path, script=gives_up) as r:
        turn = await r.asked("alice", "go")
        assert (turn.state, turn.reason) == (TurnState.FAILED, "retries_exhausted")
        [detail] = await r.details("alice")
        said = "tried 3 times; the last time the agent loop gave up (unavailable): the model is overloaded"
        assert detail["message"] == said


async def test_a_run_that_was_cancelled_while_no_server_ran(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 30")
        key = f"s/{said.run.id}/1"
        await r.running_command("alice", key)

        async def cancelled() -> None:
            await r.store.runs.cancel(said.run.id)
            await r.world.kill_loop(r.box("alice").id, said.run.id)

        await r.restart(cancelled)
        assert (await r.turn(said)).state is TurnState.CANCELLED
        await eventually(lambda: key not in r.box("alice").commands, "its command is stopped and forgotten")


async def test_an_executor_that_lost_its_lease_is_refused_and_stopped(tmp_path: Path) -> None:
    """F30: another kernel has raised the epoch."""
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo x >> log; sleep 0.6\n$ echo y >> log")
        await r.running_command("alice", f"s/{said.run.id}/1")
        loop = r.box("alice").loops[said.run.id]
        await r.store.runs.adopt(said.run.id, "another kernel", 1)
        assert loop.task is not None
        await asyncio.wait({loop.task}, timeout=30)
        assert loop.task.done()
        run = await r.store.runs.get(said.run.id)
        assert run.epoch == 2
        [step] = await r.store.steps.all(said.run.id)
        assert (step.n, step.state.value) in ((1, "begun"), (1, "interrupted"))


async def test_a_box_that_cannot_start_costs_attempts_and_not_the_server(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.world.fail_start = [Unavailable("no cgroups", remedy="mount them")]
        turn = await r.asked("alice", "$ echo x")
        assert turn.state is TurnState.COMPLETED
        assert (await r.store.runs.get(turn.run)).attempts == 2  # type: ignore[arg-type]
