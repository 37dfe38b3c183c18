"""Threads, members, messages, turns and events: what kernel/ports.py promises, on a real file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Conflict, Invalid, KeyReused, LaneBusy, NameInvalid, NotFound, TooLarge
from ringfence.host.kernel.ids import TenantId, ThreadId, TurnId, UserId
from ringfence.host.kernel.people import UserKind
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES, Attachment, EventKind, TurnState
from ringfence.host.store import events as store_events
from tests.support.store import Team, a_team, opened


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def test_threads(team: Team) -> None:
    threads = team.store.threads
    private = await threads.add(team.tenant.id, "plan", [team.alice.id], True)
    assert private.parallel
    assert private.members == {team.alice.id}
    assert await threads.get(team.tenant.id, "plan") == private
    assert await threads.by_id(private.id) == private
    assert [thread.name for thread in await threads.of_member(team.alice.id)] == ["#team", "plan"]
    assert [thread.name for thread in await threads.of_member(team.bob.id)] == ["#team"]
    assert [thread.name for thread in await threads.of_tenant(team.tenant.id)] == ["#team", "plan"]
    with pytest.raises(Conflict, match="'plan' exists"):
        await threads.add(team.tenant.id, "plan", [], False)
    with pytest.raises(NameInvalid):
        await threads.add(team.tenant.id, "a/b", [], False)
    with pytest.raises(NotFound):
        await threads.add(TenantId("ten_none"), "x", [], False)
    with pytest.raises(NotFound):
        await threads.add(team.tenant.id, "x", [UserId("usr_none")], False)
    for name in ("Plan", "none", "\udcff"):
        with pytest.raises(NotFound, match="no such thread: "):
            await threads.get(team.tenant.id, name)
    with pytest.raises(NotFound):
        await threads.by_id(ThreadId("thr_none"))


async def test_members_come_and_go_as_events(team: Team) -> None:
    threads, events = team.store.threads, team.store.events
    out = await threads.set_member(team.thread.id, team.bob.id, False)
    assert out.members == {team.alice.id}
    assert (await threads.set_member(team.thread.id, team.bob.id, False)).members == {team.alice.id}
    back = await threads.set_member(team.thread.id, team.bob.id, True)
    assert back.members == {team.alice.id, team.bob.id}
    kept = await events.after(team.thread.id, 0, 10)
    assert [(event.kind, event.body, event.actor) for event in kept] == [
        (EventKind.MEMBER_REMOVED, {"user": "bob"}, team.bob.id),
        (EventKind.MEMBER_ADDED, {"user": "bob"}, team.bob.id),
    ]
    await team.store.tenants.add("other")
    stranger = await team.store.users.add("other", "eve", UserKind.PERSON, None)
    with pytest.raises(NotFound):
        await threads.set_member(team.thread.id, stranger.id, True)
    with pytest.raises(NotFound):
        await threads.add(team.tenant.id, "x", [stranger.id], False)


async def test_a_message_becomes_a_turn_and_a_queued_run(team: Team) -> None:
    accepted = await team.say("hello\n经济 \U0001f600")
    message, turn, run = accepted.message, accepted.turn, accepted.run
    assert (message.text, message.author, message.author_name) == ("hello\n经济 \U0001f600", team.alice.id, "alice")
    assert (turn.state, turn.run, turn.message, turn.lane) == (TurnState.QUEUED, run.id, message.id, team.thread.id)
    assert (run.state, run.epoch, run.attempts, run.token_hash) == (RunState.QUEUED, 0, 0, "")
    assert not accepted.repeated
    assert await team.store.turns.get(turn.id) == turn
    assert await team.get(run.id) == run
    assert await team.store.threads.messages(team.thread.id, None, 10) == [message]
    first, second = await team.store.events.after(team.thread.id, 0, 10)
    assert (first.kind, first.cursor) == (EventKind.MESSAGE, message.cursor)
    assert first.body == {"author": "alice", "text": message.text, "message": message.id}
    assert (second.kind, second.turn, second.run) == (EventKind.RUN_QUEUED, turn.id, run.id)
    with pytest.raises(NotFound):
        await team.store.turns.get(TurnId("trn_none"))


async def test_a_refused_message_leaves_nothing(team: Team) -> None:
    turns = team.store.turns
    at_limit = "é" * (MAX_MESSAGE_BYTES // 2)
    await team.say(at_limit)
    with pytest.raises(TooLarge, match=f"{MAX_MESSAGE_BYTES + 1} bytes; the limit is {MAX_MESSAGE_BYTES}"):
        await team.say(at_limit + "x")
    for text in ("a\0b", "\udc80"):
        with pytest.raises(Invalid):
            await team.say(text)
    for key in ("", "k" * 201, "\udc80"):
        with pytest.raises(Invalid):
            await team.say(key=key)
    with pytest.raises(NotFound):
        await turns.accept(ThreadId("thr_none"), team.alice.id, "x", "queue", None)
    with pytest.raises(NotFound):
        await turns.accept(team.thread.id, UserId("usr_none"), "x", "queue", None)
    assert len(await team.store.events.after(team.thread.id, 0, 10)) == 2


async def test_a_key_can_be_asked_for_without_posting(team: Team) -> None:
    """By who cannot find again what the first message had attached."""
    turns, ask = team.store.turns, (team.thread.id, team.alice.id, "x", "queue")
    assert await turns.repeat(*ask, "k", ["notes"]) is None
    first = await turns.accept(team.thread.id, team.alice.id, "x", "queue", "k", [Attachment("notes", 3)])
    again = await turns.repeat(*ask, "k", ["notes"])
    assert again is not None and again.repeated and again.message == first.message
    with pytest.raises(KeyReused):
        await turns.repeat(*ask, "k", ["others"])
    assert await turns.repeat(team.thread.id, team.bob.id, "x", "queue", "k", ["notes"]) is None


async def test_a_key_makes_one_turn(team: Team) -> None:
    first = await team.say("x", key="k")
    again = await team.say("x", key="k")
    assert again.repeated
    assert (again.turn, again.run, again.message) == (first.turn, first.run, first.message)
    with pytest.raises(KeyReused):
        await team.say("y", key="k")
    other = await team.say("x", user=team.bob, key="k")
    assert not other.repeated, "keys belong to the actor"
    at_once = await asyncio.gather(*(team.say("z", key="k2") for _ in range(20)))
    assert len({accepted.turn.id for accepted in at_once}) == 1
    assert sum(not accepted.repeated for accepted in at_once) == 1
    await team.claim()
    assert (await team.say("x", key="k")).turn.state is TurnState.RUNNING, "a repeat answers with the state of now"
    team.clock.pass_seconds(7 * 86400 - 1)
    assert (await team.say("x", key="k")).repeated
    team.clock.pass_seconds(1)
    assert not (await team.say("x", key="k")).repeated


async def test_a_busy_lane_rejects_when_asked_to(team: Team) -> None:
    turns = team.store.turns
    first = await turns.accept(team.thread.id, team.alice.id, "x", "reject", None)
    with pytest.raises(LaneBusy):
        await turns.accept(team.thread.id, team.bob.id, "y", "reject", "k")
    [run] = await team.claim()
    with pytest.raises(LaneBusy):
        await turns.accept(team.thread.id, team.bob.id, "y", "reject", "k")
    await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "done")
    second = await turns.accept(team.thread.id, team.bob.id, "y", "reject", "k")
    assert second.turn.id != first.turn.id


async def test_lanes_of_a_parallel_thread_are_the_actors(tmp_path: Path) -> None:
    async with a_team(tmp_path, parallel=True) as team:
        await team.say(user=team.alice)
        accepted = await team.store.turns.accept(team.thread.id, team.bob.id, "x", "reject", None)
        assert accepted.turn.lane == f"{team.thread.id}/{team.bob.id}"
        await team.say(user=team.alice)
        assert {run.actor for run in await team.claim()} == {team.alice.id, team.bob.id}
        assert await team.claim() == []


async def test_messages_page_backwards(team: Team) -> None:
    for number in range(7):
        await team.say(str(number))
    messages = team.store.threads.messages
    newest = await messages(team.thread.id, None, 3)
    assert [message.text for message in newest] == ["4", "5", "6"]
    assert [message.text for message in await messages(team.thread.id, newest[0].cursor, 3)] == ["1", "2", "3"]
    assert [message.text for message in await messages(team.thread.id, 1 << 80, 1)] == ["6"]
    assert await messages(team.thread.id, 1, 3) == []
    assert await messages(team.thread.id, None, -1) == []


async def test_events_have_cursors_without_gaps(team: Team) -> None:
    events = team.store.events
    others = [await team.store.threads.add(team.tenant.id, f"t{n}", [], False) for n in range(3)]
    where = [team.thread, *others]
    made = await asyncio.gather(
        *(events.append(where[n % 4].id, EventKind.BREAK_GLASS, {"n": n}, actor=team.bob.id) for n in range(200))
    )
    for thread in where:
        kept = await events.after(thread.id, 0, 1000)
        assert [event.cursor for event in kept] == list(range(1, 51))
        assert kept == sorted((event for event in made if event.thread == thread.id), key=lambda event: event.cursor)
    assert [event.cursor for event in await events.after(team.thread.id, 48, 10)] == [49, 50]
    assert [event.cursor for event in await events.after(team.thread.id, 10, 2)] == [11, 12]
    assert await events.after(team.thread.id, 1 << 80, 10) == []
    assert await events.after(ThreadId("thr_none"), 0, 10) == []
    with pytest.raises(NotFound):
        await events.append(ThreadId("thr_none"), EventKind.BREAK_GLASS, {})
    with pytest.raises(Invalid):
        await events.append(team.thread.id, EventKind.BREAK_GLASS, {"x": float("nan")})
    with pytest.raises(TooLarge):
        await events.append(team.thread.id, EventKind.BREAK_GLASS, {"x": "y" * (3 << 20)})
    assert len(await events.after(team.thread.id, 0, 1000)) == 50


async def test_waiting_for_an_event(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Woken by the commit: the poll comes in an hour."""
    monkeypatch.setattr(store_events, "POLL_SECONDS", 3600.0)
    events = team.store.events
    assert not await events.changed(team.thread.id, 0, 0.01)
    waiting = [asyncio.create_task(events.changed(team.thread.id, 0, 3600)) for _ in range(50)]
    await asyncio.sleep(0.05)
    await team.say()
    async with asyncio.timeout(30):
        assert all(await asyncio.gather(*waiting))
    assert await events.changed(team.thread.id, 1, 0)
    assert not await events.changed(team.thread.id, 2, 0)
    with pytest.raises(NotFound):
        await events.changed(ThreadId("thr_none"), 0, 1)


async def test_another_process_is_seen_by_the_poll(team: Team, tmp_path: Path) -> None:
    async with opened(tmp_path, team.clock, first=1 << 40) as other:
        waiting = asyncio.create_task(other.events.changed(team.thread.id, 0, 20))
        await asyncio.sleep(0.05)
        await team.say()
        assert await waiting
        accepted = await other.turns.accept(team.thread.id, team.bob.id, "from there", "queue", None)
        assert (await team.store.turns.get(accepted.turn.id)).actor == team.bob.id
        assert [event.cursor for event in await team.store.events.after(team.thread.id, 0, 9)] == [1, 2, 3, 4]


async def test_closing_ends_a_wait(team: Team) -> None:
    waiting = asyncio.create_task(team.store.events.changed(team.thread.id, 0, 60))
    await asyncio.sleep(0.05)
    await team.store.close()
    done, _ = await asyncio.wait([waiting], timeout=30)
    assert done
    assert waiting.result() is False
