"""F44: a backup made during writes, put back: everything is there, and nothing of before can act any more."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sqlite3
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from ringfence.host.kernel.boxes import BoxKind, Limits
from ringfence.host.kernel.capabilities import key_of
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import Conflict, DiskFull, Invalid, KeyReused, Refused, StaleEpoch, Unavailable
from ringfence.host.kernel.gates import GateState
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.kernels import EPOCH_JUMP, RESTORED
from ringfence.host.kernel.runs import RunState
from ringfence.host.store import verbs
from ringfence.host.store.audit_verify import RESTORED as RESTORE_RECORD
from ringfence.host.store.declaring import Declarer
from ringfence.host.store.restore import PUT_BACK
from tests.support.clocks import HandClock
from tests.support.databases import is_postgres, outside
from tests.support.store import newest
from tests.support.store_calls import PEN, answered, asked, began, due, intended
from tests.support.store_work import INSTALLATION, Db, a_signed_team, signed, work_of_all_kinds

pytestmark = pytest.mark.alone


async def test_there_and_back(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        runs = await work_of_all_kinds(team)
        events = await team.events()
        steps = await team.store.steps.all(RunId(runs["done"]))
        before = await team.get(RunId(runs["working"]))
        backup = await db.backup()
        await team.say("after the backup")
        late = await team.store.runs.adopt(before.id, "w1", before.epoch)  # epochs went on, too
    facts = await db.restore(backup)
    assert (facts["generation"], facts["runs_to_redrive"], facts["findings"]) == (2, 1, [])
    assert await db.findings() == set()
    async with signed(tmp_path, clock, 1 << 40) as store:
        assert (await store.health())["generation"] == 2
        assert await store.events.after(team.thread.id, 0, 1000) == events
        assert await store.steps.all(RunId(runs["done"])) == steps
        run = await store.runs.get(before.id)
        assert (run.state, run.worker, run.token_hash) == (RunState.RUNNING, RESTORED, "")
        assert run.epoch == before.epoch + EPOCH_JUMP
        assert [run.id for run in await store.runs.expired("krn")] == [before.id]
        for epoch in (before.epoch, late.epoch):
            with pytest.raises(StaleEpoch):
                await store.runs.end(before.id, epoch, RunState.COMPLETED, "", "a word of the dead")
            with pytest.raises(StaleEpoch):
                await store.steps.end(before.id, epoch, 2, {"ok": True}, False)
        checkpoint = await store.steps.checkpoint(before.id)
        assert checkpoint is not None and checkpoint.step == 1
        [said] = [row for row in await newest(store.audit, 50) if row["action"] == RESTORE_RECORD]
        assert said["details"]["by"] == "the operator"
        assert said["details"]["generation"] == 2


async def test_keys_are_kept_and_work_goes_on(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
        backup = await db.backup()
    await db.restore(backup)
    async with signed(tmp_path, clock, 1 << 40) as store:
        again = await store.turns.accept(team.thread.id, team.alice.id, "the first", "queue", "k1")
        assert again.repeated
        with pytest.raises(KeyReused):
            await store.turns.accept(team.thread.id, team.alice.id, "another", "queue", "k1")
        new = await store.turns.accept(team.thread.id, team.alice.id, "now", "queue", None)
        events = await store.events.after(team.thread.id, 0, 1000)
        assert [event.cursor for event in events] == list(range(1, len(events) + 1))
        [old] = await store.runs.expired("krn")
        await store.runs.requeue(old.id, old.epoch, "executor_lost")
        clock.pass_seconds(60)
        [claimed] = await store.runs.claim("krn", 8, lambda run: "hash")
        assert (claimed.id, claimed.epoch) == (old.id, old.epoch + 1)
        assert claimed.id != new.run.id


async def test_each_restore_is_a_generation_above_all(tmp_path: Path) -> None:
    """The same backup twice: what worked after the first restore is fenced off by the second."""
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        run = await team.running()
        backup = await db.backup()
    first = await db.restore(backup)
    assert first["generation"] == 2
    async with signed(tmp_path, clock, 1 << 40) as store:
        adopted = await store.runs.adopt(run.id, "w2", (await store.runs.get(run.id)).epoch)
    second = await db.restore(backup)
    assert second["generation"] == 3
    async with signed(tmp_path, clock, 1 << 41) as store:
        with pytest.raises(StaleEpoch):
            await store.runs.end(run.id, adopted.epoch, RunState.COMPLETED, "", "late")


async def test_a_run_between_two_attempts_is_decided_anew_too(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        run = await team.running()
        await team.store.runs.requeue(run.id, run.epoch, "box_lost")
        fresh = await team.say("never begun")
        backup = await db.backup()
    assert (await db.restore(backup))["runs_to_redrive"] == 1
    async with signed(tmp_path, clock, 1 << 40) as store:
        assert await store.runs.claim("krn", 8, lambda run: "hash") == [], "it is left to the table, in its place"
        assert [each.id for each in await store.runs.expired("krn")] == [run.id]
        assert (await store.runs.get(fresh.run.id)).state is RunState.QUEUED
    assert await db.findings() == set()


async def test_a_backup_during_writes_is_one_moment(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        stop = asyncio.Event()
        said = 0

        async def write() -> None:
            nonlocal said
            while not stop.is_set():
                await team.steer(f"word {said}") if said else await team.say("word 0")
                said += 1
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        backups = [await db.backup() for _ in range(3)]
        before = said
        stop.set()
        await writing
        assert before > 10, "nothing was written while the backups were made"
    sizes = []
    for backup in backups:
        facts = await db.restore(backup)
        assert facts["findings"] == []
        sizes.append(facts["rows"])
    assert sizes == sorted(set(sizes)), "three moments"
    assert await db.findings() == set()


def changed(backup: bytes, line: int, old: bytes, new: bytes) -> bytes:
    lines = gzip.decompress(backup).splitlines(keepends=True)
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new)
    return gzip.compress(b"".join(lines))


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def sealed_anew(lines: list[bytes], end: bytes, *, doubled: bool = False) -> bytes:
    """By whoever can compute a SHA-256. `doubled`: one row more, of the table that has it."""
    rows = json.loads(end)["end"]["rows"]
    if doubled:
        rows = dict.fromkeys(rows, 0)
        table = ""
        for line in lines[1:]:
            value = json.loads(line)
            if isinstance(value, dict):
                table = value["table"]
            else:
                rows[table] += 1
    return gzip.compress(
        b"".join([*lines, _line({"end": {"rows": rows, "sha256": sha256(b"".join(lines)).hexdigest()}})])
    )


async def test_what_is_no_whole_backup_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
        backup = await db.backup()
    lines = gzip.decompress(backup).splitlines(keepends=True)
    texts = [n for n, line in enumerate(lines) if b"the second" in line]
    bad = {
        "cut": backup[: len(backup) // 2],
        "without its end": gzip.compress(b"".join(lines[:-1])),
        "a row gone": gzip.compress(b"".join(lines[: texts[0]] + lines[texts[0] + 1 :])),
        "a word changed": changed(backup, texts[0], b"the second", b"the SECOND"),
        "more behind": gzip.compress(b"".join([*lines, b"[]\n"])),
        "another file": b"SQLite format 3\0" + bytes(5000),
        "empty": b"",
        "no manifest": gzip.compress(b'{"hello": 1}\n'),
        "deep": gzip.compress(b"[" * 100_000 + b"\n"),
    }
    manifest = json.loads(lines[0])
    bad["a generation below 1"] = sealed_anew([_line(manifest | {"generation": -5}), *lines[1:-1]], lines[-1])
    bad["a floor above its schema"] = sealed_anew(
        [_line(manifest | {"schema": "0001", "floor": manifest["schema"]}), *lines[1:-1]], lines[-1]
    )
    twice = [*lines[: texts[0] + 1], lines[texts[0]], *lines[texts[0] + 1 : -1]]
    bad["a row twice"] = sealed_anew(twice, lines[-1], doubled=True)
    before = outside(tmp_path, "SELECT COUNT(*), MAX(cursor) FROM events")
    for name, content in bad.items():
        with pytest.raises(Invalid) as error:
            await db.restore(content)
        assert "backup" in error.value.message, name
    assert outside(tmp_path, "SELECT COUNT(*), MAX(cursor) FROM events") == before
    assert await db.findings() == set()
    assert (await db.restore(backup))["generation"] == 2, "the control: the file itself"


async def test_a_foreign_or_newer_one_is_refused(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock):
        backup = await db.backup()
    with pytest.raises(Refused, match="of installation"):
        await verbs.run(db.job("someoneelses1234"), "restore", {}, BytesIO(backup))
    lines = gzip.decompress(backup).splitlines(keepends=True)
    manifest = json.loads(lines[0]) | {"schema": "0999"}
    newer = gzip.compress(b"".join([json.dumps(manifest).encode() + b"\n", *lines[1:]]))
    with pytest.raises(Unavailable, match="newer"):
        await db.restore(newer)


async def test_rows_that_do_not_agree_are_not_put_back_unasked(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        runs = await work_of_all_kinds(team)
    outside(tmp_path, "UPDATE runs SET position = position + 1 WHERE id = ?", runs["done"])
    backup = await db.backup()
    with pytest.raises(Conflict) as error:
        await db.restore(backup)
    assert "--anyway" in error.value.remedy
    facts = await db.restore(backup, anyway=True)
    assert [one["rule"] for one in facts["findings"]] == ["run_position"]


async def test_a_forged_audit_is_not_put_back_unasked(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        await team.store.audit.record(None, "paid", "store", {"sum": 1})
    outside(tmp_path, "UPDATE audit_rows SET details = '{\"sum\":2}' WHERE action = 'paid'")
    with pytest.raises(Conflict, match="audit"):
        await db.restore(await db.backup())


async def test_the_backup_of_one_database_put_into_another(tmp_path: Path) -> None:
    """SQLite and PostgreSQL have one form of backup: whichever this is, it goes into a new SQLite file."""
    clock = HandClock()
    other = tmp_path / "other"
    other.mkdir()
    async with a_signed_team(tmp_path, clock) as team:
        runs = await work_of_all_kinds(team)
        events = await team.events()
        backup = await Db(tmp_path, clock).backup()
    assert (await Db(other, clock).restore(backup))["replaced"] is None
    async with signed(other, clock, 1 << 40) as store:
        assert await store.events.after(team.thread.id, 0, 1000) == events
        assert (await store.runs.get(RunId(runs["working"]))).worker == RESTORED
    assert await Db(other, clock).findings() == set()


async def test_an_answer_of_the_backup_is_used_for_nothing(tmp_path: Path) -> None:
    """It may have been used since: evidence is asked for under the key that its effect would be known by."""
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        run = await answered(team, await asked(team, team.alice, "pay"))
        backup = await Db(tmp_path, clock).backup()
        assert (
            await intended(team, run) is EffectState.INTENDED
        )  # control: the store that goes on knows that it did not
    clock.jump(timedelta(hours=-1))  # whatever the wall says
    await Db(tmp_path, clock).restore(backup)
    async with signed(tmp_path, clock, 1 << 20) as store:
        again = replace(team, store=store)
        [lost] = await store.runs.expired("krn")
        assert (lost.id, lost.epoch) == (run.id, run.epoch + EPOCH_JUMP)
        [void] = await store.gates.of_run(run.id)
        assert (void.state, void.reason) == (GateState.EXPIRED, PUT_BACK)
        with pytest.raises(Conflict, match="expired"):
            await store.gates.use(lost.id, lost.epoch, void.id, PEN.usable_for(due(again, lost, 1).call))
        [effect] = await store.effects.of_run(run.id)
        assert (effect.key, effect.sealed, effect.state) == (
            key_of(run.id, 1, due(again, run, 1).call.digest),
            "s" * 64,
            EffectState.SENT,
        )


async def test_what_was_asked_then_may_have_been_answered_since(tmp_path: Path) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        run = await asked(team, team.alice, "pay")
        backup = await db.backup()
    assert (await db.restore(backup))["runs_to_redrive"] == 1
    assert await db.findings() == set()
    async with signed(tmp_path, clock, 1 << 20) as store:
        [gate] = await store.gates.of_run(run.id)
        assert (gate.state, gate.reason) == (GateState.CANCELLED, PUT_BACK)
        [effect] = await store.effects.of_run(run.id)
        assert (effect.key, effect.sealed, effect.state) == (
            key_of(run.id, 1, gate.digest),
            gate.sealed,
            EffectState.SENT,
        )
        assert effect.arguments == gate.arguments
        assert await store.runs.claim("krn", 8, lambda run: "hash") == []
        [lost] = await store.runs.expired("krn")
        assert (lost.id, lost.worker, lost.other_tree) == (run.id, RESTORED, True)


async def test_two_of_a_lane_that_have_begun(tmp_path: Path) -> None:
    """The first failed, the second waits for an answer, the first was tried again by hand and is at work."""
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        first = await team.running()
        await team.store.runs.end(first.id, first.epoch, RunState.FAILED, "loop_failed", None)
        second = await began(team, (await team.say("pay too")).run.id)
        await team.store.runs.reopen(first.id)
        [again] = await team.claim()
        assert (again.id, (await team.get(second.id)).state) == (first.id, RunState.PARKED)
        backup = await db.backup()
    assert (await db.restore(backup))["runs_to_redrive"] == 2
    assert await db.findings() == set()
    async with signed(tmp_path, clock, 1 << 40) as store:
        assert await store.runs.claim("krn", 8, lambda run: "hash") == [], "one at a time"
        [lost] = await store.runs.expired("krn")
        assert lost.id == first.id
        await store.runs.end(lost.id, lost.epoch, RunState.FAILED, "incompatible", None)
        assert await store.runs.claim("krn", 8, lambda run: "hash") == []
        [lost] = await store.runs.expired("krn")
        assert (lost.id, lost.other_tree, lost.attempts) == (second.id, True, 0)


async def test_a_run_that_had_not_begun_then_may_have_sent_since_too(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        thread = await team.store.threads.add(team.tenant.id, "#pay", [team.alice.id], False)
        said = await team.store.turns.accept(thread.id, team.alice.id, "pay", "queue", None)
        backup = await Db(tmp_path, clock).backup()
    await Db(tmp_path, clock).restore(backup)
    async with signed(tmp_path, clock, 1 << 20) as store:
        again = replace(team, store=store)
        old = await began(again, said.run.id)
        assert await intended(again, await answered(again, old)) is EffectState.SENT
        new = await answered(again, await asked(again, team.bob, "new"))
        assert await intended(again, new) is EffectState.INTENDED, "control: one that no backup had"


async def test_a_home_of_the_time_of_one_installation_gets_a_name(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await team.store.boxes.add(team.alice, BoxKind.HOME, "fake", Limits())
        backup = await Db(tmp_path, clock).backup()
    await Db(tmp_path, clock).restore(backup)
    assert outside(tmp_path, "SELECT installation FROM boxes") == [(INSTALLATION,)]


class Killed(BaseException):
    """As a kill would: nobody catches it."""


async def test_a_restore_is_declared_by_the_store_that_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed as soon as it is there. Without its record the audit would call it rolled back."""
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock):
        backup = await db.backup()

    def killed(self: Declarer, head: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Declarer, "witness", killed)
        with pytest.raises(Killed):
            await db.restore(backup)
    async with signed(tmp_path, clock, 1 << 40) as store:
        assert (await store.health())["generation"] == 2
        [said] = [row for row in await newest(store.audit, 50) if row["action"] == RESTORE_RECORD]
        told = {name: said["details"][name] for name in ("by", "generation", "findings")}
        assert told == {"by": "the operator", "generation": 2, "findings": 0}
        assert (await store.audit.verify()).ok
    assert await db.findings() == set()


async def test_what_cannot_be_declared_is_not_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        backup = await db.backup()
        await team.say("after the backup")

    def full(self: Declarer, *_: object) -> None:
        said = sqlite3.OperationalError("database or disk is full")
        vars(said).update({"sqlstate": "53100"} if is_postgres(tmp_path) else {"sqlite_errorcode": sqlite3.SQLITE_FULL})
        raise OperationalError("INSERT", {}, said)

    with monkeypatch.context() as patch:
        patch.setattr(Declarer, "declare", full)
        with pytest.raises(DiskFull, match="nothing was written"):
            await db.restore(backup)
    assert outside(tmp_path, "SELECT COUNT(*) FROM messages") == [(1,)]
    assert await db.findings() == set()
    assert (await db.restore(backup))["generation"] == 2, "control"


@pytest.mark.parametrize("late", [False, True])
async def test_a_file_that_takes_no_more_is_no_fault_of_the_database(tmp_path: Path, late: bool) -> None:
    """A full volume, and a pipe that nobody reads; at the first byte, or with the last."""
    db = Db(tmp_path, HandClock())
    buffering = 1 << 20 if late else 0
    async with a_signed_team(tmp_path, db.clock):
        pass
    reader, writer = os.pipe()
    os.close(reader)
    told: list[tuple[type[Exception], str]] = []
    for place in (writer, "/dev/full"):
        with suppress(OSError), open(place, "wb", buffering) as file:  # closing one that is full fails once more
            with pytest.raises(Unavailable) as error:
                await verbs.run(db.job(), "backup", {}, file)
            told.append((error.type, f"{error.value.message}; {error.value.remedy}"))
    [(broken, pipe), (full, volume)] = told
    assert (broken, full) == (Unavailable, DiskFull)
    assert "the backup cannot be written" in pipe
    assert "no room for the backup" in volume
    assert all("take another place for it" in words for words in (pipe, volume))
