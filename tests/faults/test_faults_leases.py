"""F15, F30, F31, F32, F35, F36: a server that ends, leases that are lost, messages that come twice, runs by the thousand, a run
that kills its loops.

One server in this process and what stands for another one; two real processes are in test_several_kernels.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine.live import Held
from ringfence.host.engine.questions import Pen
from ringfence.host.kernel.dispatch import discharge, owed
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import NotFound, RingfenceError, StaleEpoch, Unavailable
from ringfence.host.kernel.failpoints import Point
from ringfence.host.kernel.gates import Call, GateState
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.policy import decide
from ringfence.host.kernel.runs import Effect, Run, RunState
from ringfence.host.kernel.threads import EventKind, TurnState
from ringfence.wire import messages as wire
from tests.support.engine_rig import FAR, Rig, eventually, rig
from tests.support.failing import Armed
from tests.support.fakes import Loop, native
from tests.support.fakes import parked as idle
from tests.support.paying import ASK, BODY, KEY, asked, paid_key, paying

PATIENCE = 30.0


# --- F15: a server that ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("drains", [True, False], ids=["drains", "control"])
async def test_a_server_that_ends_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drains: bool) -> None:
    """What is said while it ends waits for the next server; what is at work is left at work, and handed over by epoch."""
    async with rig(tmp_path, script=idle) as r:
        held = await r.say("alice", "hello")
        await r.loop(held)
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def write() -> None:
            reached.set()
            await go_on.wait()

        engine = r.engine
        monkeypatch.setattr(engine._activity, "write", write)  # the first thing that a stop waits for
        if not drains:
            monkeypatch.setattr(engine._work, "drain", lambda: None)
        stopping = asyncio.create_task(engine.stop())
        async with asyncio.timeout(PATIENCE):
            await reached.wait()
        late = await r.say("bob", "hello", thread="b")
        if drains:
            await eventually(lambda: "claims" not in _at_work(), "who claims has ended", PATIENCE)
        else:
            await r.until(late.run.id, lambda row: row.state is not RunState.QUEUED, PATIENCE)
        row = await r.store.runs.get(late.run.id)
        assert ((row.state, row.epoch) == (RunState.QUEUED, 0)) == drains
        go_on.set()
        await asyncio.wait_for(stopping, PATIENCE)
        assert held.run.id in r.box("alice").loops, "its loop is left at work"
        r.world.script = native
        r.engine = r._made()
        await r.engine.start()
        other = await r.until(held.run.id, lambda row: row.epoch == 2, PATIENCE)
        assert (other.state, other.attempts) == (RunState.RUNNING, 1)
        if drains:
            assert (await r.turn(late, PATIENCE)).state is TurnState.COMPLETED


def _at_work() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


# --- F30, F31: another one has the run -------------------------------------------------------------------------------


async def test_an_approval_and_an_effect_under_an_old_epoch(tmp_path: Path) -> None:
    """F30: neither is the approval used up nor an intent made of it, nor an effect touched, by who had the run
    before; its holder may."""
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await r.engine.stop()
        await r.engine.gates.answer(r.actors["alice"], gate.id, "allow", None)
        gate = await r.store.gates.get(gate.id)
        [held] = await r.store.runs.claim("before", 8, lambda _: "hash")
        now = await r.store.runs.adopt(said.run.id, "after", held.epoch)
        gates, effects, run = r.store.gates, r.store.effects, said.run.id
        call = Call(run, gate.n, gate.tool, "", gate.user, "", gate.sealed)
        due = owed(
            decide(ASK, gate.tool, gate.arguments, host=True), call, gate.arguments, Effect.ONCE, r.clock.now(), 999
        )
        going = discharge(due, notified=False, gate=gate, key=KEY, now=r.clock.now())
        with pytest.raises(StaleEpoch):
            await gates.use(run, held.epoch, gate.id, lambda *_: "")
        with pytest.raises(StaleEpoch):
            await gates.void(run, held.epoch, gate.id, "late")
        with pytest.raises(StaleEpoch):
            await effects.intend(going, held.epoch, lambda *_: "")
        with pytest.raises(StaleEpoch):
            await effects.mend(run, held.epoch, 1, gate.id, lambda *_: "", "another")
        for state in (EffectState.SENT, EffectState.UNKNOWN):
            with pytest.raises(StaleEpoch):
                await effects.mark(run, held.epoch, 1, state)
        with pytest.raises(StaleEpoch):
            await effects.settle(run, held.epoch, 1, EffectState.DONE, {}, {"ok": True})
        with pytest.raises(StaleEpoch):
            await effects.resolve(run, held.epoch, 1, gate.id, lambda *_: "", lambda _: {"ok": True})
        assert (await gates.get(gate.id)).state is GateState.ALLOWED
        assert await effects.of_run(run) == []
        row = await effects.intend(going, now.epoch, Pen(KEY).usable_for(going.call))
        assert (row.state, row.gate) == (EffectState.INTENDED, gate.id), "control: who has it now may"
        assert not outside.arrived


async def test_heartbeats_that_do_not_arrive(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """F31: the server lives, its loop works, and its database cannot be reached by the heartbeat alone. Another one takes
    the run over; from then on whatever the loop asks for is refused, an effect as well, and the first beat that gets through ends it."""
    caplog.set_level(logging.ERROR)
    async with paying(tmp_path) as (r, outside):
        r.world.script = idle
        said = await r.say("alice", "pay")
        loop = await r.loop(said)
        await r.until(said.run.id, lambda row: row.box is not None, PATIENCE)
        beat = r.store.runs.heartbeat
        lost = asyncio.Event()

        async def unheard(worker: str) -> dict[RunId, float]:
            lost.set()
            raise Unavailable("the database cannot be reached")

        r.store.runs.heartbeat = unheard  # type: ignore[method-assign]
        async with asyncio.timeout(PATIENCE):
            await lost.wait()
        token = loop.start["token"]
        await loop.ask("checkpoint.save", wire.CheckpointSave(token, "before_model", 0, "control", []))
        await r.store.runs.adopt(said.run.id, "another", 1)
        arguments = {"name": "pay", "body": BODY}
        for method, ask in (
            ("step.begin", wire.StepBegin(token, 1, "http.webhook", arguments, "host")),
            ("step.begin", wire.StepBegin(token, 1, "shell", {"command": "echo x"}, "local")),
            ("checkpoint.save", wire.CheckpointSave(token, "before_model", 0, "late", [])),
            ("run.finish", wire.RunFinish(token, "late", FAR)),
        ):
            with pytest.raises((StaleEpoch, NotFound)):
                await loop.ask(method, ask)
        r.store.runs.heartbeat = beat  # type: ignore[method-assign]
        await eventually(lambda: loop.task is not None and loop.task.done(), "the loop is ended", PATIENCE)
        row = await r.store.runs.get(said.run.id)
        assert (row.worker, row.epoch, row.state) == ("another", 2, RunState.RUNNING)
        checkpoint = await r.store.steps.checkpoint(said.run.id)
        assert checkpoint is not None and checkpoint.state == "control"
        assert (await r.store.steps.all(said.run.id), dict(outside.arrived)) == ([], {})
        assert "leases were not renewed" in caplog.text


@pytest.mark.parametrize("beats", [True, False], ids=["beats", "control"])
async def test_a_loop_that_says_nothing_and_lost_its_lease_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: bool
) -> None:
    """F31: nothing that it asks for finds out that somebody else has its run; the next beat does, and ends it."""
    async with rig(tmp_path, script=idle) as r:

        async def none(worker: str) -> list[Run]:
            return []

        said = await r.say("alice", "hello")
        loop = await r.loop(said)
        await r.until(said.run.id, lambda row: row.box is not None, PATIENCE)
        monkeypatch.setattr(r.store.runs, "expired", none)  # its new holder lives: no sweep looks at the run
        if not beats:
            monkeypatch.setattr(r.engine._work, "stop_loop", _stopped_nowhere)
        await r.store.runs.adopt(said.run.id, "another", 1)
        await eventually(lambda: r.engine._live.get(said.run.id) is None, "the beat is heard", PATIENCE)
        assert loop.task is not None
        if beats:
            await eventually(loop.task.done, "the loop is ended", PATIENCE)
        else:
            assert not loop.task.done()
        row = await r.store.runs.get(said.run.id)
        assert (row.worker, row.epoch, row.state) == ("another", 2, RunState.RUNNING)


async def _stopped_nowhere(held: Held, grace: float = 0.0) -> None:
    """work.Work.stop_loop that stops nothing."""


# --- F32: twice ------------------------------------------------------------------------------------------------------


async def twice(loop: Loop) -> None:
    """The native loop, each of whose asks arrives a second time, with the answer to the first one lost."""
    once = loop.ask

    async def ask(method: str, params: Any) -> Any:
        first = await once(method, params)
        try:
            return await once(method, params)
        except RingfenceError:
            return first  # refused because it was taken: what matters is that nothing came of it

    loop.ask = ask  # type: ignore[method-assign]
    await native(loop)


async def _once(r: Rig, run: RunId, thread: Any) -> None:
    """One reply, one end, no gap."""
    events = await r.store.events.after(thread, 0, 1000)
    assert [event.cursor for event in events] == list(range(1, len(events) + 1))
    kinds = Counter(event.kind for event in events if event.run == run)
    assert (kinds[EventKind.REPLY], kinds[EventKind.RUN_ENDED]) == (1, 1), kinds


async def test_every_ask_of_a_loop_arrives_twice(tmp_path: Path) -> None:
    async with paying(tmp_path) as (r, outside):
        r.world.script = twice
        said = await r.say("alice", "$ echo x >> log\n@write note.txt here\n$ cat log")
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert (r.box("alice").folder / "log").read_text() == "x\n"
        assert len(r.box("alice").spawned) == 2
        await _once(r, said.run.id, said.turn.thread)
        paid = await r.say("alice", "pay", thread="p")
        assert (await r.turn(paid, PATIENCE)).state is TurnState.COMPLETED
        assert dict(outside.arrived) == {paid_key(paid.run.id): 1}
        await _once(r, paid.run.id, paid.turn.thread)


@pytest.mark.parametrize("point", [Point.WIRE_SEND_BEFORE, Point.EFFECT_SEND_BEFORE, Point.LOOKUP_SEND_BEFORE])
async def test_every_send_of_the_host_is_made_twice(tmp_path: Path, point: Point) -> None:
    """The n-th, until none is: the receiver is sent a webhook a second time, under the same key, and does it once."""
    async with paying(tmp_path) as (r, outside):
        outside.behave = "cut_after"  # so that there is a look-up
        for n in range(1, 100):
            armed = r.with_parts["failpoints"] = Armed(point, n, "dup")
            await r.restart()
            log = r.box("alice").folder / f"log{n}"
            shell = await r.say("alice", f"$ echo x >> log{n}", thread=f"s{n}")
            paid = await r.say("alice", "pay", thread=f"p{n}")
            for said in (shell, paid):
                assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
                await _once(r, said.run.id, said.turn.thread)
            assert log.read_text() == "x\n"
            key = paid_key(paid.run.id)
            doubled = armed.fired is Point.EFFECT_SEND_BEFORE
            assert (key in outside.done, outside.arrived[key]) == (True, 1 + doubled)
            if armed.fired is None:
                break
        assert n > 1, "it never fired"


# --- F35, F36: many, and one that is poison --------------------------------------------------------------------------

PEOPLE = 50  # of each thread, and each with a lane of their own
SHOWN = 200  # done before the server is stopped


@pytest.mark.parametrize("threads", [20, pytest.param(200, marks=pytest.mark.soak)], ids=["1,000", "10,000"])
async def test_thousands_of_runs_of_a_server_that_is_gone(tmp_path: Path, threads: int) -> None:
    """F35: never more at work than the limit, boxes are started for those at work alone, nobody else waits for it all,
    and what is not done yet is all still there."""
    most, done = 0, 0

    async def counted(loop: Loop) -> None:
        nonlocal most, done
        most = max(most, sum(len(box.loops) for box in r.world.boxes.values()))
        await asyncio.sleep(0)
        await loop.ask("run.finish", wire.RunFinish(loop.start["token"], "ok", FAR))
        done += 1

    names = tuple(f"u{n}" for n in range(PEOPLE))
    async with rig(tmp_path, names, script=counted, max_runs=8) as r:
        await r.engine.stop()
        people = [actor.user.id for actor in r.actors.values() if actor.user]
        tenant = (await r.store.tenants.all())[0].id
        for number in range(threads):
            thread = await r.store.threads.add(tenant, f"t{number}", people, True)
            await asyncio.gather(*(r.store.turns.accept(thread.id, who, "hi", "queue", None) for who in people))
        assert len(await r.store.runs.claim("gone", 1 << 20, lambda _: "hash")) == PEOPLE * threads
        r.engine = r._made()
        await r.engine.start()
        newcomer = await r.person("newcomer")
        assert newcomer.user is not None
        mine = await r.say("newcomer", "hello", thread="mine")
        assert (await r.turn(mine, 120)).state is TurnState.COMPLETED, "it does not wait for all of them"
        assert done < PEOPLE * threads / 2
        await eventually(lambda: done >= SHOWN, "some are done", 120)
        assert (await r.engine.health.ping())["ok"]
        await r.engine.stop()
        assert most <= 8
        rows = await r.store.runs.all(tenant, 1 << 20)
        states = Counter(row.state for row in rows)
        assert states[RunState.COMPLETED] >= SHOWN and states[RunState.FAILED] == states[RunState.CANCELLED] == 0
        assert len(rows) == PEOPLE * threads + 1
        queued = [row.attempts for row in rows if row.state is RunState.QUEUED]
        assert set(queued) == {1}, (
            "the one of the server that is gone: none lost another in the queue, and some are there"
        )


@pytest.mark.parametrize("each", [2, 0], ids=["limit", "control"])
async def test_who_fills_the_server_leaves_room_for_others(tmp_path: Path, each: int) -> None:
    """F35: loops of one user that never end take the places that one user may have, and no more; without the limit all."""

    async def stays(loop: Loop) -> None:
        if "stay" in loop.start["messages"][-1]["text"]:
            await idle(loop)
        await native(loop)

    async with rig(tmp_path, script=stays, max_runs=3, max_user_runs=each) as r:
        for number in range(8):
            await r.say("alice", "stay", thread=f"a{number}")
        await eventually(lambda: len(r.box("alice").loops) == (each or 3), "all places that she may have", PATIENCE)
        mine = await r.say("bob", "$ echo here >> log", thread="b")
        if each:
            assert (await r.turn(mine, PATIENCE)).state is TurnState.COMPLETED
            assert len(r.box("alice").loops) == each
        else:
            await r.engine._work._claim()
            assert (await r.store.runs.get(mine.run.id)).state is RunState.QUEUED


async def test_a_run_that_kills_its_loops_is_given_up_and_others_are_not_held_up(tmp_path: Path) -> None:
    """F36: after three attempts with a longer wait each, for its reason; what others say is done meanwhile at once."""
    deaths: Counter[str] = Counter()

    async def poisoned(loop: Loop) -> None:
        if "poison" in loop.start["messages"][-1]["text"]:
            deaths[loop.run] += 1
            raise NotFound("it takes its loop with it")
        await native(loop)

    async with rig(tmp_path, script=poisoned, max_runs=2) as r:
        bad = [await r.say("alice", "poison", thread=f"bad{n}") for n in range(4)]
        good = [await r.say("bob", f"$ echo {n} >> log", thread=f"good{n}") for n in range(4)]
        own = await r.say("alice", "$ echo fine", thread="own")
        await eventually(lambda: deaths[bad[0].run.id], "a first death", PATIENCE)
        for said in (*good, own):
            assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        for said in bad:
            turn = await r.turn(said, PATIENCE)
            assert (turn.state, turn.reason) == (TurnState.FAILED, "retries_exhausted")
        assert set(deaths.values()) == {3}
        assert sorted((r.box("bob").folder / "log").read_text().split()) == ["0", "1", "2", "3"]
