"""Steers: told to the loop in their order, never lost, each taken up once, whatever is killed when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine import steering
from ringfence.host.kernel.threads import TurnState
from ringfence.wire import messages as wire
from tests.support.engine_rig import Rig, eventually, rig
from tests.support.fakes import Loop, native, parked


def texts(messages: Any) -> list[str]:
    return [message["text"] for message in messages]


async def test_a_steer_is_told_to_the_loop_at_once_and_in_order(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        said = await r.say("alice", "go")
        loop = await r.loop(said)
        for n in range(5):
            steer = await r.say("alice", f"steer {n}", mode="steer")
            assert (steer.steered, steer.run.id, steer.turn.id) == (True, said.run.id, said.turn.id)
        await eventually(lambda: len(loop.news) == 5)
        assert texts(loop.news) == [f"steer {n}" for n in range(5)]
        cursors = [message["cursor"] for message in loop.news]
        assert cursors == sorted(cursors)
        assert loop.news[0]["author"] == "alice"


async def test_a_steer_that_was_not_delivered_is_told_before_the_next_one(tmp_path: Path) -> None:
    """A loop takes a cursor to mean that it knows all before it: one left out would be lost."""
    async with rig(tmp_path, script=parked) as r:
        loop = await r.loop(await r.say("alice", "go"))
        r.box("alice").lost_steers = 1
        await r.say("alice", "one", mode="steer")
        await eventually(lambda: not r.box("alice").lost_steers)
        assert loop.news == []
        await r.say("alice", "two", mode="steer")
        await eventually(lambda: len(loop.news) == 2)
        assert texts(loop.news) == ["one", "two"]


async def test_a_steer_during_a_lost_wire_or_the_start_of_a_box_is_told_afterwards(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        r.world.start_seconds = 0.3
        said = await r.say("alice", "go")
        early = await r.say("alice", "early", mode="steer")
        assert early.steered
        loop = await r.loop(said)
        known = texts(loop.start["steers"])  # the box was quicker or slower
        r.world.lose_wire(r.box("alice").id)
        await r.say("alice", "late", mode="steer")
        await eventually(lambda: [*known, *texts(loop.news)] == ["early", "late"], "both")


async def test_a_guest_that_answers_no_steer_holds_up_nobody(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        said = await r.say("alice", "go")
        loop = await r.loop(said)
        r.box("alice").mute = True
        async with asyncio.timeout(steering.TELL_SECONDS / 2):
            assert (await r.say("alice", "more", mode="steer")).steered
        assert loop.news == []
        token, own = loop.start["token"], loop.start["messages"][-1]["cursor"]
        over = await loop.ask("run.finish", wire.RunFinish(token, "an answer to the first", own))
        assert texts(over["steers"]) == ["more"]
        seen = over["steers"][-1]["cursor"]
        assert (await loop.ask("run.finish", wire.RunFinish(token, "to both", seen))) == {"steers": []}
        assert (await r.turn(said)).reply == "to both"


async def test_a_finish_that_is_asked_again_on_a_new_wire_gets_the_same_steers(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        loop = await r.loop(await r.say("alice", "go"))
        await r.say("alice", "more", mode="steer")
        token, own = loop.start["token"], loop.start["messages"][-1]["cursor"]
        finish = wire.RunFinish(token, "first", own)
        once = await loop.ask("run.finish", finish)
        r.world.lose_wire(r.box("alice").id)
        assert await loop.ask("run.finish", finish) == once
        assert texts(once["steers"]) == ["more"]


async def test_another_persons_steer_waits_for_a_turn_of_its_own(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        first = await r.say("alice", "$ sleep 0.5; echo alice > whose")
        loop = await r.loop(first)
        second = await r.say("bob", "$ echo bob > whose", mode="steer")
        assert (second.steered, second.run.id != first.run.id) == (False, True)
        await r.turn(second)
        assert loop.news == []
        for name in ("alice", "bob"):
            assert (r.box(name).folder / "whose").read_text() == f"{name}\n"


Blow = Callable[[Rig, Any], Awaitable[None]]


async def the_loop(r: Rig, said: Any) -> None:
    await r.world.kill_loop(r.box("alice").id, said.run.id)


async def the_server(r: Rig, said: Any) -> None:
    await r.restart()


async def the_server_and_the_loop(r: Rig, said: Any) -> None:
    async def down() -> None:
        await r.world.kill_loop(r.box("alice").id, said.run.id)
        r.box("alice").reports.clear()

    await r.restart(down)


async def the_box(r: Rig, said: Any) -> None:
    await r.world.kill_box(r.box("alice").id)


@pytest.mark.parametrize("before", [True, False], ids=["steer-first", "blow-first"])
@pytest.mark.parametrize("blow", [the_loop, the_server, the_server_and_the_loop, the_box])
async def test_a_steer_around_a_blow_in_mid_turn_is_taken_up_exactly_once(
    tmp_path: Path, blow: Blow, before: bool
) -> None:
    async with rig(tmp_path) as r:
        said = await r.say("alice", "$ echo one >> log; sleep 0.6\n$ echo two >> log")
        await r.running_command("alice", f"s/{said.run.id}/1")
        await eventually((r.box("alice").folder / "log").exists)
        if not before:
            await blow(r, said)
        steer = await r.say("alice", "$ echo three >> log", mode="steer")
        assert steer.steered
        if before:
            await blow(r, said)
        turn = await r.turn(said)
        assert turn.state is TurnState.COMPLETED
        assert (r.box("alice").folder / "log").read_text() == "one\ntwo\nthree\n"
        last = await r.store.steps.checkpoint(said.run.id)
        assert last is not None
        asked = [m["text"] for m in json.loads(last.state)["messages"] if m["role"] == "user"]
        assert asked == ["$ echo one >> log; sleep 0.6\n$ echo two >> log", "$ echo three >> log"]
        steps = await r.store.steps.all(said.run.id)
        assert [step.state.value for step in steps[1:]] == ["ended", "ended"]
        assert steps[0].state.value == ("interrupted" if blow is the_box else "ended")
        events = await r.engine.threads.events(r.actors["alice"], "default", "t", 0, 1000)
        assert [event["kind"] for event in events].count("reply") == 1


async def test_a_new_attempt_is_given_all_steers_and_a_later_turn_reads_them_as_messages(tmp_path: Path) -> None:
    starts: list[Any] = []

    async def notes(loop: Loop) -> None:
        starts.append(loop.start)
        if len(starts) == 1:
            await parked(loop)
        await native(loop)

    async with rig(tmp_path, script=notes) as r:
        said = await r.say("alice", "one")
        await r.loop(said)
        for text in ("two", "three"):
            await r.say("alice", text, mode="steer")
        waits = await r.say("alice", "four")
        await r.world.kill_loop(r.box("alice").id, said.run.id)
        await r.turn(waits)
        assert (texts(starts[0]["messages"]), starts[0]["steers"]) == (["one"], [])
        assert (texts(starts[1]["messages"]), texts(starts[1]["steers"])) == (["one"], ["two", "three"])
        spoken = [m["text"] for m in starts[2]["messages"] if m["role"] == "user"]
        assert (spoken, starts[2]["steers"]) == (["one", "two", "three", "four"], [])


async def test_a_finish_that_has_seen_nothing_is_given_the_steers_and_not_its_own_message(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        loop = await r.loop(await r.say("alice", "go"))
        await r.say("alice", "more", mode="steer")
        over = await loop.ask("run.finish", wire.RunFinish(loop.start["token"], "x", 0))
        assert texts(over["steers"]) == ["more"]
