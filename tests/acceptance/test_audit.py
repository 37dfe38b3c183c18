"""`ringfence audit` on a whole installation: running, stopped, killed, and after somebody has written to the database."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.installation import Installation, installation


def verified(made: Installation) -> tuple[int, dict[str, Any]]:
    done = made.run("audit", "verify", "--json")
    report = done.json()
    assert isinstance(report, dict) and "ok" in report, done.text + done.errors
    return done.code, report


def database(made: Installation) -> Path:
    return made.home / "db" / "ringfence.db"


def changed(made: Installation, statement: str) -> None:
    with closing(sqlite3.connect(database(made))) as connection:
        connection.execute(statement)
        connection.commit()


def test_verify_and_ls_with_and_without_a_server() -> None:
    with installation() as made:
        key = made.home / "vault" / "audit.key"
        assert (stat.S_IMODE(key.stat().st_mode), key.stat().st_size) == (0o600, 32)
        assert key.stat().st_uid == key.parent.stat().st_uid == database(made).stat().st_uid
        made.ok("user", "add", "alice")
        made.ok("exec", "alice", "--", "true")
        code, running = verified(made)
        assert (code, running["ok"], running["chains"]) == (0, True, 1)
        rows = made.ok("audit", "ls", "--json").json()["rows"]
        assert [row["action"] for row in rows] == ["exec", "user.change", "audit.open"]
        made.kill()
        code, stopped = verified(made)
        assert (code, stopped["ok"], stopped["rows"]) == (0, True, running["rows"])
        assert made.ok("audit", "ls", "--json").json()["rows"] == rows, "the store says what the server said"
        assert [row["action"] for row in made.ok("audit", "ls", "--lane", "act", "--json").json()["rows"]] == [
            "exec",
            "user.change",
        ]
        assert made.run("audit", "ls", "--before", "nothing:1").code == 4
        assert {path.stat().st_uid for path in database(made).parent.iterdir()} == {key.stat().st_uid}
        made.start()
        code, again = verified(made)
        assert (code, again["chains"]) == (0, 2)
        made.stop()

        copy = made.home.with_suffix(".copy")
        shutil.copy2(database(made), copy)
        changed(made, "UPDATE audit_rows SET subject = 'user:x' WHERE action = 'exec'")
        code, report = verified(made)
        assert code == 1
        [finding] = report["findings"]
        assert (finding["seq"], finding["wrong"]) == (3, "changed")
        shown = made.run("audit", "verify")
        assert shown.code == 1 and "BAD row krn_" in shown.text
        made.start()
        assert verified(made)[0] == 1, "and through the server"
        assert made.ok("exec", "alice", "--", "true").code == 0
        made.stop()
        assert verified(made)[0] == 1, "and for ever"

        with copy.open("rb") as older, database(made).open("wb") as file:  # the same file: its owner stays
            shutil.copyfileobj(older, file)
        copy.unlink()
        code, report = verified(made)
        assert code == 1
        assert [finding["wrong"] for finding in report["findings"]] == ["rolled_back"]


def listed(made: Installation) -> dict[str, tuple[int, int, int, int]]:
    """Of everything in the state but copies of the package: mode, owner, size, moment of the last change."""
    found = {}
    for path in sorted(made.home.rglob("*")):
        if made.home / "runtime" not in (path, *path.parents):
            status = path.lstat()
            # SQLite makes a -shm in that folder and takes it away.
            changed = 0 if path == made.home / "db" else status.st_mtime_ns
            found[str(path)] = (status.st_mode, status.st_uid, status.st_size, changed)
    return found


def test_looking_changes_nothing_and_makes_no_key() -> None:
    with installation(started=False) as made:
        assert verified(made)[0] == 0  # control: it can be asked, and the copy of the package is there
        (made.home / "vault").chmod(0o500)
        (made.home / "run").chmod(0o700)
        before = listed(made)
        assert verified(made)[0] == 0
        assert made.run("audit", "ls").code == 0
        assert listed(made) == before
        (made.home / "ringfence.toml").write_text(f'database = "sqlite:///{made.home}/db/other.db"\n')
        done = made.run("audit", "verify")  # the settings' database, as the verbs of `db`
        assert done.code == 4 and "other.db" in done.errors, done.errors
        assert made.run("audit", "verify", "--db", f"sqlite:///{database(made)}").code == 0
        (made.home / "ringfence.toml").unlink()
        (made.home / "vault").chmod(0o700)  # whose directory it is may take it away by this alone, unless they are root
        (made.home / "vault" / "audit.key").unlink()
        (made.home / "vault").chmod(0o500)
        before = listed(made)
        for words in (("audit", "verify"), ("audit", "ls")):
            done = made.run(*words)
            assert done.code == 5 and "audit.key" in done.errors and "No such file" in done.errors, done.errors
        assert listed(made) == before
        (made.home / "vault").chmod(0o700)


def test_without_a_state_or_a_key() -> None:
    with installation(started=False) as made:
        assert verified(made)[0] == 0, "nothing was recorded yet"
        key = made.home / "vault" / "audit.key"
        key.write_bytes(b"short")
        done = made.run("audit", "verify")
        assert done.code == 5 and "not a key of 32 bytes" in done.errors
        (made.home / "installation.json").rename(made.home / "moved")
        done = made.run("audit", "verify")
        assert done.code == 5 and "there is no installation at" in done.errors
        (made.home / "moved").rename(made.home / "installation.json")
