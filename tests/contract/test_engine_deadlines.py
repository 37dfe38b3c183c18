"""Deadlines, loops that stay, and what is left of a run in memory: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ringfence.host.engine import model_call
from ringfence.host.engine.live import Held
from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from ringfence.host.store.schema import runs
from ringfence.wire import messages as wire
from tests.support.engine_rig import FAR, Rig, eventually, rig
from tests.support.fakes import FakeLink, Loop, native, parked


async def test_a_run_whose_loop_never_asks_ends_at_its_hard_deadline(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked, soft_seconds=0.2, hard_seconds=2.0) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        said = await r.say("alice", "go")
        loop = await r.loop(said)
        turn = await r.turn(said)
        assert (turn.state, turn.reason) == (TurnState.FAILED, "deadline")
        assert await r.details("alice") == [
            {"code": "deadline", "message": "it worked for 2 s, the most that a run may"}
        ]
        assert await r.details("bob") == [{"code": "deadline"}]
        await eventually(lambda: said.run.id not in r.box("alice").loops, "its loop is stopped")
        assert loop.winds == 1


async def test_its_command_ends_with_it_and_the_lane_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path, hard_seconds=0.6) as r:
        said = await r.say("alice", "$ sleep 30")
        key = f"s/{said.run.id}/1"
        await r.running_command("alice", key)
        command = r.box("alice").commands[key]
        after = await r.say("alice", "$ echo free")
        assert (await r.turn(said)).reason == "deadline"
        async with asyncio.timeout(30):
            assert (await command.ended).reason == "killed"
        await eventually(lambda: key not in r.box("alice").commands)
        assert (await r.turn(after)).state is TurnState.COMPLETED


async def test_waiting_in_the_queue_is_no_work(tmp_path: Path) -> None:
    async with rig(tmp_path, hard_seconds=120.0) as r:
        said = [await r.say("alice", f"$ sleep 0.5; echo {n}") for n in range(3)]
        for one in said:
            assert (await r.turn(one)).state is TurnState.COMPLETED
        last = await r.store.runs.get(said[2].run.id)
        assert last.ended_at is not None and last.worked >= 0.5
        waited = (last.ended_at - last.created_at).total_seconds() - last.worked
        assert waited > 0.95, "behind two that took 0.5 s each"


async def test_earlier_attempts_count(tmp_path: Path) -> None:
    """What a run has worked is in its row. Control: one that began anew has a quarter of an hour left."""
    async with rig(tmp_path, script=parked, hard_seconds=1000.0) as r:
        said, other = await r.say("alice", "go"), await r.say("bob", "go", thread="o")
        for one in (said, other):
            await r.loop(one)
        await asyncio.sleep(0.3)
        spent = sa.update(runs).where(runs.c.id == said.run.id).values(worked=999.9)
        await r.store._database.write(lambda tx: tx.connection.execute(spent))
        for name, one in (("alice", said), ("bob", other)):
            await r.world.kill_loop(r.box(name).id, one.run.id)
        again = await r.until(other.run.id, lambda row: row.epoch == 2 and row.state is RunState.RUNNING)
        assert again.worked > 0.25
        ended = await r.ended(said.run.id)
        assert (ended.reason, ended.epoch) == ("deadline", 2) and ended.worked >= 999.9
        assert (await r.store.runs.get(other.run.id)).state is RunState.RUNNING
        assert Held(again, since=10.0).worked(10.25) == again.worked + 0.25
        assert Held(again, since=10.0).worked(9.0) == again.worked


async def test_at_the_soft_deadline_the_loop_sums_up_without_tools(tmp_path: Path) -> None:
    async with rig(tmp_path, soft_seconds=0.3, hard_seconds=60.0) as r:
        said = await r.say("alice", "$ sleep 0.6\n$ echo never >> log")
        loop = await r.loop(said)
        turn = await r.turn(said)
        assert turn.state is TurnState.COMPLETED
        assert not (r.box("alice").folder / "log").exists()
        assert loop.winds == 1
        assert loop.wound is not None and 0 < loop.wound <= 60


async def test_a_model_that_hangs_does_not_eat_the_time_after_the_soft_deadline(tmp_path: Path) -> None:
    """With tools it never answers; without, at once. Its loop was told before its call was refused."""
    model = Hanging()
    async with rig(tmp_path, model=model, soft_seconds=1.0, hard_seconds=60.0) as r:
        said = await r.say("alice", "$ echo never")
        turn = await r.turn(said)
        assert (turn.state, turn.reason) == (TurnState.COMPLETED, "")
        assert model.offered == [3, 0]
        assert model.let_go == 1
        assert (await r.store.runs.get(said.run.id)).epoch == 1


async def test_the_last_words_are_not_hurried(tmp_path: Path) -> None:
    """Neither by the looks that come after, nor when the run is executed anew: a loop that knows asks without tools."""
    model = Hanging(seconds=0.5)
    async with rig(tmp_path, model=model, soft_seconds=0.1, hard_seconds=60.0) as r:
        said = await r.say("alice", "hello")
        await eventually(lambda: model.offered[-1:] == [0])
        known = len(model.offered)
        await asyncio.sleep(0.2)  # looks, and a heartbeat
        await r.world.kill_loop(r.box("alice").id, said.run.id)
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert model.offered[known:] == [0], "the new executor was told before its first call"


async def test_a_new_executor_past_its_soft_deadline_never_has_its_model_called_with_tools(tmp_path: Path) -> None:
    """However late it is told: its first call waits, and is refused once it has been."""
    model, refusals = Hanging(), []

    async def asks(loop: Loop) -> None:
        if loop.start["epoch"] == 1:
            await parked(loop)
        with pytest.raises(Unavailable) as refused:
            await loop.ask("model.generate", ask(loop))
        refusals.append((refused.value.message, loop.winds))
        await loop.ask("run.finish", wire.RunFinish(loop.start["token"], "so far", FAR))

    async with rig(tmp_path, script=asks, model=model, soft_seconds=0.1, hard_seconds=60.0) as r:
        said = await r.say("alice", "go")
        loop = await r.loop(said)
        await eventually(lambda: loop.winds)
        await asyncio.sleep(0.2)  # a heartbeat
        await r.world.kill_loop(r.box("alice").id, said.run.id)
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert refusals == [(model_call.ENDED, 1)]
        assert not model.offered


async def test_a_loop_is_told_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a guest is told of a run that it has not started yet would be lost."""
    start = FakeLink.start_run

    async def slow(link: FakeLink, fields: Mapping[str, Any]) -> int:
        await asyncio.sleep(0.5)
        return await start(link, fields)

    monkeypatch.setattr(FakeLink, "start_run", slow)
    async with rig(tmp_path, script=parked, soft_seconds=0.1, hard_seconds=60.0) as r:
        loop = await r.loop(await r.say("alice", "go"))
        await eventually(lambda: loop.winds == 1)


async def test_a_new_executor_is_told_again(tmp_path: Path) -> None:
    loops: list[Loop] = []

    async def notes(loop: Loop) -> None:
        loops.append(loop)
        await parked(loop)

    async with rig(tmp_path, script=notes, soft_seconds=0.1, hard_seconds=60.0) as r:
        said = await r.say("alice", "go")
        loop = await r.loop(said)
        await eventually(lambda: loop.winds)
        await r.restart()
        await eventually(lambda: loop.winds == 2)
        await r.world.kill_loop(r.box("alice").id, said.run.id)
        await eventually(lambda: len(loops) == 2 and loops[1].winds == 1)


async def test_no_deadline(tmp_path: Path) -> None:
    async with rig(tmp_path, soft_seconds=0.0, hard_seconds=0.0) as r:
        said = await r.say("alice", "$ sleep 0.5")
        loop = await r.loop(said)
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert loop.winds == 0


async def test_a_loop_that_stays_when_its_run_is_over_is_ended(tmp_path: Path) -> None:
    async def stays(loop: Loop) -> None:
        await loop.ask("run.finish", wire.RunFinish(loop.start["token"], "done", FAR))
        await parked(loop)

    async with rig(tmp_path, script=stays) as r:
        said = await r.say("alice", "go")
        loop = await r.loop(said)
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert said.run.id in r.box("alice").loops  # it may end by itself
        assert loop.task is not None
        await asyncio.wait({loop.task}, timeout=30)
        assert loop.task.done()
        assert r.box("alice").cancels == 1
        await eventually(lambda: not r.engine._leaving)


async def test_one_that_leaves_is_not_sent_for(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.asked("alice", "hello")
        await asyncio.sleep(r.config.leave_seconds + 3 * r.config.watch_seconds)
        assert r.box("alice").cancels == 0
        assert not r.engine._leaving


class Hanging:
    """ports.Model. Never answers what offers tools, and the rest after some seconds."""

    window = 100_000

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self.offered: list[int] = []  # tools, call for call
        self.let_go = 0

    async def generate(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], on_delta: Callable[[str], None]
    ) -> ModelReply:
        self.offered.append(len(tools))
        try:
            await asyncio.sleep(3600 if tools else self._seconds)
        except asyncio.CancelledError:
            self.let_go += 1
            raise
        return ModelReply("that is all", [], "end")


def ask(loop: Loop) -> wire.ModelGenerate:
    chat, tools = wire.ChatMessage("user", "go", [], None), [wire.ToolSpec("shell", "runs", {"type": "object"})]
    return wire.ModelGenerate(loop.start["token"], "scripted", 1, [chat], None, tools)


def left(r: Rig) -> list[int]:
    engine = r.engine
    slots = list(engine._links)
    return [
        len(engine._live),
        len(engine._leaving),
        len(engine._shell._flights),
        len(engine._shell._commands),
        sum(len(slot.keys) for slot in slots),
    ]


async def test_nothing_is_kept_of_a_run_that_is_over_however_it_ended(tmp_path: Path) -> None:
    tries = 0

    async def many(loop: Loop) -> None:
        nonlocal tries
        tries += 1
        if tries % 5 == 0:
            await loop.ask("run.fail", wire.RunFail(loop.start["token"], "loop_guard", "enough"))
        else:
            await native(loop)

    async with rig(tmp_path, script=many) as r:
        for _ in range(10):
            await r.asked("alice", "$ echo x")
        cut_off = await r.say("alice", "$ sleep 30")
        await r.running_command("alice", f"s/{cut_off.run.id}/1")
        await r.engine.runs.cancel(r.actors["alice"], cut_off.run.id)
        restarted = await r.say("alice", "$ sleep 30")
        await r.running_command("alice", f"s/{restarted.run.id}/1")
        await r.world.kill_box(r.box("alice").id)
        await r.turn(restarted)
        await eventually(lambda: left(r) == [0] * 5, "nothing left")
        await eventually(lambda: not r.box("alice").commands and not r.box("alice").loops)


async def test_a_command_of_a_run_that_ended_before_it_was_put_away_ends_with_the_next_wire(tmp_path: Path) -> None:
    """The server died in between."""
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ sleep 30")
        key = f"s/{said.run.id}/1"
        await r.running_command("alice", key)
        command = r.box("alice").commands[key]

        async def ended() -> None:
            await r.store.runs.end(said.run.id, 1, RunState.FAILED, "deadline", None)

        await r.restart(ended)
        async with asyncio.timeout(30):
            assert (await command.ended).reason == "killed"
        await eventually(lambda: not r.box("alice").commands)
        assert (await r.asked("alice", "$ echo on")).state is TurnState.COMPLETED
