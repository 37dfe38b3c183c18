"""`db check` finds each kind of damage between rows, and nothing in a store that is whole."""

from __future__ import annotations

import time
from io import BytesIO
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from typing_extensions import Buffer

from ringfence.host.kernel.errors import Conflict, Unavailable
from ringfence.host.store import check as look
from ringfence.host.store import migrate, postgres, restoring
from ringfence.host.store.check_rows import RULES, Rule
from ringfence.host.store.dialects import dialect_of
from ringfence.host.store.failures import translate
from tests.support.clocks import HandClock
from tests.support.databases import address, is_postgres, outside
from tests.support.store_calls import calls_of_all_kinds
from tests.support.store_work import Db, a_signed_team, work_of_all_kinds

pytestmark = pytest.mark.alone

# rule -> what somebody did to the rows (`?` takes the run that is named), and which run it was
DAMAGE: dict[str, tuple[list[str], str]] = {
    "events_gapless": (["DELETE FROM events WHERE cursor = 3"], ""),
    "message_event": (["UPDATE messages SET cursor = 9999 WHERE text = 'the fourth'"], ""),
    "turn_run": (["UPDATE turns SET state = 'failed' WHERE run = ?"], "done"),
    "turn_end": (["UPDATE turns SET ended_at = NULL WHERE run = ?"], "done"),
    "turn_message": (
        [
            "UPDATE turns SET message = (SELECT message FROM turns WHERE state = 'running' LIMIT 1) "
            "WHERE run = (SELECT id FROM runs WHERE id = ?)"
        ],
        "done",
    ),
    "run_turn": (["UPDATE turns SET run = NULL WHERE run = ?"], "done"),
    "run_end_event": (["UPDATE events SET kind = 'run.queued' WHERE kind = 'run.ended' AND run = ?"], "failed"),
    "run_position": (["UPDATE runs SET position = position + 1 WHERE id = ?"], "done"),
    "run_lane": (["UPDATE runs SET lane = 'elsewhere' WHERE id = ?"], "done"),
    "run_tenant": (
        [
            "INSERT INTO tenants (id, name, created_at) VALUES ('ten_x', 'x', '2026-01-01 00:00:00')",
            "UPDATE runs SET tenant = 'ten_x' WHERE id = ?",
        ],
        "done",
    ),
    "member_tenant": (
        [
            "INSERT INTO tenants (id, name, created_at) VALUES ('ten_x', 'x', '2026-01-01 00:00:00')",
            "UPDATE users SET tenant = 'ten_x' WHERE name = 'bob'",
        ],
        "",
    ),
    "steps_gapless": (["UPDATE steps SET n = 5 WHERE run = ? AND n = 2"], "done"),
    "step_open": (["UPDATE steps SET state = 'begun', result = NULL, ended_at = NULL WHERE run = ? AND n = 2"], "done"),
    "step_end": (["UPDATE steps SET ended_at = NULL WHERE run = ? AND n = 2"], "done"),
    "checkpoint_step": (["UPDATE checkpoints SET step = 2 WHERE run = ?"], "working"),
    "checkpoint_cursor": (['UPDATE checkpoints SET "cursor" = 9999 WHERE run = ?'], "working"),
    "checkpoint_blob": (["DELETE FROM blob_chunks", "DELETE FROM blobs"], ""),
    "blob_bytes": (["DELETE FROM blob_chunks"], ""),
    "blob_actor": (["UPDATE blobs SET actor = (SELECT id FROM users WHERE name = 'alice')"], ""),
    "key_owner": (["UPDATE idempotency SET actor = (SELECT id FROM users WHERE name = 'bob')"], ""),
    "lane_one_live": (
        [
            "DROP INDEX uq_runs_lane",
            "UPDATE runs SET state = 'running', worker = 'w', lease_until = created_at WHERE id = ?",
        ],
        "waiting",
    ),
    "summary_cursor": (
        [
            "INSERT INTO summaries (thread, actor, \"cursor\", text, created_at) SELECT thread, actor, 2, 'x', created_at "
            "FROM runs WHERE id = ?"
        ],
        "done",
    ),
    "box_tenant": (
        [
            "INSERT INTO tenants (id, name, created_at) VALUES ('ten_x', 'x', '2026-01-01 00:00:00')",
            'INSERT INTO boxes (id, tenant, "user", kind, driver, desired, observed, uid, limits, image, generation, '
            "created_at) SELECT 'box', 'ten_x', id, 'scratch', 'fake', 'stopped', 'stopped', 1, '{}', '', 0, created_at "
            "FROM users WHERE name = 'bob'",
        ],
        "",
    ),
    "gate_run": (["UPDATE gates SET turn = 'another' WHERE run = ?"], "parked"),
    "gate_open": (["UPDATE runs SET state = 'queued' WHERE id = ?"], "parked"),
    "run_parked": (["UPDATE gates SET state = 'cancelled' WHERE run = ?"], "parked"),
    "gate_answer": (["UPDATE gate_answers SET answer = 'deny'"], ""),
    "effect_step": (["UPDATE effects SET \"user\" = (SELECT id FROM users WHERE name = 'bob') WHERE run = ?"], "sent"),
    "effect_end": (["UPDATE steps SET state = 'ended', ended_at = begun_at, result = '{}' WHERE run = ?"], "sent"),
    "effect_gate": (["UPDATE gates SET state = 'allowed', used_at = NULL WHERE run = ?"], "sent"),
    "kernel_schema": (
        [
            "INSERT INTO kernels (worker, version, schema_from, schema_to, installation, started_at, seen_at) "
            "SELECT 'krn_x', '1', '0005', '0001', '', created_at, created_at FROM tenants"
        ],
        "",
    ),
    "generation_source": (["INSERT INTO generations (number, began_at) VALUES (2, '2026-01-01 00:00:00')"], ""),
    "run_generation": (["UPDATE runs SET epoch = epoch + 4294967296 WHERE id = ?"], "done"),
    "chain_generation": (["UPDATE audit_chains SET generation = 2"], ""),
    "audit": (["UPDATE audit_rows SET subject = 'another' WHERE action = 'tested'"], ""),
    "schema": (["DROP INDEX ix_runs_actor"], ""),
}


async def test_a_whole_store_has_no_findings(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
        await calls_of_all_kinds(team)
        assert await Db(tmp_path, clock).findings() == set(), "beside a store that is open"
    facts = await Db(tmp_path, clock).run("check")
    assert (facts["ok"], facts["generation"], facts["to_contract"]) == (True, 1, [])


@pytest.mark.parametrize("rule", sorted(DAMAGE))
async def test_damage_is_found(tmp_path: Path, rule: str) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        runs = {**await work_of_all_kinds(team), **await calls_of_all_kinds(team)}
    statements, which = DAMAGE[rule]
    for statement in statements:
        outside(tmp_path, statement, *([runs[which]] if "?" in statement else []))
    found = await Db(tmp_path, clock).findings()
    assert rule in {name for name, _ in found}, found
    if which and rule.startswith("run_"):
        assert runs[which] in {row for name, row in found if name == rule}


def test_every_rule_is_broken_by_a_test() -> None:
    assert {rule.name for rule in RULES} <= set(DAMAGE)


@pytest.mark.sqlite
async def test_a_reference_to_nothing(tmp_path: Path) -> None:
    """PostgreSQL lets nobody make one; SQLite only our own connections."""
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
    outside(tmp_path, "DELETE FROM messages WHERE text = 'the second'")
    assert "reference" in {name for name, _ in await Db(tmp_path, clock).findings()}


@pytest.mark.sqlite
@pytest.mark.parametrize("page", [0, 5, 20])
async def test_a_torn_page(tmp_path: Path, page: int) -> None:
    """F23. Also when it is the very first."""
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
    path = tmp_path / "ringfence.db"
    content = bytearray(path.read_bytes())
    content[page * 4096 : page * 4096 + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    assert {name for name, _ in await Db(tmp_path, clock).findings()} & {"pages", "readable"}


async def test_a_lost_index_and_a_lost_check_are_named(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock):
        pass
    outside(tmp_path, "DROP INDEX uq_runs_lane")
    if is_postgres(tmp_path):
        outside(tmp_path, "ALTER TABLE runs DROP CONSTRAINT ck_runs_epoch")
    says = {one["says"] for one in (await Db(tmp_path, clock).run("check"))["findings"]}
    assert "the index uq_runs_lane is missing" in says
    assert ("the check ck_runs_epoch is missing" in says) == is_postgres(tmp_path)


@pytest.mark.empty
async def test_an_empty_database_is_not_called_whole(tmp_path: Path) -> None:
    if not is_postgres(tmp_path):
        (tmp_path / "ringfence.db").touch()
    facts = await Db(tmp_path, HandClock()).run("check")
    assert (facts["ok"], facts["schema"]) == (False, None)
    assert [(one["rule"], one["id"]) for one in facts["findings"]] == [("schema", "database")]


@pytest.mark.parametrize(("schema", "rules"), [("0004", False), ("0999", True)])
async def test_rules_are_for_this_schema_and_for_later_ones(tmp_path: Path, schema: str, rules: bool) -> None:
    """An earlier one lacks what they ask of, and that it is one is all that is said; a later one that fits has all of it."""
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
    outside(tmp_path, f"UPDATE {migrate.EXPANDED_TABLE} SET version_num = '{schema}'")
    for table in () if rules else ("gate_answers", "effects", "gates"):
        outside(tmp_path, f"DROP TABLE {table}")
    outside(tmp_path, "DELETE FROM events WHERE cursor = 2")
    assert await Db(tmp_path, clock).findings() == {("schema", schema), *([("events_gapless", team.thread.id)] * rules)}


# --- a look that takes its time, or fails (PostgreSQL) --------------------------------------------------------------------

SLOW = Rule("slow", "it takes a while", "SELECT name AS id FROM tenants WHERE pg_sleep(0.7) IS NULL")
BROKEN = Rule("broken", "it cannot be asked", "SELECT name AS id FROM tenants WHERE 1 / (length(name) - 7) = 0")


@pytest.mark.postgresql
async def test_a_slow_look_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's statement has a minute, a verb's as long as it takes. The control: the same by the server's own pool."""
    monkeypatch.setattr(postgres, "_READ_SECONDS", 0.2)
    monkeypatch.setattr(restoring, "_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(look, "RULES", (*RULES, SLOW))
    clock = HandClock()
    async with a_signed_team(tmp_path, clock):
        assert await Db(tmp_path, clock).findings() == set()
        backup = await Db(tmp_path, clock).backup()
        pool = dialect_of(address(tmp_path), 0.1).pool("read")
        with pytest.raises(DBAPIError) as error:
            await pool.run(lambda connection: connection.execute(sa.text(SLOW.query)).all())
        await pool.close()
        told = translate(error.value)
        assert isinstance(told, Unavailable)
        assert "stopped a statement" in told.message
    assert (await Db(tmp_path, clock).restore(backup))["findings"] == []


@pytest.mark.postgresql
async def test_a_look_that_fails_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "RULES", (*RULES, BROKEN))
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await team.store.audit.record(None, "tested", "store", {})
        backup = await Db(tmp_path, clock).backup()
    outside(tmp_path, "UPDATE audit_rows SET subject = 'another' WHERE action = 'tested'")
    assert {rule for rule, _ in await Db(tmp_path, clock).findings()} == {"readable", "audit"}
    with pytest.raises(Conflict, match="do not agree"):
        await Db(tmp_path, clock).restore(backup)
    facts = await Db(tmp_path, clock).restore(backup, anyway=True)
    assert [one["rule"] for one in facts["findings"]] == ["readable"]


@pytest.mark.postgresql
async def test_a_backup_whose_place_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "IDLE_SECONDS", 1)

    class Stalling(BytesIO):
        stalled = False

        def write(self, data: Buffer) -> int:
            if not self.stalled:
                time.sleep(1.3)
            self.stalled = True
            return super().write(data)

    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await work_of_all_kinds(team)
    file = Stalling()
    await Db(tmp_path, clock).run("backup", file)
    assert file.stalled
    assert (await Db(tmp_path, clock).restore(file.getvalue()))["findings"] == []
