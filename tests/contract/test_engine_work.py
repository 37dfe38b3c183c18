"""From a message to a durable reply: claims, lanes, steps in the author's box, asks that make no sense, cancel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.kernel.threads import EventKind, TurnState
from ringfence.wire import messages as wire
from tests.support.engine_rig import FAR, OPERATOR, Rig, eventually, rig
from tests.support.fakes import Loop, native


async def kinds(r: Rig, turn: Any) -> list[str]:
    return [event.kind.value for event in await r.store.events.after(turn.thread, 0, 1000)]


async def test_a_message_becomes_a_run_in_its_authors_box(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        for name in ("alice", "bob"):
            turn = await r.asked(name, f"hello\n$ echo {name} > whose\n$ cat whose")
            assert turn.state is TurnState.COMPLETED
            assert turn.reply is not None
            assert name in turn.reply.splitlines()
            assert (r.box(name).folder / "whose").read_text() == f"{name}\n"
        assert (r.box("alice").starts, r.box("bob").starts) == (1, 1)
        wanted = ["message", "run.queued", "run.started", *["step.begun", "step.ended"] * 2, "reply", "run.ended"]
        assert await kinds(r, turn) == wanted * 2
        assert r.box("alice").commands == {}  # each outcome was released
        run = await r.store.runs.get(turn.run)  # type: ignore[arg-type]
        assert (run.box, run.guest_digest) == (r.box("bob").id, "d1")


async def test_file_tools_run_in_the_loop_and_are_journaled(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        turn = await r.asked("alice", "@write note hello there\n@read note")
        assert turn.reply is not None
        assert "hello there" in turn.reply
        assert turn.run is not None
        steps = await r.store.steps.all(turn.run)
        assert [(s.tool, s.effect.value, s.state.value) for s in steps] == [
            ("write", "idempotent", "ended"),
            ("read", "pure", "ended"),
        ]


async def test_what_a_command_did_is_in_the_journal(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        turn = await r.asked("alice", "$ echo out; echo err >&2; exit 3")
        assert turn.run is not None
        [step] = await r.store.steps.all(turn.run)
        assert step.result is not None
        assert {k: step.result[k] for k in ("ok", "exit_code", "signal", "reason", "stdout", "stderr")} == {
            "ok": False,
            "exit_code": 3,
            "signal": None,
            "reason": "exit",
            "stdout": "out\n",
            "stderr": "err\n",
        }


async def test_much_output_is_bounded_and_counted(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        turn = await r.asked("alice", "$ head -c 3000000 /dev/zero | tr '\\0' '\\001'; echo END")
        assert turn.run is not None
        [step] = await r.store.steps.all(turn.run)
        assert step.result is not None
        assert step.result["stdout"].endswith("END\n")
        assert 2_900_000 < step.result["stdout_dropped"] < 3_000_004


async def test_a_loop_that_gives_up_says_why_to_its_actor_alone(tmp_path: Path) -> None:
    async def gives_up(loop: Loop) -> None:
        await loop.ask("run.fail", wire.RunFail(loop.start["token"], "loop_guard", "50 calls of the model"))

    async with rig(tmp_path, script=gives_up) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        turn = await r.asked("alice", "go")
        assert (turn.state, turn.reason) == (TurnState.FAILED, "loop_guard")
        for name, body in (
            ("alice", {"code": "loop_guard", "message": "50 calls of the model"}),
            ("bob", {"code": "loop_guard"}),
        ):
            events = await r.engine.threads.events(r.actors[name], "default", "t", 0, 100)
            assert [event["body"] for event in events if event["kind"] == EventKind.RUN_DETAIL] == [body]


async def test_a_cancelled_run_ends_with_its_loop_and_its_command(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 30")
        key = f"s/{said.run.id}/1"
        await r.running_command("alice", key)
        command = r.box("alice").commands[key]
        with pytest.raises(NotFound):
            await r.engine.runs.cancel(r.actors["bob"], said.run.id)
        await r.engine.runs.cancel(r.actors["alice"], said.run.id)
        turn = await r.turn(said)
        assert (turn.state, turn.reason) == (TurnState.CANCELLED, "cancelled")
        assert (await command.ended).reason == "killed"
        await eventually(lambda: not r.box("alice").commands)
        assert (await r.asked("alice", "$ echo free")).state is TurnState.COMPLETED


async def test_asks_of_another_box_or_an_unknown_run_are_for_no_run(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 1")
        await r.running_command("alice", f"s/{said.run.id}/1")
        asks = r.engine._asks
        finish = wire.RunFinish("t", "mine", FAR)
        for box, run in (
            (r.box("bob").id, said.run.id),
            (r.box("alice").id, RunId("run_nope")),
            (BoxId("x" * 16), said.run.id),
        ):
            with pytest.raises(NotFound) as refused:
                await asks.ask(box, run, "run.finish", finish)
            assert str(refused.value).replace(run, "R") == "no such run: 'R'"
        with pytest.raises(NotFound):
            await asks.ask(r.box("alice").id, said.run.id, "gate.ask", finish)
        assert (await r.turn(said)).reply != "mine"


async def test_finishing_twice_is_one_finish(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        turn = await r.asked("alice", "$ echo x")
        assert turn.run is not None
        asks, box = r.engine._asks, r.box("alice").id
        assert await asks.ask(box, turn.run, "run.finish", wire.RunFinish("t", turn.reply or "", 0)) == {"steers": []}
        with pytest.raises(Conflict):
            await asks.ask(box, turn.run, "run.finish", wire.RunFinish("t", "other words", 0))
        assert (await r.store.turns.get(turn.id)).reply == turn.reply


async def test_a_loop_cannot_end_a_command_that_the_host_runs(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 0.5")
        await r.running_command("alice", f"s/{said.run.id}/1")
        end = wire.StepEnd("t", 1, {"ok": True, "stdout": "forged"})
        with pytest.raises(Conflict):
            await r.engine._asks.ask(r.box("alice").id, said.run.id, "step.end", end)
        await r.turn(said)
        [step] = await r.store.steps.all(said.run.id)
        assert step.result is not None
        assert step.result["stdout"] == ""


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": 1},
        {"command": " "},
        {"command": "x", "cwd": "rel"},
        {"command": "x", "timeout": -1},
        {"command": "x", "color": 1},
    ],
)
async def test_shell_calls_that_make_no_sense_are_told_so_and_journaled(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    told: list[Any] = []

    async def asks(loop: Loop) -> None:
        begun = await loop.ask("step.begin", wire.StepBegin(loop.start["token"], 1, "shell", arguments, "local"))
        told.append(begun)
        await loop.ask("run.finish", wire.RunFinish(loop.start["token"], "ok", FAR))

    async with rig(tmp_path, ("alice",), script=asks) as r:
        assert (await r.asked("alice", "go")).state is TurnState.COMPLETED
        assert (told[0]["decision"], told[0]["result"]["reason"], told[0]["result"]["ok"]) == ("done", "invalid", False)
        assert r.box("alice").spawned == []


async def test_a_timeout_of_a_step(tmp_path: Path) -> None:
    told: list[Any] = []

    async def asks(loop: Loop) -> None:
        slow = {"command": "sleep 30", "timeout": 0.2, "cwd": "/"}
        told.append(await loop.ask("step.begin", wire.StepBegin(loop.start["token"], 1, "shell", slow, "local")))
        await loop.ask("run.finish", wire.RunFinish(loop.start["token"], "ok", FAR))

    async with rig(tmp_path, ("alice",), script=asks) as r:
        await r.asked("alice", "go")
        assert told[0]["result"]["reason"] == "timeout"


async def test_lanes_are_ordered_and_parallel_ones_are_not_in_each_others_way(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        first = await r.say("alice", "$ sleep 0.3; echo 1 >> log", thread="lane")
        second = await r.say("alice", "$ echo 2 >> log", thread="lane")
        await r.turn(second)
        assert (r.box("alice").folder / "log").read_text() == "1\n2\n"
        assert (await r.store.turns.get(first.turn.id)).state is TurnState.COMPLETED
        await r.engine.threads.add(r.actors["alice"], "default", "wide", ["bob"], True)
        slow = await r.say("alice", "$ sleep 2", thread="wide")
        await r.running_command("alice", f"s/{slow.run.id}/1")
        assert (await r.turn(await r.say("bob", "$ echo free", thread="wide"), 1.5)).state is TurnState.COMPLETED
        assert (await r.store.runs.get(slow.run.id)).state is RunState.RUNNING


async def test_a_loop_is_given_the_thread_and_its_own_message_last(tmp_path: Path) -> None:
    given: list[Any] = []

    async def notes(loop: Loop) -> None:
        given.append(loop.start)
        await native(loop)

    async with rig(tmp_path, script=notes) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        first = await r.say("alice", "one\n$ sleep 0.3")
        await r.say("bob", "two")
        third = await r.say("alice", "three")
        await r.turn(third)
        assert [[m["text"].split("\n")[0] for m in start["messages"] if m["role"] == "user"] for start in given] == [
            ["one"],
            ["one", "two"],
            ["one", "two", "three"],
        ]
        assert [m["role"] for m in given[2]["messages"]] == ["user", "user", "agent", "agent", "user"]
        assert "no network" in given[0]["posture"]
        assert (given[0]["actor"], given[0]["thread"], given[0]["next_step"]) == ("alice", "t", 1)
        assert first.run.id == given[0]["run"]


async def test_no_more_than_the_limit_at_work(tmp_path: Path) -> None:
    most = 0
    now = 0
    three = asyncio.Barrier(3)  # of the twelve: so many do come, however slow the machine is

    async def counted(loop: Loop) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        async with asyncio.timeout(30):
            await three.wait()
        await asyncio.sleep(0.05)  # time for a fourth, if one could come
        now -= 1
        await loop.ask("run.finish", wire.RunFinish(loop.start["token"], "ok", FAR))

    async with rig(tmp_path, ("alice",), script=counted, max_runs=3) as r:
        said = [await r.say("alice", "x", thread=f"t{n}") for n in range(12)]
        for one in said:
            await r.turn(one)
        assert most == 3


async def test_a_removed_users_runs_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        running = await r.say("alice", "$ sleep 30")
        queued = await r.say("alice", "$ echo never")
        await r.running_command("alice", f"s/{running.run.id}/1")
        await r.engine.people.user_remove(OPERATOR, "default", "alice")
        ended: list[Run] = [await r.ended(one.run.id) for one in (running, queued)]
        assert [run.state for run in ended] == [RunState.CANCELLED, RunState.CANCELLED]
