"""Writes that are done in one call: each caller has its own answer, and one that breaks the call takes nobody with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Invalid, NotFound, RingfenceError, StaleEpoch
from ringfence.host.kernel.ids import RunId, ThreadId
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import EventKind, TurnState
from ringfence.host.store.events import Draft, append
from ringfence.host.store.transaction import Alike, Tx
from tests.support.store import Team, a_team

NOBODYS = ThreadId("thr_none")


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def test_events_of_many_callers_are_one_commit_and_have_no_gap(team: Team) -> None:
    before, commits = len(await team.events()), team.store.commits
    odd = {"text": "\ud800\0", "n": [1.5, None, "ü"]}

    async def one(n: int) -> int:
        thread = NOBODYS if n % 10 == 5 else team.thread.id
        return (await team.store.events.append(thread, EventKind.RUN_DETAIL, {"n": n, "odd": odd})).cursor

    answers = await asyncio.gather(*(one(n) for n in range(200)), return_exceptions=True)
    assert team.store.commits - commits == 1
    assert [n for n, answer in enumerate(answers) if isinstance(answer, NotFound)] == list(range(5, 200, 10))
    given = [answer for answer in answers if isinstance(answer, int)]
    assert given == list(range(before + 1, before + 181)), "in the order in which they were asked"
    kept = (await team.events())[before:]
    assert [event.cursor for event in kept] == given
    assert [event.body["n"] for event in kept] == [n for n in range(200) if n % 10 != 5]
    assert kept[0].body["odd"] == odd


async def test_what_breaks_the_call_is_tried_alone_and_leaves_nothing(team: Team) -> None:
    before, sizes = len(await team.events()), list[int]()

    def each(tx: Tx, items: Sequence[int]) -> list[int | RingfenceError]:
        sizes.append(len(items))
        made = [append(tx, team.thread.id, Draft(EventKind.RUN_DETAIL, {"n": n}))[0].cursor for n in items]
        if 3 in items:
            raise NotFound("three")
        return [*made]

    write = team.store._database.write
    answers = await asyncio.gather(*(write(Alike(each, n)) for n in range(6)), return_exceptions=True)
    assert sizes == [6, 1, 1, 1, 1, 1, 1]
    assert isinstance(answers.pop(3), NotFound)
    assert answers == list(range(before + 1, before + 6))
    assert [event.body["n"] for event in (await team.events())[before:]] == [0, 1, 2, 4, 5]


async def test_events_for_many_threads_and_several_for_some_have_no_gap(team: Team) -> None:
    """The cursors of all of them are taken in one statement."""
    made = [await team.store.threads.add(team.tenant.id, f"t{n}", [team.alice.id], False) for n in range(5)]
    order = [made[n * n % 5].id for n in range(40)] + [NOBODYS]
    before = {thread.id: len(await team.store.events.after(thread.id, 0, 100)) for thread in made}
    commits = team.store.commits
    answers = await asyncio.gather(
        *(team.store.events.append(thread, EventKind.RUN_DETAIL, {"n": n}) for n, thread in enumerate(order)),
        return_exceptions=True,
    )
    assert team.store.commits - commits == 1
    assert isinstance(answers.pop(), NotFound)
    for thread in made:
        mine = [n for n, which in enumerate(order) if which == thread.id]
        kept = (await team.store.events.after(thread.id, before[thread.id], 100)) if mine else []
        assert [event.body["n"] for event in kept] == mine
        assert [answers[n] for n in mine] == kept
        assert [event.cursor for event in kept] == [before[thread.id] + 1 + n for n in range(len(mine))]


async def test_events_in_one_write_are_all_there_or_none(team: Team) -> None:
    before, commits = len(await team.events()), team.store.commits
    drafts = [Draft(EventKind.RUN_DETAIL, {"n": n}, team.alice.id) for n in range(3)]
    made = await team.store.events.append_all(team.thread.id, drafts)
    assert (await team.events())[before:] == made
    assert team.store.commits - commits == 1
    with pytest.raises(NotFound):
        await team.store.events.append_all(NOBODYS, drafts)
    with pytest.raises(Invalid):
        await team.store.events.append_all(team.thread.id, [*drafts, Draft(EventKind.RUN_DETAIL, {"n": object()})])
    assert len(await team.events()) == before + 3


async def test_runs_that_come_back_into_the_queue_together_are_fenced_each_for_itself(team: Team) -> None:
    for n in range(6):
        lane = await team.store.threads.add(team.tenant.id, f"lane{n}", [team.alice.id], False)
        await team.store.turns.accept(lane.id, team.alice.id, "go", "queue", None)
    held = await team.claim()
    assert len(held) == 6
    team.clock.pass_seconds(7)
    requeue, commits = team.store.runs.requeue, team.store.commits
    asked = [(run.id, run.epoch - (n == 2)) for n, run in enumerate(held)] + [(RunId("run_none"), 1)]
    answers = await asyncio.gather(*(requeue(*one, "executor_lost") for one in asked), return_exceptions=True)
    assert team.store.commits - commits == 1
    assert isinstance(answers[2], StaleEpoch) and isinstance(answers[6], NotFound)
    for n in (0, 1, 3, 4, 5):
        assert answers[n] == await team.get(held[n].id)
        kept = await team.get(held[n].id)
        assert (kept.state, kept.reason, kept.worker, kept.lease_until) == (
            RunState.QUEUED,
            "executor_lost",
            None,
            None,
        )
        assert kept.token_hash == "" and kept.worked == pytest.approx(7, abs=2)
        assert (await team.store.turns.get(kept.turn)).state is TurnState.QUEUED
    assert (await team.get(held[2].id)).state is RunState.RUNNING
    assert await team.claim() == [], "each waits out its back-off"


async def test_one_run_that_comes_back_twice_comes_back_once(team: Team) -> None:
    run = await team.running()
    requeue = team.store.runs.requeue
    answers = await asyncio.gather(
        requeue(run.id, run.epoch, "box_lost"), requeue(run.id, run.epoch, "loop_lost"), return_exceptions=True
    )
    assert isinstance(answers[1], StaleEpoch)
    assert (await team.get(run.id)).reason == "box_lost"
