"""`ringfence db` as people call it: beside a running server, and where it must be stopped. Real processes and accounts."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, installation


@pytest.fixture(scope="module")
def served() -> Iterator[Installation]:
    with installation() as made:
        made.ok("user", "add", "alice")
        made.ok("thread", "add", "#team", "--member", "alice")
        yield made


@pytest.fixture(scope="module")
def stopped() -> Iterator[Installation]:
    """Its database is well after each test."""
    with installation(started=False) as made:
        yield made


def database(made: Installation) -> Path:
    return made.home / "db" / "ringfence.db"


def error(made: Installation, *words: str) -> tuple[int, str, str]:
    result = made.run(*words, "--json")
    told = json.loads(result.text)["error"]
    return result.code, told["code"], told["message"] + "; " + told["remedy"]


def test_check_beside_a_server(served: Installation) -> None:
    facts = served.ok("db", "check", "--json").json()
    assert (facts["ok"], facts["findings"], facts["generation"]) == (True, [], 1)


def test_backup_beside_a_server(served: Installation, tmp_path: Path) -> None:
    """To a folder that the server's account cannot enter."""
    tmp_path.chmod(0o700)
    target = tmp_path / "backup"
    facts = served.ok("db", "backup", str(target), "--json").json()
    status = target.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.geteuid())
    assert facts["size_bytes"] == status.st_size
    assert (facts["installation"], facts["dialect"]) == (
        json.loads((served.home / "installation.json").read_text())["id"],
        "sqlite",
    )
    before = target.read_bytes()
    code, kind, says = error(served, "db", "backup", str(target))
    assert (code, kind) == (1, "conflict")
    assert "overwrites nothing" in says
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]


@pytest.mark.root
def test_a_backup_that_has_no_room_leaves_nothing(served: Installation, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", small], check=True)
    try:
        (small / "ballast").write_bytes(bytes(4096))
        code, kind, says = error(served, "db", "backup", str(small / "backup"))
        assert (code, kind) == (5, "disk_full")
        assert "room" in says
        assert [path.name for path in small.iterdir()] == ["ballast"]
    finally:
        subprocess.run(["umount", small], check=True)


def test_what_needs_a_stopped_server_says_so(served: Installation, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    served.ok("db", "backup", str(target))
    before = served.ok("thread", "ls", "--json", "--tenant", "default").text
    for words in (("db", "restore", str(target)), ("db", "rebuild")):
        code, kind, says = error(served, *words)
        assert (code, kind) == (5, "unavailable")
        assert "stop it first" in says
    assert served.ok("thread", "ls", "--json", "--tenant", "default").text == before
    assert served.ok("db", "rebuild", "--dry-run", "--json").json()["ok"]


def test_there_and_back_over_a_restart(tmp_path: Path) -> None:
    target = tmp_path / "backup"
    with installation() as made:
        made.ok("user", "add", "alice")
        made.ok("db", "backup", str(target))
        made.ok("user", "add", "late")
        made.stop()
        facts = made.ok("db", "restore", str(target), "--json").json()
        assert facts["generation"] == 2
        assert Path(facts["replaced"]).stat().st_uid == database(made).stat().st_uid
        old = sqlite3.connect(f"file:{facts['replaced']}?mode=ro", uri=True)
        assert old.execute("SELECT COUNT(*) FROM users WHERE name = 'late'").fetchone() == (1,)
        old.close()
        assert made.ok("db", "check", "--json").json()["ok"]
        made.start()
        names = [user["name"] for user in made.ok("user", "ls", "--json").json()["users"]]
        assert "alice" in names
        assert "late" not in names
        made.ok("user", "add", "late")
        assert made.ok("db", "check", "--json").json()["ok"]


@pytest.fixture
def damaged() -> Iterator[Installation]:
    """For one test, which damages it."""
    with installation(started=False) as made:
        yield made


def test_damage_is_exit_1(damaged: Installation) -> None:
    path = database(damaged)
    connection = sqlite3.connect(path)
    connection.execute("DROP INDEX ix_runs_actor")
    connection.commit()
    connection.close()
    result = damaged.run("db", "check")
    assert result.code == 1
    assert "ix_runs_actor" in result.text
    content = bytearray(path.read_bytes())
    content[: 4096 * 3] = b"\xa5" * 4096 * 3
    path.write_bytes(content)
    result = damaged.run("db", "check", "--json")
    assert result.code == 1
    assert [one["rule"] for one in result.json()["findings"]] == ["readable"]


def test_a_damaged_database_is_replaced_by_its_backup(stopped: Installation, tmp_path: Path) -> None:
    """What a backup is for: the old file cannot even say its generation."""
    target = tmp_path / "backup"
    stopped.ok("db", "backup", str(target))
    database(stopped).write_bytes(b"\xa5" * 40960)
    facts = stopped.ok("db", "restore", str(target), "--json").json()
    assert facts["generation"] == 2
    assert Path(facts["replaced"]).read_bytes() == b"\xa5" * 40960
    assert stopped.ok("db", "check", "--json").json()["ok"]


def test_upgrade_and_contract(stopped: Installation) -> None:
    facts = stopped.ok("db", "upgrade", "--json").json()
    assert (facts["schema"], facts["to_contract"]) == (facts["newest"], [])
    assert stopped.ok("db", "upgrade", "--contract", "--json").json() == facts


def test_without_an_installation(tmp_path: Path) -> None:
    made = Installation(tmp_path / "nothing")
    code, kind, says = error(made, "db", "check")
    assert (code, kind) == (5, "unavailable")
    assert "ringfence init" in says
    assert not made.home.exists()
