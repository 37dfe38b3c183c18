"""Steering: what joins a turn, what does not, and that nothing that was said is lost when a run ends at that moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from ringfence.host.kernel.errors import Invalid, KeyReused, LaneBusy, LaneFull, NotFound, Steered, TooLarge
from ringfence.host.kernel.ids import TurnId
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.kernel.threads import MAX_ATTACHMENTS, MAX_MESSAGE_BYTES, MAX_WAITING, Attachment, EventKind
from ringfence.host.store.lanes import MAX_STEERS
from ringfence.host.store.messages import _STEERS
from tests.support.store import Team, a_team, address, opened


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def texts(team: Team, turn: TurnId, after: int = 0) -> list[str]:
    return [message.text for message in await team.store.turns.said(turn, after)]


# --- what joins ------------------------------------------------------------------------------------------------------


async def test_a_steer_joins_the_turn_of_its_actor(team: Team) -> None:
    first = await team.say("first")
    [run] = await team.claim()
    runs_before = await team.store.runs.all(team.tenant.id, 100)
    steer = await team.steer("more")
    assert (steer.steered, steer.repeated) == (True, False)
    assert (steer.turn.id, steer.run.id, steer.message.turn) == (first.turn.id, run.id, first.turn.id)
    assert steer.turn.message == first.message.id
    assert await team.store.runs.all(team.tenant.id, 100) == runs_before
    event = await team.newest()
    assert (event.kind, event.turn, event.run, event.cursor) == (
        EventKind.MESSAGE,
        first.turn.id,
        run.id,
        steer.message.cursor,
    )
    assert event.body == {"author": "alice", "text": "more", "message": steer.message.id, "steer": True}
    assert await team.store.turns.said(first.turn.id) == [first.message, steer.message]
    assert await texts(team, first.turn.id, first.message.cursor) == ["more"]
    assert await texts(team, first.turn.id, steer.message.cursor) == []
    assert await texts(team, first.turn.id, 1 << 70) == []
    assert [message.text for message in await team.store.threads.messages(team.thread.id, None, 9)] == ["first", "more"]
    with pytest.raises(NotFound):
        await team.store.turns.said(TurnId("trn_none"))


async def test_a_steer_never_reaches_somebody_elses_run(team: Team) -> None:
    run = await team.running()
    other = await team.steer("do this", user=team.bob)
    assert not other.steered
    assert (other.run.state, other.run.actor, other.turn.actor) == (RunState.QUEUED, team.bob.id, team.bob.id)
    assert await texts(team, run.turn) == ["hello"]
    ended = await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", "done", run.epoch)
    assert ended.state is RunState.COMPLETED


async def test_without_a_live_run_a_steer_is_a_message(team: Team) -> None:
    first = await team.steer("nobody works")
    assert (first.steered, first.run.state) == (False, RunState.QUEUED)
    await team.store.runs.cancel(first.run.id)
    second = await team.steer("again")
    assert (second.steered, second.turn.id == first.turn.id) == (False, False)


async def test_the_run_that_is_nearest_is_steered(team: Team) -> None:
    first, second = await team.say("1"), await team.say("2")
    assert (await team.steer("a")).run.id == first.run.id, "both wait: the older"
    [run] = await team.claim()
    await team.store.runs.requeue(run.id, 1, "lost")
    await team.store.runs.cancel(first.run.id)
    assert (await team.steer("b")).run.id == second.run.id
    third = await team.say("3")
    [run] = await team.claim()
    assert run.id == second.run.id
    assert (await team.steer("c")).run.id == run.id
    await team.store.runs.cancel(run.id)
    assert (await team.steer("d")).run.id == third.run.id, "one that is being cancelled is told nothing more"
    assert await texts(team, second.turn.id) == ["2", "b", "c"]


async def test_lanes_of_a_parallel_thread_are_steered_apart(tmp_path: Path) -> None:
    async with a_team(tmp_path, parallel=True) as team:
        mine, yours = await team.say(user=team.alice), await team.say(user=team.bob)
        assert (await team.steer("a", user=team.alice)).turn.id == mine.turn.id
        assert (await team.steer("b", user=team.bob)).turn.id == yours.turn.id


async def test_a_turn_can_be_told_so_much(team: Team) -> None:
    """What run.start carries is bounded; what does not fit is queued, not lost."""
    run = await team.running()
    half = "x" * (MAX_MESSAGE_BYTES // 2)
    assert [(await team.steer(half)).steered for _ in range(3)] == [True, True, False]
    assert (await team.steer("y")).run.id != run.id
    await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", "done")
    [again] = await team.claim()
    told = [(await team.steer("y")).run.id == again.id for _ in range(MAX_STEERS)]
    assert all(told)
    assert (await team.steer("z")).run.id != again.id


@pytest.mark.sqlite
async def test_a_turns_steers_are_found_without_a_walk_through_the_thread(team: Team, tmp_path: Path) -> None:
    """I10: they are in an index of their own, in which no other message is."""
    engine = sa.create_engine(address(tmp_path))
    question = _STEERS.params(of_turn="t", after=0).compile(engine, compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        plan = [row.detail for row in connection.execute(sa.text(f"EXPLAIN QUERY PLAN {question}"))]
    engine.dispose()
    assert plan == ["SEARCH messages USING INDEX ix_messages_steer (turn=? AND cursor>?)"]


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_a_run_does_not_end_behind_the_back_of_its_actor(team: Team) -> None:
    runs = team.store.runs
    first = await team.say("first")
    [run] = await team.claim()
    await team.say("queued, not steered")
    one, two = await team.steer("1"), await team.steer("2")
    before = await team.events()
    for seen in (-1 << 80, -1, 0, first.message.cursor, one.message.cursor):
        with pytest.raises(Steered):
            await runs.end(run.id, 1, RunState.COMPLETED, "", "done", seen)
    assert await team.events() == before
    assert (await team.get(run.id)).state is RunState.RUNNING
    ended = await runs.end(run.id, 1, RunState.COMPLETED, "", "done", two.message.cursor)
    assert await runs.end(run.id, 1, RunState.COMPLETED, "", "done", 0) == ended, "finishing twice is one finish"
    assert (await team.steer("late")).turn.id != first.turn.id


async def test_its_own_message_is_no_reason_to_go_on(team: Team) -> None:
    """A loop that says it has seen nothing would go round for ever."""
    run = await team.running()
    assert (await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", "done", 0)).state is RunState.COMPLETED


async def test_an_end_that_answers_nothing_is_not_held_up(team: Team) -> None:
    run = await team.running()
    await team.steer()
    assert (await team.store.runs.end(run.id, 1, RunState.FAILED, "deadline", None)).state is RunState.FAILED
    reopened = await team.store.runs.reopen(run.id)
    assert await texts(team, reopened.turn) == ["hello", "and"], "tried again, it is told all of it"
    assert (await team.steer("too")).turn.id == run.turn


async def finished(team: Team, run: Run, seen: int) -> str:
    try:
        await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "done", seen)
    except Steered:
        return "steered"
    return "ended"


@pytest.mark.parametrize("other_process", [False, True])
async def test_nothing_that_is_said_at_the_end_is_lost(team: Team, tmp_path: Path, other_process: bool) -> None:
    """200 times: steers and a finish at once. Each is answered by Steered or becomes a turn of its own: never neither,
    never both. Within one writer the order of a batch decides; from another process the lock of the database."""
    chance = random.Random(7)
    outcomes = set()
    async with opened(tmp_path, team.clock, first=1 << 40) as other:
        store = other if other_process else team.store

        async def steer(text: str) -> Accepted:
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.004]))
            return await store.turns.accept(team.thread.id, team.alice.id, text, "steer", None)

        async def finish(run: Run, seen: int) -> str:
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.004]))
            return await finished(team, run, seen)

        for number in range(200):
            said = await team.say(f"{number}")
            [run] = await team.claim()
            ending = asyncio.create_task(finish(run, said.message.cursor))
            steers = await asyncio.gather(*(steer(f"{number}.{n}") for n in range(chance.choice([1, 1, 3]))))
            end = await ending
            joined = [steer for steer in steers if steer.turn.id == run.turn]
            assert (end == "steered") == bool(joined)
            in_turn = [message.id for message in await team.store.turns.said(run.turn, said.message.cursor)]
            assert sorted(in_turn) == sorted(steer.message.id for steer in joined)
            alone = {steer.turn.id: steer.run.id for steer in steers if steer not in joined}
            assert len(alone) <= 1, "the second one that came too late steers what the first has opened"
            outcomes.add(end)
            if end == "steered":
                newest = max(steer.message.cursor for steer in joined)
                assert await finished(team, run, newest) == "ended"
            for left in alone.values():
                assert (await team.store.runs.cancel(left)).state is RunState.CANCELLED
    assert outcomes == {"steered", "ended"}, "both were tried"
    events = await team.events()
    assert [event.cursor for event in events] == list(range(1, len(events) + 1))


# --- keys, attachments, room -----------------------------------------------------------------------------------------


async def test_a_key_of_a_steer_stands_for_it(team: Team) -> None:
    first = await team.say("first", key="k0")
    await team.claim()
    steer = await team.steer("more", key="k1")
    again = await team.steer("more", key="k1")
    assert (again.repeated, again.steered, again.message, again.turn.id) == (True, True, steer.message, first.turn.id)
    assert len(await team.store.turns.said(first.turn.id)) == 2
    with pytest.raises(KeyReused) as reused:
        await team.say("more", key="k1")
    assert reused.value.details["turn"] == first.turn.id, "another mode is another body"
    repeated = await team.say("first", key="k0")
    assert (repeated.repeated, repeated.steered) == (True, False)
    await team.store.runs.end(first.run.id, 1, RunState.COMPLETED, "", "done")
    assert (await team.steer("more", key="k1")).steered, "the turn that it joined, also when that is over"


async def test_attachments(team: Team) -> None:
    accept, files = team.store.turns.accept, [Attachment("notes.txt", 0), Attachment("d/\u7ecf.csv", 1 << 40)]
    accepted = await accept(team.thread.id, team.alice.id, "look", "queue", "k", files)
    assert accepted.message.attachments == tuple(files)
    [message] = await team.store.threads.messages(team.thread.id, None, 9)
    assert message == accepted.message
    event = (await team.events())[0]
    assert event.body == {
        "author": "alice",
        "text": "look",
        "message": message.id,
        "attachments": [{"path": "notes.txt", "size": 0}, {"path": "d/\u7ecf.csv", "size": 1 << 40}],
    }
    grown = [Attachment("notes.txt", 7), files[1]]
    again = await accept(team.thread.id, team.alice.id, "look", "queue", "k", grown)
    assert (again.repeated, again.message) == (True, message), "the same files were asked for"
    for other in ([], files[:1], files[::-1]):
        with pytest.raises(KeyReused):
            await accept(team.thread.id, team.alice.id, "look", "queue", "k", other)
    steer = await accept(team.thread.id, team.alice.id, "and", "steer", None, files[:1])
    assert (await team.newest()).body["attachments"] == [{"path": "notes.txt", "size": 0}]
    assert (await team.newest()).body["steer"] is True
    assert await team.store.turns.said(message.turn) == [message, steer.message]
    before = (await team.newest()).cursor
    with pytest.raises(TooLarge):
        await accept(team.thread.id, team.alice.id, "x", "queue", None, files[:1] * (MAX_ATTACHMENTS + 1))
    with pytest.raises(TooLarge):
        await accept(team.thread.id, team.alice.id, "x", "queue", None, [Attachment("x" * 4097, 1)])
    for bad in (Attachment("a\0b", 1), Attachment("\udc80", 1), Attachment("a", -1)):
        with pytest.raises(Invalid):
            await accept(team.thread.id, team.alice.id, "x", "queue", None, [bad])
    assert (await team.newest()).cursor == before


async def test_a_lane_is_full_at_some_point(team: Team) -> None:
    run = await team.running()
    waiting = [await team.say(str(n), user=team.bob, key=str(n)) for n in range(MAX_WAITING)]
    before = (await team.newest()).cursor
    with pytest.raises(LaneFull) as error:
        await team.say("x", user=team.bob, key="new")
    assert error.value.http_status == 429
    assert error.value.remedy
    with pytest.raises(LaneFull):
        await team.say("by alice")
    with pytest.raises(LaneBusy):
        await team.store.turns.accept(team.thread.id, team.bob.id, "x", "reject", None)
    assert (await team.newest()).cursor == before
    assert (await team.say("0", user=team.bob, key="0")).repeated, "what was accepted is answered"
    assert (await team.steer("the run that works can be told")).run.id == run.id
    other = await team.store.threads.add(team.tenant.id, "other", [team.alice.id], False)
    await team.store.turns.accept(other.id, team.alice.id, "another lane has room", "queue", None)
    await team.store.runs.cancel(waiting[50].run.id)
    await team.say("room again")
    with pytest.raises(LaneFull):
        await team.say("and full again")
