"""What people do with threads and runs: steer, watch, break the glass, try again, cancel, leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine.attachments import Attachments
from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.crew import Crew
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.links import Links
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.say import Say, Steered
from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NotFound, Refused
from ringfence.host.kernel.people import Actor, Scope
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.kernel.threads import BREAK_GLASS_SECONDS, Message, TurnState
from ringfence.wire import messages as wire
from tests.support.engine_rig import OPERATOR, RealClock, Rig, eventually, rig
from tests.support.fakes import FakeBroker, Loop, native
from tests.support.store import newest


async def running(r: Rig, name: str, text: str = "$ sleep 30", thread: str = "t") -> Any:
    """What was accepted, once its first command runs."""
    said = await r.say(name, text, thread)
    await r.running_command(name, f"s/{said.run.id}/1")
    return said


async def kinds(r: Rig, actor: Actor, kind: str) -> list[dict[str, Any]]:
    events = await r.engine.threads.events(actor, "default", "t", 0, 1000)
    return [event["body"] for event in events if event["kind"] == kind]


# --- steer -----------------------------------------------------------------------------------------------------------


async def test_a_steer_joins_the_actors_own_turn(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        first = await running(r, "alice", "$ sleep 0.6; echo done")
        steer = await r.say("alice", "and be quick", mode="steer")
        assert (steer.steered, steer.turn.id, steer.run.id) == (True, first.turn.id, first.run.id)
        assert [m.text for m in await r.store.turns.said(first.turn.id)] == ["$ sleep 0.6; echo done", "and be quick"]
        turn = await r.turn(first)
        assert turn.state is TurnState.COMPLETED
        assert len(await r.engine.runs.list(r.actors["alice"], "default", 10)) == 1


async def test_a_steer_never_reaches_a_run_of_somebody_else(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        first = await running(r, "alice", "$ sleep 0.4")
        other = await r.say("bob", "$ echo mine", mode="steer")
        assert (other.steered, other.run.state) == (False, RunState.QUEUED)
        assert other.turn.id != first.turn.id
        assert [m.text for m in await r.store.turns.said(first.turn.id)] == ["$ sleep 0.4"]
        assert (await r.turn(first)).state is (await r.turn(other)).state is TurnState.COMPLETED
        assert [key.split("/")[1] for key in r.box("bob").spawned] == [other.run.id]
        assert [key.split("/")[1] for key in r.box("alice").spawned] == [first.run.id]


async def test_a_steer_with_nothing_at_work_and_one_behind_a_cancel(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        alone = await r.say("alice", "hello", mode="steer")
        assert not alone.steered
        assert (await r.turn(alone)).state is TurnState.COMPLETED
        first = await running(r, "alice")
        await r.store.runs.cancel(first.run.id)
        late = await r.say("alice", "wait", mode="steer")
        assert not late.steered
        assert late.turn.id != first.turn.id


def say_of(r: Rig, steered: Steered) -> Say:
    """The use case over the rig's parts, with a callback of the test's."""
    parts = Parts(r.store, r.driver, FakeBroker(r.world), {}, RealClock(), r.ids, r.config, "krn_x")

    def lost(_: str) -> None:
        raise AssertionError("no box is started here")

    bringup = BringUp(parts, Crew(), Links(parts), lost)
    return Say(parts, Doors(parts), lambda: None, steered, Attachments(parts, bringup))


async def test_a_message_is_accepted_whatever_becomes_of_telling_its_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.host.engine.say.TELL_SECONDS", 0.05)
    told: list[tuple[str, str]] = []

    async def hears(run: Run, message: Message) -> None:
        told.append((run.id, message.text))

    async def breaks(run: Run, message: Message) -> None:
        told.append((run.id, message.text))
        raise Failed("the wire broke")

    async def bug(run: Run, message: Message) -> None:
        raise ZeroDivisionError

    async def hangs(run: Run, message: Message) -> None:
        await asyncio.sleep(3600)

    async with rig(tmp_path) as r:
        alice = r.actors["alice"]
        first = await running(r, "alice")
        for n, steered in enumerate((hears, breaks, bug, hangs)):
            async with asyncio.timeout(30):
                said = await say_of(r, steered).say(alice, "default", "t", f"m{n}", "steer", None, ())
            assert said.steered
        assert [m.text for m in await r.store.turns.said(first.turn.id)][1:] == ["m0", "m1", "m2", "m3"]
        assert told == [(first.run.id, "m0"), (first.run.id, "m1")]


async def test_a_repeated_steer_is_one_message(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        first = await running(r, "alice")
        once = await r.say("alice", "more", mode="steer", key="k")
        again = await r.say("alice", "more", mode="steer", key="k")
        assert (again.repeated, again.message.id, again.turn.id) == (True, once.message.id, first.turn.id)
        assert len(await r.store.turns.said(first.turn.id)) == 2


# --- watching --------------------------------------------------------------------------------------------------------


async def test_a_watch_is_of_ones_own_runs_while_one_is_a_member(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        alice, bob = r.actors["alice"], r.actors["bob"]
        thread = await r.engine.threads.add(alice, "default", "t", ["bob"], False)
        assert alice.user is not None and bob.user is not None
        viewers = r.engine._viewers
        mine, bobs = [await r.engine.threads.watch(actor, "default", "t") for actor in (alice, bob)]
        operators = await r.engine.threads.watch(OPERATOR, "default", "t")
        viewers.publish(thread.id, alice.user.id, {"kind": "delta", "text": "s3cret"})
        assert mine.take() == [{"kind": "delta", "text": "s3cret"}]
        assert (bobs.take(), operators.take()) == ([], [])
        await r.engine.threads.set_member(alice, "default", "t", "bob", False)
        viewers.publish(thread.id, bob.user.id, {"kind": "delta", "text": "late"})
        assert bobs.take() == []
        with pytest.raises(NotFound):
            await r.engine.threads.watch(bob, "default", "t")
        for watch in (mine, bobs, operators):
            watch.close()
        assert len(viewers) == 0


# --- breaking the glass ----------------------------------------------------------------------------------------------

OTHER_OPERATOR = Actor(user=None, operator=True, via="token:tok_z", scopes=frozenset(Scope))


async def test_broken_glass_shows_text_and_no_steps(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        turn = await r.asked("alice", "my words\n$ echo s3cret > f")
        assert turn.run is not None and turn.reply is not None
        with pytest.raises(Refused):
            await r.engine.threads.messages(OPERATOR, "default", "t", None, 10)
        closes = await r.engine.threads.break_glass(OPERATOR, "default", "t", "  a complaint ")
        assert 0 < (closes - RealClock().now()).total_seconds() <= BREAK_GLASS_SECONDS
        row = (await newest(r.store.audit, 1))[0]
        assert (row["action"], row["details"]) == ("thread.break_glass", {"reason": "a complaint"})
        assert "my words" in str(await r.engine.threads.messages(OPERATOR, "default", "t", None, 10))
        assert (await r.engine.threads.turn(OPERATOR, turn.id)).reply == turn.reply
        assert (await kinds(r, OPERATOR, "message"))[0]["text"].startswith("my words")
        assert (await kinds(r, OPERATOR, "reply"))[0]["text"] == turn.reply
        assert await kinds(r, OPERATOR, "step.begun") == [{"n": 1}]
        assert [s.arguments for s in (await r.engine.runs.show(OPERATOR, turn.run)).steps] == [{}]
        with pytest.raises(Refused):
            await r.engine.threads.say(OPERATOR, "default", "t", "x", "queue", None)
        told = await kinds(r, r.actors["alice"], "break_glass")
        assert len(told) == 1
        assert told[0]["reason"] == "a complaint"


async def test_broken_glass_is_that_operators_that_threads_and_closes_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.asked("alice", "my words")
        await r.engine.threads.add(r.actors["alice"], "default", "else", [], False)
        thread = await r.store.threads.get(r.actors["alice"].user.tenant, "t")  # type: ignore[union-attr]
        await r.store.threads.break_glass(thread.id, OPERATOR.via, "a complaint", 1.0)
        assert await r.engine.threads.messages(OPERATOR, "default", "t", None, 10)
        for actor, name in ((OTHER_OPERATOR, "t"), (OPERATOR, "else")):
            with pytest.raises(Refused):
                await r.engine.threads.messages(actor, "default", name, None, 10)
        await asyncio.sleep(1.1)
        with pytest.raises(Refused):
            await r.engine.threads.messages(OPERATOR, "default", "t", None, 10)
        assert "text" not in (await kinds(r, OPERATOR, "message"))[0]


async def test_a_reason_that_says_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.asked("alice", "my words")
        for reason in ("", " ab ", "x" * 501, "abc\0", "abc\ud800"):
            with pytest.raises(Invalid):
                await r.engine.threads.break_glass(OPERATOR, "default", "t", reason)
        assert await kinds(r, r.actors["alice"], "break_glass") == []
        assert "thread.break_glass" not in str(await newest(r.store.audit, 10))


# --- trying again ----------------------------------------------------------------------------------------------------


async def once_broken(loop: Loop) -> None:
    """Breaks down in the first attempt."""
    if loop.start["epoch"] == 1:
        await loop.ask("run.fail", wire.RunFail(loop.start["token"], "loop_failed", "boom"))
    else:
        await native(loop)


async def test_a_failed_run_is_tried_again(tmp_path: Path) -> None:
    async with rig(tmp_path, script=once_broken) as r:
        alice = r.actors["alice"]
        said = await r.say("alice", "$ echo better")
        assert (await r.turn(said)).reason == "loop_failed"
        again = await r.engine.runs.redrive(alice, said.run.id)
        assert (again.state, again.attempts, again.token_hash) == (RunState.QUEUED, 0, "")
        turn = await r.turn(said)
        assert turn.state is TurnState.COMPLETED
        assert turn.reply is not None and "better" in turn.reply
        assert "run.redrive" not in str(await newest(r.store.audit, 10))  # one's own
        with pytest.raises(Conflict, match="only a failed one") as refused:
            await r.engine.runs.redrive(alice, said.run.id)
        assert refused.value.remedy == f"see: ringfence run show {said.run.id}"


async def test_a_run_is_not_tried_again_for_who_has_left(tmp_path: Path) -> None:
    async with rig(tmp_path, script=once_broken) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        said = await r.say("bob", "$ echo mine")
        await r.turn(said)
        await r.engine.threads.set_member(r.actors["alice"], "default", "t", "bob", False)
        for actor in (r.actors["bob"], OPERATOR):
            with pytest.raises(Conflict, match="no longer a member"):
                await r.engine.runs.redrive(actor, said.run.id)
        assert "run.redrive" not in str(await newest(r.store.audit, 10))
        await r.engine.threads.set_member(r.actors["alice"], "default", "t", "bob", True)
        await r.engine.runs.redrive(OPERATOR, said.run.id)
        assert (await newest(r.store.audit, 1))[0]["action"] == "run.redrive"
        assert (await r.turn(said)).state is TurnState.COMPLETED


# --- cancelling ------------------------------------------------------------------------------------------------------


async def test_a_waiting_run_is_cancelled_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        first = await running(r, "alice", "$ sleep 0.5")
        second, third = await r.say("alice", "second"), await r.say("alice", "third")
        cancelled = await r.engine.runs.cancel(r.actors["alice"], second.run.id)
        assert (cancelled.state, cancelled.reason, cancelled.token_hash) == (RunState.CANCELLED, "cancelled", "")
        assert (await r.store.turns.get(second.turn.id)).state is TurnState.CANCELLED
        assert (await r.turn(first)).state is (await r.turn(third)).state is TurnState.COMPLETED
        assert (await r.engine.runs.cancel(r.actors["alice"], first.run.id)).state is RunState.COMPLETED


@pytest.mark.parametrize("trouble", ["none", "mute", "unlinked", "starting"])
async def test_a_run_at_work_is_cancelled_and_its_lane_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr("ringfence.host.engine.cancels.PATIENCE", 0.5)
    async with rig(tmp_path) as r:
        if trouble == "starting":
            r.world.start_seconds = 3600.0
            said = await r.say("alice", "$ sleep 30")
            await r.until(said.run.id, lambda run: run.state is RunState.RUNNING)
        else:
            said = await running(r, "alice")
            box = r.box("alice")
            box.mute = trouble == "mute"
            if trouble == "unlinked":
                box.deaf = True
                r.world.lose_wire(box.id)
        behind = await r.say("alice", "$ echo behind")
        async with asyncio.timeout(30):
            await r.engine.runs.cancel(r.actors["alice"], said.run.id)
            turn = await r.turn(said)
        assert (turn.state, turn.reason, turn.reply) == (TurnState.CANCELLED, "cancelled", None)
        r.world.start_seconds = 0.0
        r.box("alice").mute = r.box("alice").deaf = False
        assert (await r.turn(behind)).state is TurnState.COMPLETED
        await eventually(lambda: f"s/{said.run.id}/1" not in r.box("alice").commands, "its command is stopped")


async def test_who_goes_away_does_not_end_the_cancelling(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await running(r, "alice")
        r.box("alice").mute = True
        cancelling = asyncio.create_task(r.engine.runs.cancel(r.actors["alice"], said.run.id))
        async with asyncio.timeout(30):
            while not (await r.store.runs.get(said.run.id)).cancel_requested:
                await asyncio.sleep(0.01)
        assert not cancelling.done()
        cancelling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelling
        assert (await r.turn(said)).state is TurnState.CANCELLED


# --- leaving ---------------------------------------------------------------------------------------------------------


async def test_a_member_who_is_removed(tmp_path: Path) -> None:
    """What ran goes on and its reply is the thread's; what waited is not begun."""
    async with rig(tmp_path) as r:
        alice, bob = r.actors["alice"], r.actors["bob"]
        await r.engine.threads.add(alice, "default", "t", ["bob"], True)
        works = await running(r, "bob", "$ sleep 0.6; echo late")
        waits = await r.say("bob", "$ echo never")
        others = await r.say("alice", "$ sleep 0.2")
        await r.engine.threads.set_member(alice, "default", "t", "bob", False)
        assert (await r.store.turns.get(waits.turn.id)).state is TurnState.CANCELLED
        assert (await r.turn(others)).state is TurnState.COMPLETED
        turn = await r.turn(works)
        assert turn.reply is not None and "late" in turn.reply
        assert turn.reply in [body["text"] for body in await kinds(r, alice, "reply")]
        for act in (
            r.engine.threads.messages(bob, "default", "t", None, 10),
            r.engine.threads.turn(bob, works.turn.id),
            r.say("bob", "again"),
        ):
            with pytest.raises(NotFound):
                await act
        assert (await r.engine.runs.show(bob, works.run.id)).steps[0].tool == "shell"  # his own
        assert len(r.box("bob").spawned) == 1


async def test_a_removed_members_run_that_lost_its_loop_is_not_begun_anew(tmp_path: Path) -> None:
    """It would be given what the others said since."""
    async with rig(tmp_path) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob", "alice"], False)
        said = {name: await running(r, name, thread="t" if name == "bob" else "own") for name in ("bob", "alice")}
        await r.engine.threads.set_member(r.actors["alice"], "default", "t", "bob", False)
        for name, one in said.items():
            await r.world.kill_loop(r.box(name).id, one.run.id)
        turn = await r.turn(said["bob"])
        assert (turn.state, turn.reason) == (TurnState.CANCELLED, "cancelled")
        again = await r.until(said["alice"].run.id, lambda run: run.state is RunState.RUNNING and run.epoch == 2)
        assert again.attempts == 2  # the control: a member's run is


async def test_a_user_who_is_removed(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        alice = r.actors["alice"]
        await r.engine.threads.add(alice, "default", "t", ["bob"], False)
        works = await running(r, "bob")
        waits, behind = await r.say("bob", "$ echo never"), await r.say("alice", "$ echo mine")
        await r.engine.people.user_remove(OPERATOR, "default", "bob")
        assert (await r.turn(works)).state is (await r.turn(waits)).state is TurnState.CANCELLED
        assert (await r.turn(behind)).state is TurnState.COMPLETED
        assert {view.user for view in await r.engine.runs.list(alice, "default", 10)} == {"alice", "(removed)"}
        assert (await r.engine.runs.show(alice, works.run.id)).user == "(removed)"
        events = await r.engine.threads.events(alice, "default", "t", 0, 100)
        assert {event["actor"] for event in events} == {"alice", "(removed)"}
        for actor in (alice, OPERATOR):
            with pytest.raises((Conflict, Refused)):
                await r.engine.runs.redrive(actor, works.run.id)
