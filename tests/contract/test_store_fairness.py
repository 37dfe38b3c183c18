"""Claims are fair: users take turns, nobody has more at work than one may, who broke down waits longer each time and is given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from ringfence.host.kernel.ids import ThreadId, UserId
from ringfence.host.kernel.runs import MAX_ATTEMPTS, Run, RunState
from ringfence.host.store.transact import Attempt
from ringfence.host.store.transaction import Tx
from tests.support.store import Team, a_team


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def flood(team: Team, user: UserId, count: int, name: str) -> list[ThreadId]:
    """So many runs of the user, each in a lane of its own."""
    threads = [await team.store.threads.add(team.tenant.id, f"{name}{n}", [user], False) for n in range(count)]
    for thread in threads:
        team.clock.pass_seconds(1)
        await team.store.turns.accept(thread.id, user, "x", "queue", None)
    return [thread.id for thread in threads]


async def ended(team: Team, runs: list[Run]) -> None:
    for run in runs:
        await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "done")


async def test_a_message_does_not_wait_for_all_of_anothers(team: Team) -> None:
    """Who has said forty things before has every other place at most, from the first one on."""
    await flood(team, team.alice.id, 40, "a")
    [first] = await team.claim(limit=1)
    assert first.actor == team.alice.id
    await flood(team, team.bob.id, 3, "b")
    order = []
    for _ in range(6):
        [run] = await team.claim(limit=1)
        order.append(run.actor)
        await ended(team, [run])
    assert order == [team.bob.id, team.alice.id] * 3


async def test_one_claim_of_many_is_shared(team: Team) -> None:
    await flood(team, team.alice.id, 10, "a")
    await flood(team, team.bob.id, 3, "b")
    got = Counter(run.actor for run in await team.claim(limit=6))
    assert got == {team.alice.id: 3, team.bob.id: 3}
    alone = await team.claim(limit=6)
    assert {run.actor for run in alone} == {team.alice.id} and len(alone) == 6, (
        "room that nobody else wants is no waste"
    )


async def test_no_more_at_work_than_one_user_may_have(team: Team) -> None:
    """The control is above: without the limit all places are given out."""
    lanes = await flood(team, team.alice.id, 6, "a")

    async def claim() -> list[Run]:
        return await team.store.runs.claim("w1", 8, lambda run: "", 2)

    two = await claim()
    assert [run.thread for run in two] == lanes[:2]
    assert await claim() == []
    await flood(team, team.bob.id, 1, "b")
    assert [run.actor for run in await claim()] == [team.bob.id]
    await ended(team, two[:1])
    assert [run.thread for run in await claim()] == lanes[2:3]


async def test_poison_waits_longer_each_time_and_is_given_up_while_others_go_on(team: Team) -> None:
    """0.5 s * 2 ** attempts: 1 s after the first, 2 s after the second; then it is the engine's to end it."""
    await flood(team, team.alice.id, 1, "bad")
    [run] = await team.claim()
    for attempt in range(1, MAX_ATTEMPTS):
        waiting = await team.store.runs.requeue(run.id, run.epoch, "loop_ended")
        assert (waiting.attempts, waiting.state) == (attempt, RunState.QUEUED)
        wait = 0.5 * 2**attempt
        team.clock.pass_seconds(wait - 0.25)
        other = await team.say(user=team.bob)
        [went] = await team.claim()
        assert went.id == other.run.id, "nobody else waits for it"
        await ended(team, [went])
        team.clock.pass_seconds(0.5)
        [run] = await team.claim()
        assert (run.attempts, run.actor) == (attempt + 1, team.alice.id)
    assert run.attempts == MAX_ATTEMPTS
    dead = await team.store.runs.end(run.id, run.epoch, RunState.FAILED, "retries_exhausted", None)
    team.clock.pass_seconds(timedelta(days=1).total_seconds())
    assert await team.claim() == []
    again = await team.store.runs.reopen(dead.id)
    assert (again.state, [one.id for one in await team.claim()]) == (RunState.QUEUED, [dead.id]), (
        "by hand it is tried again"
    )


class Raced(Exception):
    """As PostgreSQL's driver says that a unique value is there already."""

    sqlstate = "23505"


async def test_a_claim_that_lost_a_race_counts_once(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, lost = Attempt._alone, list[int]()

    def loses(self: Attempt, tx: Tx) -> None:
        alone(self, tx)
        if not lost:
            lost.append(1)
            raise IntegrityError("", {}, Raced())

    await team.say("one")
    monkeypatch.setattr(Attempt, "_alone", loses)
    assert len(await team.claim()) == 1
    assert (lost, team.store.runs._count) == ([1], 1)
