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


def test_without_a_state_or_a_key() -> None:
    with installation(started=False) as made:
        assert verified(made)[0] == 0, "nothing was recorded yet"
        key = made.home / "vault" / "audit.key"
        key.write_bytes(b"short")
        done = made.run("audit", "verify")
        assert done.code == 5 and "not a key of 32 bytes" in done.errors
        (made.home / "installation.json").rename(made.home / "moved")
        done = made.run("audit", "verify")
        assert done.code == 5 and "there is no state at" in done.errors
        (made.home / "moved").rename(made.home / "installation.json")
