"""There and back, and taken away, as root and as an ordinary user, whose host may neither freeze nor bound a box."""

from __future__ import annotations

from pathlib import Path

from tests.support.installation import Installation, installation
from tests.support.whole_backups import at, home


def test_there_and_back_and_gone(tmp_path: Path) -> None:
    with installation() as server, home("any-mode") as place:
        server.ok("user", "add", "alice")
        server.ok("exec", "alice", "--", "sh", "-c", "echo here > here")
        for name in ("running", "stopped"):
            server.ok("backup", "create", "--output", str(tmp_path / name), "--force")
            server.stop()
        assert server.ok("uninstall", "--purge", "--yes", "--force", "--json").json()["left"] == []
        assert not server.home.exists()
        for name in ("running", "stopped"):
            other = Installation(place)
            other.ok("backup", "restore", str(tmp_path / name), "--home", str(place))
            with at(place) as restored:
                assert restored.ok("exec", "alice", "--", "cat", "here").text == "here\n"
                assert restored.ok("audit", "verify", "--json").json()["ok"]
            assert other.ok("uninstall", "--purge", "--yes", "--force", "--json").json()["left"] == []
            assert not place.exists()
