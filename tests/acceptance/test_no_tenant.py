"""A database that `serve` made alone has nobody in it: the server says so, and `init` again is the remedy that it names."""

from __future__ import annotations

from tests.support.installation import installation

SAYS = "the database has no tenant at all"


def test_a_database_without_a_tenant_is_told_and_mended() -> None:
    with installation(started=False) as made:
        kept = made.ok("init", "--json").json()
        assert kept["token"] is None and kept["notes"] == [], "control: there is a tenant"
        for path in (made.home / "db").glob("ringfence.db*"):
            path.unlink()
        made.start()
        told = made.run("status", "--json")
        store = told.json()["parts"]["store"]
        assert (told.code, store["ok"]) == (5, False)
        assert SAYS in store["problem"] and "ringfence init" in store["problem"]
        assert SAYS in made.log.read_text()
        assert "a server runs already" in made.ok("init", "--json").json()["notes"][0]
        made.stop()
        assert len(made.ok("init", "--json").json()["token"]) > 50
        made.start()
        assert made.ok("status", "--json").json()["parts"]["store"]["ok"]
        assert [each["name"] for each in made.ok("user", "ls", "--json").json()["users"]] == ["operator"]
