"""What is kept beside a thread's messages: the summaries of its actors' runs, and who has opened it by break-glass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Conflict, Invalid, NotFound, StaleEpoch, TooLarge
from ringfence.host.kernel.ids import RunId, ThreadId, UserId
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.kernel.threads import MAX_SUMMARY_BYTES, EventKind
from tests.support.store import Team, a_team, opened


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def talk(team: Team, turns: int) -> tuple[Run, list[int]]:
    """A run of alice's that works, behind some turns; the cursors of the thread's messages, her own last."""
    for number in range(turns):
        run = await team.running()
        await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", f"reply {number}")
    run = await team.running()
    return run, [message.cursor for message in await team.store.threads.messages(team.thread.id, None, 100)]


# --- summaries -------------------------------------------------------------------------------------------------------


async def test_a_summary_is_its_actors(team: Team) -> None:
    threads = team.store.threads
    run, cursors = await talk(team, 2)
    assert await threads.summary(team.thread.id, team.alice.id) is None
    made = await threads.set_summary(run.id, 1, cursors[1], "what was\0said")
    assert (made.thread, made.actor, made.cursor, made.text) == (
        team.thread.id,
        team.alice.id,
        cursors[1],
        "what was\ufffdsaid",
    )
    assert await threads.summary(team.thread.id, team.alice.id) == made
    assert await threads.summary(team.thread.id, team.bob.id) is None
    other = await threads.add(team.tenant.id, "other", [team.alice.id], False)
    for thread, user in (
        (other.id, team.alice.id),
        (ThreadId("\udc80"), team.alice.id),
        (team.thread.id, UserId("\0")),
    ):
        assert await threads.summary(thread, user) is None


async def test_the_newest_summary_stays(team: Team) -> None:
    threads = team.store.threads
    run, cursors = await talk(team, 2)
    middle = await threads.set_summary(run.id, 1, cursors[2], "middle")
    assert await threads.set_summary(run.id, 1, cursors[0], "older") == middle
    again = await threads.set_summary(run.id, 1, cursors[2], "made again")
    assert again.text == "made again"
    newer = await threads.set_summary(run.id, 1, cursors[3], "newer")
    assert await threads.summary(team.thread.id, team.alice.id) == newer
    await team.say("theirs", user=team.bob)
    await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", "done")
    [bobs] = await team.claim()
    mine = await threads.set_summary(bobs.id, 1, cursors[0], "bob's own")
    assert await threads.summary(team.thread.id, team.bob.id) == mine
    assert await threads.summary(team.thread.id, team.alice.id) == newer


async def test_what_is_no_summary_is_refused(team: Team) -> None:
    threads = team.store.threads
    run, cursors = await talk(team, 1)
    steer = await team.steer()
    no_message = cursors[0] + 1
    for cursor in (0, -1, no_message, cursors[-1], steer.message.cursor, 1 << 40, 1 << 80):
        with pytest.raises(Conflict):
            await threads.set_summary(run.id, 1, cursor, "x")
    with pytest.raises(TooLarge):
        await threads.set_summary(run.id, 1, cursors[0], "x" * (MAX_SUMMARY_BYTES + 1))
    with pytest.raises(StaleEpoch):
        await threads.set_summary(run.id, 2, cursors[0], "x")
    with pytest.raises(NotFound):
        await threads.set_summary(RunId("run_none"), 1, cursors[0], "x")
    assert await threads.summary(team.thread.id, team.alice.id) is None
    await threads.set_summary(run.id, 1, cursors[1], "x" * MAX_SUMMARY_BYTES)


async def test_summaries_go_with_their_user_and_stay_with_a_member_who_left(team: Team) -> None:
    threads = team.store.threads
    run, cursors = await talk(team, 1)
    made = await threads.set_summary(run.id, 1, cursors[0], "kept")
    await threads.set_member(team.thread.id, team.alice.id, False)
    assert await threads.summary(team.thread.id, team.alice.id) == made
    assert (await team.store.runs.end(run.id, 1, RunState.COMPLETED, "", "done")).state is RunState.COMPLETED
    await team.store.users.remove(team.alice.id)
    assert await threads.summary(team.thread.id, team.alice.id) is None
    assert (await team.say(user=team.bob)).run.state is RunState.QUEUED, "the lane goes on"


# --- break-glass -----------------------------------------------------------------------------------------------------


async def test_break_glass_is_told_and_closes_again(team: Team) -> None:
    threads = team.store.threads
    assert not await threads.glass(team.thread.id, "socket:0")
    before = team.store.commits
    until = await threads.break_glass(team.thread.id, "socket:0", "a court\0order", 900)
    assert team.store.commits == before + 1
    assert until == team.clock.now() + timedelta(seconds=900)
    event = await team.newest()
    assert (event.kind, event.actor, event.run) == (EventKind.BREAK_GLASS, None, None)
    assert event.body == {"by": "socket:0", "reason": "a court\ufffdorder", "until": until.isoformat()}
    assert await threads.glass(team.thread.id, "socket:0")
    other = await threads.add(team.tenant.id, "other", [], False)
    for thread, via in (
        (team.thread.id, "socket:1"),
        (other.id, "socket:0"),
        (team.thread.id, ""),
        (other.id, "\udc80"),
    ):
        assert not await threads.glass(thread, via)
    team.clock.pass_seconds(899)
    assert await threads.glass(team.thread.id, "socket:0")
    team.clock.pass_seconds(1)
    assert not await threads.glass(team.thread.id, "socket:0")


async def test_break_glass_again_is_told_again(team: Team) -> None:
    threads = team.store.threads
    await threads.break_glass(team.thread.id, "token:a", "why", 900)
    team.clock.pass_seconds(600)
    await threads.break_glass(team.thread.id, "socket:0", "why too", 10)
    until = await threads.break_glass(team.thread.id, "token:a", "still", 900)
    assert until == team.clock.now() + timedelta(seconds=900)
    assert [event.body["by"] for event in await team.events()] == ["token:a", "socket:0", "token:a"]
    team.clock.pass_seconds(600)
    assert await threads.glass(team.thread.id, "token:a")
    assert not await threads.glass(team.thread.id, "socket:0")


async def test_a_clock_that_is_turned_back_opens_nothing_for_longer(team: Team, tmp_path: Path) -> None:
    await team.store.threads.break_glass(team.thread.id, "socket:0", "why", 900)
    async with opened(tmp_path, team.clock, first=1 << 40) as later:
        assert await later.threads.glass(team.thread.id, "socket:0"), "it outlives the server"
    team.clock.jump(timedelta(hours=-1))
    async with opened(tmp_path, team.clock, first=1 << 50) as restarted:
        assert not await restarted.threads.glass(team.thread.id, "socket:0"), "by its clock it is not open yet"
    team.clock.pass_seconds(899)
    assert await team.store.threads.glass(team.thread.id, "socket:0"), "by the seconds that have passed it is"
    team.clock.pass_seconds(1)
    assert not await team.store.threads.glass(team.thread.id, "socket:0")
    again = await team.store.threads.break_glass(team.thread.id, "socket:0", "once more", 10)
    assert again > team.clock.now() + timedelta(minutes=30)  # the wall clock is behind still
    assert await team.store.threads.glass(team.thread.id, "socket:0")
    team.clock.pass_seconds(10)
    assert not await team.store.threads.glass(team.thread.id, "socket:0")


async def test_what_is_no_break_glass_is_refused(team: Team) -> None:
    glass = team.store.threads.break_glass
    with pytest.raises(NotFound):
        await glass(ThreadId("thr_none"), "socket:0", "why", 900)
    for seconds in (0, -1, float("inf"), float("nan"), 86_401):
        with pytest.raises(Invalid):
            await glass(team.thread.id, "socket:0", "why", seconds)
    with pytest.raises(Invalid):
        await glass(team.thread.id, "a\0", "why", 900)
    with pytest.raises(TooLarge):
        await glass(team.thread.id, "socket:0", "x" * 4097, 900)
    assert await team.events() == []
    assert not await team.store.threads.glass(team.thread.id, "socket:0")
