"""A run at work whose installation is gone, where several share a database: `cancel` ends it from anywhere, and its lane goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import BoxKind, Limits
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import StaleEpoch
from ringfence.host.kernel.gates import GateAnswer, GateState
from ringfence.host.kernel.kernels import GONE_SECONDS, HELLO_EVERY_SECONDS
from ringfence.host.kernel.runs import LEASE_SECONDS, Run, RunState, StepState
from ringfence.host.store.store import SqlStore, open_store
from tests.support.clocks import CountingIds
from tests.support.databases import address
from tests.support.store import INSTALLATION, Team, a_team
from tests.support.store_calls import answered, began, intended

pytestmark = pytest.mark.postgresql


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    """Whose kernel w1 said hello; alice's home is there, bob has none."""
    async with a_team(tmp_path) as made:
        await made.store.kernels.hello("w1", "0.1.0", INSTALLATION)
        await made.store.boxes.add(made.alice, BoxKind.HOME, "fake", Limits())
        yield made


@pytest.fixture
async def other(team: Team) -> AsyncIterator[SqlStore]:
    """The store of another installation."""
    store = await open_store(address(team.folder), team.clock, CountingIds(1 << 40), installation="another")
    yield store
    await store.close()


async def at_work(team: Team) -> Run:
    """Of alice, with an effect that may have gone out; bob waits behind it."""
    said = await team.say("pay")
    run = await answered(team, await began(team, said.run.id), GateAnswer.ALLOW)
    await intended(team, run)
    await team.store.effects.mark(run.id, run.epoch, 1, EffectState.SENT)
    await team.begin(run, 2)
    await team.say("next", team.bob)
    return run


async def claimed(store: SqlStore) -> list[Run]:
    return await store.runs.claim("w2", 8, lambda run: f"hash of {run}")


async def ended(team: Team, other: SqlStore, run: Run) -> None:
    row = await other.runs.get(run.id)
    assert (row.state, row.reason, row.worker) == (RunState.CANCELLED, "cancelled", None)
    assert row.epoch == run.epoch + 1, "whoever had it is fenced"
    assert {step.state for step in await other.steps.all(run.id)} == {StepState.INTERRUPTED}
    assert [effect.state for effect in await other.effects.of_run(run.id)] == [EffectState.UNKNOWN]
    assert {gate.state for gate in await other.gates.of_run(run.id)} == {GateState.USED}
    assert [one.actor for one in await claimed(other)] == [team.bob.id], "the lane goes on"
    with pytest.raises(StaleEpoch):
        await team.store.steps.end(run.id, run.epoch, 2, {"ok": True}, False)
    with pytest.raises(StaleEpoch):
        await team.store.runs.adopt(run.id, "w1", run.epoch)
    assert await team.store.runs.heartbeat("w1") == {}, "its own kernel learns that it is lost"


async def test_a_cancel_frees_the_lane_of_a_server_that_is_gone(team: Team, other: SqlStore) -> None:
    run = await at_work(team)
    team.clock.pass_seconds(GONE_SECONDS + 1)
    assert await claimed(other) == [], "control: it holds its lane"
    [left] = await other.runs.abandoned()
    assert (left.run.id, left.installation, left.unheard, left.waits) == (run.id, INSTALLATION, GONE_SECONDS + 1, True)
    assert (await other.runs.get(run.id)).state is RunState.RUNNING, "nobody asked for its end"
    assert (await other.runs.cancel(run.id)).state is RunState.CANCELLED, "at once"
    await ended(team, other, run)


async def test_a_wish_of_before_is_carried_out_when_the_server_is_gone(team: Team, other: SqlStore) -> None:
    run = await at_work(team)
    assert (await other.runs.cancel(run.id)).state is RunState.RUNNING, "its server may be about to end it"
    team.clock.pass_seconds(GONE_SECONDS - 1)
    assert await other.runs.abandoned() == []
    team.clock.pass_seconds(1)
    [left] = await other.runs.abandoned()
    assert left.run.cancel_requested
    await other.runs.cancel(left.run.id)
    await ended(team, other, run)


@pytest.mark.parametrize("alive", ["hello", "bye", "lease", "itself"])
async def test_a_run_whose_server_is_there_is_left_to_it(team: Team, other: SqlStore, alive: str) -> None:
    """Also when its lease is over, or its kernel late with its hello: each by itself is a server that is slow or begins."""
    run = await at_work(team)
    await other.runs.cancel(run.id)
    for _ in range(int(GONE_SECONDS // HELLO_EVERY_SECONDS)):
        team.clock.pass_seconds(HELLO_EVERY_SECONDS)
        if alive == "hello":  # of the next kernel process, which has not come to its runs yet
            await team.store.kernels.hello("w1-again", "0.1.0", INSTALLATION)
        elif alive == "bye":
            await team.store.kernels.bye("w1")
        elif alive == "lease":
            await team.store.runs.heartbeat("w1")
    row = await other.runs.get(run.id)
    assert row.lease_until is not None
    assert (team.clock.now() - row.lease_until).total_seconds() == (
        -LEASE_SECONDS if alive == "lease" else LEASE_SECONDS
    )
    asking = team.store if alive == "itself" else other
    assert await asking.runs.abandoned() == []
    assert (await asking.runs.cancel(run.id)).state is RunState.RUNNING
    assert (await asking.runs.get(run.id)).epoch == run.epoch
    [effect] = await other.effects.of_run(run.id)
    assert effect.state is EffectState.SENT, "its server asks what became of it"
    assert await claimed(other) == []
