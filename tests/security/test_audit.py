"""Whoever holds the database alone changes nothing of the audit unseen: every kind of change by SQL, with the unchanged
control beside it, and the same change with the key, which is what the MAC is worth."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.host.kernel.audit import Head, Keys, head_mac, row_mac
from tests.support.audit_rig import KEY, Audited, three_kernels
from tests.support.store import HandClock

Attack = Callable[[Audited], None]
ROW = "chain = 'krn_1' AND seq"


def sql(*statements: str) -> Attack:
    return lambda made: made.sql(*statements)


def rewritten(chain: str, seq: int) -> Attack:
    """Another subject, and every hash from there made right."""

    def attack(made: Audited) -> None:
        made.sql(f"UPDATE audit_rows SET subject = 'box:x' WHERE chain = '{chain}' AND seq = {seq}")
        made.rechain(chain, seq - 1)

    return attack


def taken_out(chain: str, seq: int) -> Attack:
    """The row is gone, the others moved up, and every hash made right."""

    def attack(made: Audited) -> None:
        made.sql(f"DELETE FROM audit_rows WHERE chain = '{chain}' AND seq = {seq}")
        made.rechain(chain, seq - 1)

    return attack


def tail_and_head(chain: str, kept: int) -> Attack:
    """The newest rows are gone, and the head is moved back to the row before, with the MAC of that row."""

    def attack(made: Audited) -> None:
        made.sql(
            f"DELETE FROM audit_rows WHERE chain = '{chain}' AND seq > {kept}",
            f"UPDATE audit_chains SET seq = {kept}, "
            f"hash = (SELECT hash FROM audit_rows WHERE chain = '{chain}' AND seq = {kept}), "
            f"mac = (SELECT mac FROM audit_rows WHERE chain = '{chain}' AND seq = {kept}) WHERE chain = '{chain}'",
        )

    return attack


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three kernels have run here: copied for each test."""
    folder = tmp_path_factory.mktemp("audited")
    asyncio.run(three_kernels(folder))
    return folder


@pytest.fixture
def made(original: Path, tmp_path: Path) -> Audited:
    shutil.copytree(original, tmp_path / "state")
    return Audited(tmp_path / "state", HandClock(), count=3)


ATTACKS: dict[str, tuple[Attack, dict[str, tuple[int, str]]]] = {
    "changed": (sql(f"UPDATE audit_rows SET subject = 'x' WHERE {ROW} = 3"), {"krn_1": (3, "changed")}),
    "changed time": (sql(f"UPDATE audit_rows SET at = '2026-01-01' WHERE {ROW} = 2"), {"krn_1": (2, "changed")}),
    "changed lane": (sql(f"UPDATE audit_rows SET lane = 'intent' WHERE {ROW} = 2"), {"krn_1": (2, "changed")}),
    "changed ref": (sql(f"UPDATE audit_rows SET ref = 'krn_1:1' WHERE {ROW} = 2"), {"krn_1": (2, "changed")}),
    "changed mac": (sql(f"UPDATE audit_rows SET mac = 'x' WHERE {ROW} = 5"), {"krn_1": (5, "forged")}),
    "actor put in": (sql(f"UPDATE audit_rows SET actor = '{{}}' WHERE {ROW} = 4"), {"krn_1": (4, "changed")}),
    "first row": (sql(f"DELETE FROM audit_rows WHERE {ROW} = 1"), {"krn_1": (1, "missing")}),
    "middle": (sql(f"DELETE FROM audit_rows WHERE {ROW} = 3"), {"krn_1": (3, "missing")}),
    "tail": (sql(f"DELETE FROM audit_rows WHERE {ROW} > 4"), {"krn_1": (5, "cut")}),
    "all rows": (sql("DELETE FROM audit_rows WHERE chain = 'krn_1'"), {"krn_1": (1, "cut")}),
    "put in behind": (
        sql(
            "INSERT INTO audit_rows SELECT chain, 7, at, lane, actor, action, 'box:y', ref, details, hash, 'h', mac "
            "FROM audit_rows WHERE chain = 'krn_1' AND seq = 6"
        ),
        {"krn_1": (7, "changed")},
    ),
    "put in between": (
        sql(
            "UPDATE audit_rows SET seq = 100 + seq WHERE chain = 'krn_1' AND seq > 3",
            "UPDATE audit_rows SET seq = seq - 99 WHERE chain = 'krn_1' AND seq > 100",
            "INSERT INTO audit_rows SELECT chain, 4, at, lane, actor, action, subject, ref, details, previous, hash, mac "
            "FROM audit_rows WHERE chain = 'krn_1' AND seq = 3",
        ),
        {"krn_1": (4, "unlinked")},
    ),
    "swapped": (
        sql(
            "UPDATE audit_rows SET seq = 100 WHERE chain = 'krn_1' AND seq = 3",
            "UPDATE audit_rows SET seq = 3 WHERE chain = 'krn_1' AND seq = 4",
            "UPDATE audit_rows SET seq = 4 WHERE chain = 'krn_1' AND seq = 100",
        ),
        {"krn_1": (3, "unlinked")},
    ),
    "moved to another chain": (
        sql("UPDATE audit_rows SET chain = 'krn_2', seq = 5 WHERE chain = 'krn_1' AND seq = 6"),
        {"krn_1": (6, "cut"), "krn_2": (5, "unlinked")},
    ),
    "rewritten with its hashes": (rewritten("krn_1", 3), {"krn_1": (3, "forged")}),
    "taken out with its hashes": (taken_out("krn_1", 3), {"krn_1": (3, "forged")}),
    "rewritten in the newest chain": (rewritten("krn_3", 2), {"krn_3": (2, "forged")}),
    "tail and head": (tail_and_head("krn_1", 4), {"krn_1": (6, "cut")}),
    "tail and head of the newest": (tail_and_head("krn_3", 2), {"krn_3": (4, "rolled_back")}),
    "head": (sql("UPDATE audit_chains SET generation = 2 WHERE chain = 'krn_1'"), {"krn_1": (0, "head")}),
    "reopened": (sql("UPDATE audit_chains SET closed_by = NULL WHERE chain = 'krn_1'"), {"krn_1": (0, "head")}),
    "without a key": (
        sql(
            "UPDATE audit_chains SET key = '', mac = '' WHERE chain = 'krn_1'",
            "UPDATE audit_rows SET mac = '' WHERE chain = 'krn_1'",
        ),
        {"krn_1": (0, "key")},
    ),
    "another key": (sql("UPDATE audit_chains SET key = 'abc' WHERE chain = 'krn_1'"), {"krn_1": (0, "key")}),
    "no head": (sql("DELETE FROM audit_chains WHERE chain = 'krn_3'"), {"krn_3": (1, "unknown_chain")}),
    "no chain": (
        sql("DELETE FROM audit_chains WHERE chain = 'krn_1'", "DELETE FROM audit_rows WHERE chain = 'krn_1'"),
        {"krn_1": (0, "missing_chain")},
    ),
    "no newest chain": (
        sql("DELETE FROM audit_chains WHERE chain = 'krn_3'", "DELETE FROM audit_rows WHERE chain = 'krn_3'"),
        {"krn_3": (0, "rolled_back")},
    ),
    "nothing": (
        sql("DELETE FROM audit_chains", "DELETE FROM audit_rows"),
        {"krn_3": (0, "rolled_back")},
    ),
    "said to be cut": (
        sql(
            "DELETE FROM audit_rows WHERE chain = 'krn_1' AND seq < 3",
            "UPDATE audit_chains SET cut_seq = 2, cut_hash = (SELECT previous FROM audit_rows WHERE chain = 'krn_1' "
            "AND seq = 3) WHERE chain = 'krn_1'",
        ),
        {"krn_1": (0, "head")},
    ),
}


async def test_the_unchanged_control(made: Audited) -> None:
    report = await made.verify()
    assert (report.ok, report.rows, report.chains) == (True, 14, 3)
    assert report.notes == []
    assert [head.chain for head in report.open] == ["krn_3"]


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_change_by_sql_is_found(made: Audited, name: str) -> None:
    attack, expected = ATTACKS[name]
    attack(made)
    assert await made.found() == expected


async def test_a_change_stays_found_when_servers_go_on(made: Audited) -> None:
    """No kernel puts its own MAC under a head that the key did not make, nor rows behind a change."""
    tail_and_head("krn_3", 2)(made)
    await made.acts(1)
    await made.acts(1)
    report = await made.verify()
    assert report.first["krn_3"].wrong.value in ("rolled_back", "head")
    assert any("refused" in note for note in report.notes)


async def test_an_older_database_is_found(made: Audited) -> None:
    """The whole file, put back as it was: nothing in it is wrong, and it lacks what was seen since."""
    older = made.folder / "older.db"
    shutil.copy(made.database, older)
    assert await made.found() == {}
    await made.acts(3, "krn_lost")
    shutil.copy(older, made.database)
    assert await made.found() == {"krn_lost": (0, "rolled_back")}
    shutil.rmtree(made.witnesses)
    assert await made.found() == {}, "control: the witness outside is what tells"


async def test_an_older_database_is_told_by_the_next_kernel(made: Audited) -> None:
    older = made.folder / "older.db"
    shutil.copy(made.database, older)
    await made.acts(3, "krn_lost")
    shutil.copy(older, made.database)
    await made.acts(1, "krn_next")
    report = await made.verify()
    assert report.first["krn_lost"].wrong.value == "rolled_back"
    assert any("krn_lost" in note for note in report.notes)


async def test_a_restore_that_is_recorded_is_no_finding(made: Audited) -> None:
    older = made.folder / "older.db"
    shutil.copy(made.database, older)
    await made.acts(3, "krn_lost")
    shutil.copy(older, made.database)
    made.sql("INSERT INTO generations (number, began_at, source) VALUES (2, '2026-01-01', NULL)")
    assert (await made.found()) == {"krn_lost": (0, "rolled_back")}, "a number in the database declares nothing"
    async with made.kernel("krn_restore") as store:
        await store.audit.record(None, "store.restored", "store", {"generation": 2})
    report = await made.verify()
    assert report.ok, report.as_json()
    told = [note for note in report.notes if "krn_lost" in note]
    assert len(told) == 2, "what the restoring process found when it began, and the witness"
    assert all("declared (generation 2)" in note for note in told), told


async def test_an_older_database_after_a_restore_that_was_declared_is_another_matter(made: Audited) -> None:
    """The declaration is for what was seen before it: whoever puts an older file in place afterwards has declared nothing."""
    await made.acts(1, "krn_before")
    made.sql("INSERT INTO generations (number, began_at, source) VALUES (2, '2026-01-01', NULL)")
    async with made.kernel("krn_restore") as store:
        await store.audit.record(None, "store.restored", "store", {"generation": 2})
    older = made.folder / "older.db"
    shutil.copy(made.database, older)
    await made.acts(3, "krn_lost")
    shutil.copy(older, made.database)
    assert await made.found() == {"krn_lost": (0, "rolled_back")}
    await made.acts(1, "krn_next")
    report = await made.verify()
    assert report.first["krn_lost"].wrong.value == "rolled_back"
    assert [note for note in report.notes if "krn_lost" in note and "no restore was declared" in note], report.notes


async def test_a_restore_that_was_forged_declares_nothing(made: Audited) -> None:
    older = made.folder / "older.db"
    shutil.copy(made.database, older)
    await made.acts(3, "krn_lost")
    shutil.copy(older, made.database)
    thief = Audited(made.folder, made.clock, Keys(b"x" * 32), 100)
    async with thief.kernel("krn_thief") as store:
        await store.audit.record(None, "store.restored", "store", {"generation": 2})
    assert await made.found() == {"krn_lost": (0, "rolled_back"), "krn_thief": (0, "key")}


async def test_with_the_key_a_change_is_not_found(made: Audited) -> None:
    """Positive control: the MAC is the wall, and its key must not be where the database is."""
    made.sql("UPDATE audit_rows SET subject = 'box:x' WHERE chain = 'krn_3' AND seq = 2")
    made.rechain("krn_3", 1)
    for seq, hash_ in made.ask("SELECT seq, hash FROM audit_rows WHERE chain = 'krn_3'"):
        made.sql(f"UPDATE audit_rows SET mac = '{row_mac(KEY, 'krn_3', seq, hash_)}' WHERE hash = '{hash_}'")
    columns = "chain, generation, key, seq, hash, ended, closed_by, cut_seq, cut_hash, mac"
    [row] = made.ask(f"SELECT {columns} FROM audit_chains WHERE chain = 'krn_3'")
    named = dict(zip(columns.split(", "), row, strict=True))
    head = Head(**{**named, "ended": bool(named["ended"])})
    made.sql(f"UPDATE audit_chains SET mac = '{head_mac(KEY, head)}' WHERE chain = 'krn_3'")
    assert await made.found() == {"krn_3": (4, "rolled_back")}, "the witness still tells"
    shutil.rmtree(made.witnesses)
    assert await made.found() == {}
