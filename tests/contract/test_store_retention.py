"""What is too old goes, in small batches; what somebody may still need stays; cursors keep having no gap."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ringfence.host.kernel.audit import CUT, Lane
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.retention import Keep
from ringfence.host.kernel.runs import Run, RunState
from ringfence.host.store import retention, schema
from ringfence.host.store.retention import EVENTS, THREADS
from tests.support.clocks import HandClock
from tests.support.databases import outside
from tests.support.store import Team
from tests.support.store_calls import calls_of_all_kinds
from tests.support.store_work import Db, a_signed_team, work_of_all_kinds

DAY = timedelta(days=1)


async def swept(team: Team, keep: Keep) -> dict[str, int]:
    """Until there is nothing left to take."""
    total: dict[str, int] = {}
    while gone := await team.store.retention.sweep(keep):
        for kind, number in gone.items():
            total[kind] = total.get(kind, 0) + number
    return total


async def test_by_default_all_is_kept_but_keys(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
        before = await team.events()
        clock.jump(4000 * DAY)
        assert await swept(team, Keep()) == {"keys": 1}
        assert await team.events() == before
    assert await Db(tmp_path, clock).findings() == set()


async def test_events_go_up_to_what_a_live_run_needs(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        runs = await work_of_all_kinds(team)
        before = await team.events()
        live = await team.get(RunId(runs["working"]))
        position = next(event.cursor for event in before if event.body.get("text") == "the third")
        clock.jump(10 * DAY)
        assert (await swept(team, Keep(events_days=9)))["events"] == position - 1
        assert await team.store.retention.kept_from(team.thread.id) == position
        assert await team.events() == before[position - 1 :]
        assert len(await team.store.threads.messages(team.thread.id, None, 99)) == 5, "the conversation stays"
        assert (await team.store.reads.brief(live.id, 9, 1 << 20)).said
    assert await Db(tmp_path, clock).findings() == set()
    assert (await Db(tmp_path, clock).run("rebuild"))["differences"] == []


async def test_a_whole_thread_goes_and_grows_again(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        run = await team.running()
        await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "done")
        count = len(await team.events())
        clock.jump(10 * DAY)
        assert (await swept(team, Keep(events_days=9)))["events"] == count
        assert await team.events() == []
        assert await team.store.retention.kept_from(team.thread.id) == count + 1
        await team.say("again")
        assert [event.cursor for event in await team.events()] == [count + 1, count + 2]
    assert await Db(tmp_path, clock).findings() == set()


async def test_batches_are_small(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        run = await team.running()
        for number in range(EVENTS // THREADS):
            await team.steer(f"{number}") if number < 90 else await team.store.threads.set_member(
                team.thread.id, team.bob.id, number % 2 == 0
            )
        await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "done")
        clock.jump(10 * DAY)
        first = await team.store.retention.sweep(Keep(events_days=9))
        assert first["events"] == EVENTS // THREADS
        assert (await team.events())[0].cursor == EVENTS // THREADS + 1
        assert await team.store.retention.sweep(Keep(events_days=9)), "and the rest at the next turn"


async def one_to_be_tried_again(team: Team) -> tuple[Mapping[str, str], Run]:
    """(the runs by kind, of them the one that failed and may be tried again)."""
    runs = await work_of_all_kinds(team)
    working = await team.get(RunId(runs["working"]))
    await team.store.steps.end(working.id, working.epoch, 2, {"ok": True}, False)
    await team.store.runs.end(working.id, working.epoch, RunState.FAILED, "loop_failed", None)
    return runs, working


async def test_journals_of_runs_that_can_never_go_on(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        runs, working = await one_to_be_tried_again(team)
        clock.jump(10 * DAY)
        assert (await swept(team, Keep(runs_days=9)))["runs"] == 1
        assert await team.store.steps.all(RunId(runs["done"])) == []
        assert len(await team.store.steps.all(working.id)) == 2
        assert await team.store.steps.checkpoint(working.id) is not None
        again = await team.store.runs.reopen(working.id)
        assert again.state is RunState.QUEUED
    assert await Db(tmp_path, clock).findings() == set()


async def test_however_many_may_be_tried_again_they_hold_nobody_back(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        runs, working = await one_to_be_tried_again(team)
        outside(tmp_path, "UPDATE runs SET ended_at = '2000-01-01 00:00:00.000000' WHERE id = ?", working.id)
        copied(tmp_path, schema.runs, "id", working.id, 1001)
        copied(tmp_path, schema.steps, "run", working.id, 1001)
        clock.jump(10 * DAY)
        assert (await swept(team, Keep(runs_days=9)))["runs"] == 1
        assert await team.store.steps.all(RunId(runs["done"])) == []
        assert outside(tmp_path, "SELECT count(*) FROM steps WHERE n = 1") == [(1002,)]


def copied(folder: Path, table: sa.Table, column: str, name: str, count: int) -> None:
    """Rows of `table` as many times more, each under a name of its own."""
    others = ", ".join(f'"{one.name}"' for one in table.columns if one.name != column)
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    outside(
        folder,
        f"{numbers} INSERT INTO {table.name} ({column}, {others}) "
        f"SELECT 'copy' || n.i, {others} FROM {table.name}, n WHERE {column} = ?",
        name,
    )


async def test_the_ledger_of_a_journal_that_is_gone(tmp_path: Path) -> None:
    """What the host did stays on record, and such a store is whole: it is backed up, and put back."""
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        run = await team.get(RunId((await calls_of_all_kinds(team))["sent"]))
        await team.store.effects.settle(run.id, run.epoch, 1, EffectState.DONE, {}, {"ok": True})
        await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "paid")
        clock.jump(10 * DAY)
        assert (await swept(team, Keep(runs_days=9)))["runs"] == 1
        assert await team.store.steps.all(run.id) == []
        assert [row.state for row in await team.store.effects.of_run(run.id)] == [EffectState.DONE]
    assert await db.findings() == set()
    assert (await db.restore(await db.backup()))["findings"] == []


@pytest.mark.postgresql
async def test_a_thread_that_another_kernel_cuts_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took two batches between our look and our cut: where the thread begins does not go back."""
    clock = HandClock()
    batch = EVENTS // THREADS
    async with a_signed_team(tmp_path, clock) as team:
        run = await team.running()
        for number in range(3 * batch):
            await team.store.threads.set_member(team.thread.id, team.bob.id, number % 2 == 1)
        await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "done")
        clock.jump(10 * DAY)
        cut = retention._cut_one

        def late(*arguments: Any) -> int:
            outside(tmp_path, "DELETE FROM events WHERE cursor <= ?", 2 * batch)
            at = "SELECT thread, ?, created_at FROM messages LIMIT 1"
            outside(tmp_path, f"INSERT INTO cuts (thread, kept_from, cut_at) {at}", 2 * batch + 1)
            return cut(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(retention, "_cut_one", late)
            assert (await team.store.retention.sweep(Keep(events_days=9)))["events"] == batch
        assert await team.store.retention.kept_from(team.thread.id) == 3 * batch + 1
    assert await Db(tmp_path, clock).findings() == set()


async def test_keys_are_forgotten_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first; one that is over stands for nothing, swept or not, and a message under it takes no other away."""
    monkeypatch.setattr(retention, "KEYS", 2)
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        said = [await team.say(f"{number}", key=f"k{number}") for number in range(5)]
        clock.jump(8 * DAY)
        again = await team.say("0", key="k0")
        assert (again.repeated, again.message.id == said[0].message.id) == (False, False)
        assert (await team.say("0", key="k0")).repeated
        kept = "SELECT key FROM idempotency ORDER BY key"
        assert outside(tmp_path, kept) == [(f"k{number}",) for number in range(5)]
        assert await team.store.retention.sweep(Keep()) == {"keys": 2}
        assert await swept(team, Keep()) == {"keys": 2}
        assert outside(tmp_path, kept) == [("k0",)]


async def test_young_ones_stay(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        runs = await work_of_all_kinds(team)
        before = await team.events()
        clock.jump(5 * DAY)
        assert await swept(team, Keep(events_days=9, runs_days=9, audit_days=9)) == {}
        assert await team.events() == before
        assert len(await team.store.steps.all(RunId(runs["done"]))) == 2


async def test_the_audit_says_what_was_taken(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        for number in range(20):
            await team.store.audit.record(None, "acted", "thing", {"n": number})
        clock.jump(10 * DAY)
        await team.store.audit.record(None, "acted", "thing", {"n": "new"})
        gone = await swept(team, Keep(audit_days=9))
        assert set(gone) == {"audit"}
        assert gone["audit"] >= 20
        cuts = [row for row in await team.store.audit.page({Lane.CHAIN}, None, None, 99) if row["action"] == CUT]
        assert [row["details"]["rows"] for row in cuts] == [gone["audit"]]
    assert await Db(tmp_path, clock).findings() == set(), "the chain still holds"
