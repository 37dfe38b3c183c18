"""`db rebuild`: what is derived from events is derived again; what is none of its business is told and left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from ringfence.host.store import verbs
from tests.support.clocks import HandClock
from tests.support.databases import outside
from tests.support.store import newest
from tests.support.store_calls import calls_of_all_kinds
from tests.support.store_work import Db, a_signed_team, signed, work_of_all_kinds

# what somebody did -> (table, column) of the difference
DAMAGE: dict[str, tuple[str, str]] = {
    "UPDATE messages SET text = 'put into her mouth' WHERE text = 'the first'": ("messages", "text"),
    "UPDATE messages SET author_name = 'mallory' WHERE text = 'the third'": ("messages", "author_name"),
    "UPDATE turns SET reply = 'never said' WHERE state = 'completed'": ("turns", "reply"),
    "UPDATE turns SET reason = '' WHERE state = 'failed'": ("turns", "reason"),
    "UPDATE turns SET actor = (SELECT id FROM users WHERE name = 'bob') WHERE state = 'failed'": ("turns", "actor"),
    'UPDATE threads SET "cursor" = "cursor" + 3': ("threads", "cursor"),
}
NOT_OURS = "UPDATE runs SET state = 'queued', ended_at = NULL WHERE state = 'completed'"


async def test_of_a_whole_store_nothing_differs(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        runs = await work_of_all_kinds(team)
        await team.steer("and this", user=team.bob)
        [failed] = [run for run in await team.store.runs.all(team.tenant.id, 99) if run.id == runs["failed"]]
        assert failed.state is RunState.FAILED
    assert await db.run("rebuild") == {"ok": True, "written": True, "differences": []}


async def test_a_run_that_was_tried_again_by_hand(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        run = await team.running()
        await team.store.runs.end(run.id, run.epoch, RunState.FAILED, "loop_failed", None)
        await team.store.runs.reopen(run.id)
    assert (await Db(tmp_path, clock).run("rebuild"))["differences"] == []


async def test_turns_that_wait_for_an_answer_and_that_were_given_one(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        runs = await calls_of_all_kinds(team)
        turn = await team.store.turns.get((await team.get(RunId(runs["parked"]))).turn)
        assert (turn.state, turn.reason) == (TurnState.PARKED, "approval")
    dry = await db.run("rebuild", dry_run=True)
    assert (dry["ok"], dry["differences"]) == (True, [])
    outside(tmp_path, "UPDATE turns SET reason = '' WHERE state = 'parked'")
    told = (await db.run("rebuild"))["differences"]
    assert [(one["column"], one["kept"], one["derived"]) for one in told] == [("reason", "", "approval")]
    async with signed(tmp_path, clock, 1 << 40) as store:
        assert (await store.turns.get(turn.id)).reason == "approval"


@pytest.mark.parametrize("statement", sorted(DAMAGE))
async def test_what_was_changed_is_told_and_written_again(tmp_path: Path, statement: str) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
        told = await team.events()
        messages = await team.store.threads.messages(team.thread.id, None, 99)
    outside(tmp_path, statement)
    dry = await db.run("rebuild", dry_run=True)
    assert {(one["table"], one["column"]) for one in dry["differences"]} == {DAMAGE[statement]}
    assert (dry["ok"], dry["written"]) == (False, False)
    assert await db.run("rebuild", dry_run=True) == dry, "a dry run writes nothing"
    wet = await db.run("rebuild")
    assert wet["differences"] == dry["differences"]
    assert (await db.run("rebuild"))["differences"] == []
    assert await db.findings() == set()
    async with signed(tmp_path, clock, 1 << 40) as store:
        assert await store.events.after(team.thread.id, 0, 1000) == told
        assert await store.threads.messages(team.thread.id, None, 99) == messages
        assert [row["action"] for row in await newest(store.audit, 99)].count("store.rebuilt") == 1


@pytest.mark.sqlite
async def test_a_lost_message_comes_back(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
        before = await team.store.threads.messages(team.thread.id, None, 99)
    outside(tmp_path, "DELETE FROM messages WHERE text = 'the second'")
    assert "reference" in {name for name, _ in await db.findings()}
    await db.run("rebuild")
    assert await db.findings() == set()
    async with signed(tmp_path, clock, 1 << 40) as store:
        assert await store.threads.messages(team.thread.id, None, 99) == before


async def test_a_run_that_contradicts_the_events_is_told_only(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
    outside(tmp_path, NOT_OURS)
    facts = await db.run("rebuild")
    assert [(one["table"], one["column"], one["kept"]) for one in facts["differences"]] == [("runs", "state", "queued")]
    assert (await db.run("rebuild"))["differences"] == facts["differences"], "it stays"


async def test_not_beside_a_kernel(tmp_path: Path) -> None:
    """Without the lock of the file: a database of several hosts."""
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with signed(tmp_path, clock) as store:
        await store.kernels.hello("w", "0.1", "here")
        with pytest.raises(Conflict, match="stand in the way"):
            await verbs.run(db.job(alone=False), "rebuild", {}, None)
        assert (await verbs.run(db.job(alone=False), "rebuild", {"dry_run": True}, None))["ok"]
        await store.kernels.bye("w")
        await verbs.run(db.job(alone=False), "rebuild", {}, None)
