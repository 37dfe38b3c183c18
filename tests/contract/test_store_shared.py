"""Gates where several installations share a database: whose key, whose bell, whose clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.engine.questions import Pen
from ringfence.host.kernel.boxes import BoxKind, Limits
from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.gates import Gate, GateAnswer, GateState
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.store.bell import ListenBell
from ringfence.host.store.store import SqlStore, open_store
from tests.support.clocks import CountingIds, HandClock
from tests.support.databases import address
from tests.support.store import Team, a_team
from tests.support.store_calls import PEN, asked, due

pytestmark = pytest.mark.postgresql
SOON = 30.0  # seconds: patience, and no measure


@asynccontextmanager
async def another(folder: Path, clock: HandClock) -> AsyncIterator[SqlStore]:
    """The store of another installation."""
    store = await open_store(address(folder), clock, CountingIds(1 << 40), installation="another")
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Team, SqlStore, Run, Gate]]:
    """(ours, the other one's, a run of ours that waits, its gate)."""
    async with a_team(folder) as team, another(folder, team.clock) as other:
        await team.store.boxes.add(team.alice, BoxKind.HOME, "fake", Limits())
        run = await asked(team, team.alice, "pay")
        [gate] = await team.store.gates.of_run(run.id)
        yield team, other, run, gate


async def say(store: SqlStore, gate: Gate, pen: Pen) -> Gate:
    answer = GateAnswer.ALLOW
    given, _ = await store.gates.answer(gate.id, answer, gate.user, "token:1", "k", pen.answer, pen.genuine)
    return given


async def test_an_answer_is_given_where_the_question_was_written(tmp_path: Path) -> None:
    """Each installation has a key of its own: another one cannot tell the question from a forged one, and says where."""
    async with two(tmp_path) as (team, other, run, gate):
        with pytest.raises(Conflict, match="this installation wrote") as error:
            await say(other, gate, Pen(b"o" * 32))
        assert "where its user's box is" in error.value.remedy
        row = await team.store.runs.get(run.id)
        assert (row.state, (await team.store.gates.get(gate.id)).state) == (RunState.PARKED, GateState.OPEN)
        assert (await say(other, gate, PEN)).state is GateState.ALLOWED, "control: with its key it would"


async def test_questions_of_another_installation_are_not_ones_own(tmp_path: Path) -> None:
    """To it each of ours looks forged: it must not close them."""
    async with two(tmp_path) as (team, other, _, gate):
        assert await team.store.gates.open_here() == [gate.id]
        assert await other.gates.open_here() == []


async def test_what_another_installation_lets_run_out_is_claimed_here_at_once(tmp_path: Path) -> None:
    async with a_team(tmp_path) as team, another(tmp_path, team.clock) as other:
        await team.store.boxes.add(team.alice, BoxKind.HOME, "fake", Limits())
        run = await asked(team, team.alice, "pay")
        [gate] = await team.store.gates.of_run(run.id)
        assert gate.expires_at is not None
        team.clock.pass_seconds((gate.expires_at - team.clock.now()).total_seconds() + 1)
        await connected(team.store)  # a bell that is not yet there rings for nobody, and wakes everybody when it comes
        await connected(other)
        while await team.store.runs.offered(0.0):
            pass
        heard = asyncio.create_task(team.store.runs.offered(SOON))
        assert await other.gates.due(8) == [gate.id]
        assert (await other.gates.expire(gate.id)).state is GateState.EXPIRED
        assert await heard, "the bell"
        assert run.id in [one.id for one in await team.claim()]


async def connected(store: SqlStore) -> None:
    bell = store._database._bell
    assert isinstance(bell, ListenBell)
    async with asyncio.timeout(SOON):
        while not bell.hears:
            await asyncio.sleep(0.01)


async def test_a_kernel_whose_clock_is_behind_uses_no_approval_that_ran_out(tmp_path: Path) -> None:
    """The server's clock is heard by every kernel on it; leases count it, so each asks it all the time."""
    async with a_team(tmp_path) as team:
        run = await asked(team, team.alice, "pay")
        [gate] = await team.store.gates.of_run(run.id)
        gate = await say(team.store, gate, PEN)
        late = HandClock()  # of a kernel that began an hour behind
        late.jump(timedelta(hours=-1))
        assert gate.expires_at is not None
        passed = (gate.expires_at - team.clock.now()).total_seconds() + 60
        for clock in (team.clock, late):
            clock.pass_seconds(passed)
        assert late.now() < gate.expires_at, "control: by its own clock it would be used"
        store = await open_store(address(tmp_path), late, CountingIds(1 << 41), installation="late")
        try:
            behind = replace(team, store=store)
            [row] = await behind.claim()
            with pytest.raises(Conflict, match="expired"):
                await store.gates.use(row.id, row.epoch, gate.id, PEN.usable_for(due(behind, row, 1).call))
        finally:
            await store.close()
