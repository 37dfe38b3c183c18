"""Commits are counted in a real write-ahead log, and the probe's are real ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.bench.commits import Probe, between, log_of


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "some.db"


@pytest.fixture
def writer(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t (row BLOB)")
    yield connection
    connection.close()


def write(connection: sqlite3.Connection, rows: int, size: int = 100) -> None:
    """One transaction."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO t VALUES (zeroblob(?))", [(size,)] * rows)
    connection.execute("COMMIT")


def test_each_transaction_is_one_commit_however_many_pages_it_has(database: Path, writer: sqlite3.Connection) -> None:
    before = log_of(database)
    write(writer, 1)
    assert between(before, log_of(database)) == 1
    write(writer, 50, 4000)
    write(writer, 1)
    assert between(before, log_of(database)) == 3


def test_reads_and_rolled_back_writes_are_no_commits(database: Path, writer: sqlite3.Connection) -> None:
    before = log_of(database)
    writer.execute("SELECT count(*) FROM t").fetchall()
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO t VALUES (zeroblob(10))")
    writer.execute("ROLLBACK")
    assert between(before, log_of(database)) == 0


def test_a_log_that_was_started_anew_is_not_compared(database: Path, writer: sqlite3.Connection) -> None:
    write(writer, 50, 4000)
    before = log_of(database)
    writer.execute("PRAGMA wal_checkpoint(RESTART)")
    write(writer, 1)
    after = log_of(database)
    assert after.commits == 1, "what is left of the round before is not counted"
    assert between(before, after) is None


def test_an_empty_log_has_no_commit(database: Path, writer: sqlite3.Connection) -> None:
    write(writer, 1)
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert log_of(database).commits == 0


def test_the_probe_commits_for_each_figure_it_gives(tmp_path: Path) -> None:
    path = tmp_path / "probe.db"
    probe = Probe(path)
    try:
        before = log_of(path)
        took = probe.commits(7)
        assert len(took) == 7 and all(each > 0 for each in took)
        assert between(before, log_of(path)) == 7
    finally:
        probe.close()
