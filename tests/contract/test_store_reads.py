"""Questions that are asked together: a page of events for a member, what a run begins with, the newest of a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.ids import RunId, ThreadId, UserId
from ringfence.host.kernel.people import UserKind
from ringfence.host.kernel.runs import RunState, StepState
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.events import Draft, append
from ringfence.host.store.transaction import Tx
from ringfence.host.store.wakes import MOST, Wakes
from tests.support.databases import outside
from tests.support.store import Team, a_team

ODD = "\ud800"
_CANCELLED = (RunState.CANCELLED, "cancelled", None)


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


# --- a page ----------------------------------------------------------------------------------------------------------


async def test_a_page_is_what_its_parts_say_and_for_members_only(team: Team) -> None:
    for user in (team.alice, team.bob):
        await team.say(user=user)
    page = team.store.reads.page
    whole = await page("default", "#team", team.alice.id, 0, 100)
    assert whole is not None
    assert list(whole.events) == await team.events()
    assert whole.names == {team.alice.id: "alice", team.bob.id: "bob"}
    part = await page("default", "#team", team.bob.id, 2, 1)
    assert part is not None
    assert ([event.cursor for event in part.events], part.names) == ([3], {team.bob.id: "bob"})
    nothing = await page("default", "#team", team.bob.id, 1 << 80, 9)
    assert nothing is not None
    assert (list(nothing.events), nothing.names) == ([], {})
    await team.store.threads.set_member(team.thread.id, team.bob.id, False)
    assert await page("default", "#team", team.bob.id, 0, 100) is None  # from that moment
    assert await page("default", "#team", team.alice.id, 0, 100) is not None
    await team.store.users.remove(team.bob.id)
    named = await page("default", "#team", team.alice.id, 0, 100)
    assert named is not None
    assert named.names == {team.alice.id: "alice"}


async def test_there_is_no_page_of_another_tenants_thread(team: Team) -> None:
    other = await team.store.tenants.add("other")
    eve = await team.store.users.add("other", "eve", UserKind.PERSON, None)
    await team.store.threads.add(other.id, "#team", [eve.id], False)
    page = team.store.reads.page
    assert await page("other", "#team", eve.id, 0, 9) is not None  # the control
    for tenant, name, user in (
        ("default", "#team", eve.id),
        ("other", "#team", team.alice.id),
        ("default", "#none", team.alice.id),
        ("none", "#team", team.alice.id),
        (ODD, "#team", team.alice.id),
        ("default", ODD, team.alice.id),
        ("default", "#team", UserId(ODD)),
    ):
        assert await page(tenant, name, user, 0, 9) is None
    assert await team.store.reads.thread("default", "#team") == team.thread
    for tenant, name in (("none", "#team"), ("default", "#none"), (ODD, "#team"), ("default", ODD)):
        with pytest.raises(NotFound, match="no such thread"):
            await team.store.reads.thread(tenant, name)


async def test_who_may_not_see_asks_as_much_as_who_asks_for_nothing(team: Team) -> None:
    asked: list[str] = []

    def heard(_c: object, _u: object, statement: str, _p: object, _x: object, _m: bool) -> None:
        if not statement.startswith("PRAGMA"):
            asked.append(statement)

    async def questions(name: str) -> list[str]:
        asked.clear()
        await team.store.reads.page("default", name, UserId("usr_stranger"), 0, 9)
        with pytest.raises(NotFound):
            await team.store.reads.thread("none" if name == "#team" else "default", name)
        return list(asked)

    await team.say()
    sa.event.listen(sa.Engine, "before_cursor_execute", heard)
    try:
        assert await questions("#team") == await questions("#none") != []
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", heard)


# --- what a run begins with ------------------------------------------------------------------------------------------


async def test_a_brief_is_what_its_parts_say(team: Team) -> None:
    await team.say("before")
    [first] = await team.claim()
    await team.begin(first, 1)
    await team.store.steps.save_checkpoint(first.id, first.epoch, "before_effect", 0, "{}")
    await team.steer("more")
    brief, store = await team.store.reads.brief(first.id, 9, 1 << 20), team.store
    assert (brief.user, brief.thread) == (team.alice, team.thread)
    assert list(brief.said) == await store.turns.said(first.turn)
    assert [message.text for message in brief.said] == ["before", "more"]
    assert brief.checkpoint == await store.steps.checkpoint(first.id) is not None
    assert brief.steps == {step.n: step.state for step in await store.steps.all(first.id)} != {}
    assert brief.summary is None and brief.box is None
    assert (list(brief.tail.messages), brief.tail.more) == await store.reads.tail(team.thread.id, None, 0, 9, 1 << 20)
    box = await store.boxes.home_of(team.alice, "fake", Limits())
    assert (await store.reads.brief(first.id, 9, 1 << 20)).box == box
    with pytest.raises(NotFound):
        await store.reads.brief(RunId("run_none"), 9, 1 << 20)
    await store.users.remove(team.alice.id)
    with pytest.raises(NotFound, match="no such user"):
        await store.reads.brief(first.id, 9, 1 << 20)


async def test_the_summary_of_a_brief_is_its_actors_own(team: Team) -> None:
    old = await team.say("long ago")
    [run] = await team.claim()
    await team.store.runs.cancel(run.id)
    await team.store.runs.end(run.id, run.epoch, *_CANCELLED)
    await team.say("and now")
    [mine] = await team.claim()
    await team.store.threads.set_summary(mine.id, mine.epoch, old.message.cursor, "in short")
    brief = await team.store.reads.brief(mine.id, 9, 1 << 20)
    summary = brief.summary
    assert summary is not None
    assert brief.tail.after == summary.cursor == old.message.cursor
    assert [message.text for message in brief.tail.messages] == ["and now"]
    assert (summary.text, summary.actor) == ("in short", team.alice.id)
    await team.store.runs.end(mine.id, mine.epoch, *_CANCELLED)
    await team.say("me too", team.bob)
    [bobs] = await team.claim()
    assert (await team.store.reads.brief(bobs.id, 9, 1 << 20)).summary is None


async def test_whether_any_run_waits(team: Team) -> None:
    waiting = team.store.reads.waiting
    assert not await waiting()
    await team.say("one")
    assert await waiting()
    [run] = await team.claim()
    assert not await waiting()
    await team.say("two")
    assert await waiting(), "its lane is taken"
    await team.store.runs.end(run.id, run.epoch, RunState.FAILED, "loop_failed", None)
    [second] = await team.claim()
    assert not await waiting()
    await team.store.runs.requeue(second.id, second.epoch, "box_lost")
    assert await waiting(), "it waits out its back-off"


async def test_a_home_with_its_owner(team: Team) -> None:
    assert await team.store.reads.home(team.alice.id) == (team.alice, None)
    box = await team.store.boxes.home_of(team.alice, "fake", Limits())
    assert await team.store.reads.home(team.alice.id) == (team.alice, box)
    await team.store.users.remove(team.alice.id)
    with pytest.raises(NotFound):
        await team.store.reads.home(team.alice.id)


# --- the newest messages ---------------------------------------------------------------------------------------------


async def test_the_tail_of_a_thread(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.host.store.reads._PAGE", 3)
    said = [(await team.say(f"{number:010}")).message for number in range(10)]
    tail, thread = team.store.reads.tail, team.thread.id
    assert await tail(thread, None, 0, None, 1 << 20) == (said, False)
    assert await tail(thread, None, said[6].cursor, None, 1 << 20) == (said[7:], False)
    assert await tail(thread, said[4].cursor, said[1].cursor, None, 1 << 20) == (said[2:4], False)
    assert await tail(thread, None, 0, 2, 1 << 20) == (said[7:], True)  # a page at the least
    assert await tail(thread, None, 0, 4, 1 << 20) == (said[4:], True)
    assert await tail(thread, None, 0, None, 39) == (said[4:], True)  # four fill it
    assert await tail(thread, said[0].cursor, 0, None, 99) == ([], False)
    assert await tail(ThreadId("thr_none"), None, 0, None, 99) == ([], False)


# --- how far a thread is ---------------------------------------------------------------------------------------------


async def test_what_is_taken_back_moves_no_thread(team: Team) -> None:
    """Else who waits for an event behind the newest would be woken again and again, and find none."""

    def taken_back(tx: Tx) -> None:
        append(tx, team.thread.id, Draft(EventKind.BREAK_GLASS, {}))
        raise Conflict("no")

    await team.say()
    database = team.store._database
    newest = (await team.newest()).cursor
    results = await asyncio.gather(
        database.write(taken_back),
        team.store.tenants.add("neighbour"),
        database.write(taken_back),
        return_exceptions=True,
    )
    assert [type(result) for result in results[::2]] == [Conflict, Conflict]
    assert database.wakes.newest(team.thread.id) == newest
    assert not await team.store.events.changed(team.thread.id, newest, 0.05)
    await team.say()
    assert await team.store.events.changed(team.thread.id, newest, 0.05)


async def test_who_waits_asks_the_database_once_a_second(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    newest = team.store.events._newest

    async def counted(thread: ThreadId) -> int:
        nonlocal asked
        asked += 1
        return await newest(thread)

    monkeypatch.setattr(team.store.events, "_newest", counted)
    cursor = 0
    for _ in range(20):
        waiting = asyncio.create_task(team.store.events.changed(team.thread.id, cursor, 20))
        await asyncio.sleep(0)
        await team.say()
        assert await waiting
        cursor = (await team.newest()).cursor
    assert asked <= 2  # of a thread that nothing is known of, and one more on a slow host


def test_of_the_oldest_threads_nothing_is_known() -> None:
    wakes = Wakes()
    for number in range(MOST + 10):
        wakes.notify({ThreadId(f"t{number}"): number})
        wakes.notify({ThreadId("busy"): number})
    assert (wakes.newest(ThreadId("t10")), wakes.newest(ThreadId("busy"))) == (None, MOST + 9)
    assert wakes.newest(ThreadId("t11")) == 11


# --- how runs stand whose executors are gone ---------------------------------------------------------------------------


async def test_standings_are_what_the_parts_say_of_each_run_that_is_there(team: Team) -> None:
    for n in range(3):
        lane = await team.store.threads.add(team.tenant.id, f"lane{n}", [team.alice.id, team.bob.id], False)
        await team.store.turns.accept(lane.id, (team.alice, team.bob)[n % 2].id, "go", "queue", None)
    plain, doubtful, saved = await team.claim()
    for run, steps in ((doubtful, 2), (saved, 1)):
        for n in range(1, steps + 1):
            await team.begin(run, n)
            if (run, n) != (doubtful, 2):
                await team.store.steps.end(run.id, run.epoch, n, {"ok": True}, False)
    await team.store.steps.save_checkpoint(saved.id, saved.epoch, "before_model", 1, "{}")
    outside(team.folder, "UPDATE users SET disabled = true WHERE id = ?", team.bob.id)
    asked = [plain.id, doubtful.id, saved.id, RunId("run_none"), RunId(ODD)]
    found = await team.store.reads.standings(asked)
    assert list(found) == asked[:3]
    for run in (plain, doubtful, saved):
        at = found[run.id]
        assert at.run == await team.get(run.id)
        begun = await team.store.steps.all(run.id)
        assert at.steps == len(begun)
        assert at.open == {step.n: step.effect for step in begun if step.state is StepState.BEGUN}
        assert at.held_back == ("user_disabled" if run.actor == team.bob.id else "")
        assert (list(at.effects), list(at.gates)) == ([], [])
    assert [found[run.id].checkpoint for run in (plain, doubtful, saved)] == [0, 0, 1]
    assert list(found[doubtful.id].open) == [2]
    assert await team.store.reads.standings([]) == {}
