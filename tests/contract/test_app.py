"""The composition root: bootstrap over a real store, ids and clock, and the process's own walls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from ringfence.host import app
from ringfence.host.engine.people import secret_hash
from ringfence.host.kernel.errors import Conflict, Failed
from ringfence.host.kernel.people import Scope
from ringfence.host.kernel.settings import Settings
from ringfence.host.store.store import open_store


def settings(folder: Path) -> Settings:
    return Settings().at(str(folder), "i" * 16, "shared")


async def test_bootstrap_makes_an_operators_token_each_time_and_the_rest_once(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    made = [await app.bootstrap(settings(tmp_path)) for _ in range(2)]
    assert made[0] != made[1]
    store = await open_store(settings(tmp_path).database, app.SystemClock(), app.SystemIds())
    try:
        for secret in made:
            token, user = await store.tokens.find(secret_hash(secret))
            assert (user.tenant_name, user.name) == ("default", "operator")
            assert Scope.OPERATOR in token.scopes
        assert [u.name for u in await store.users.all("default")] == ["operator"]
    finally:
        await store.close()
    assert all(secret.encode() not in path.read_bytes() for secret in made for path in (tmp_path / "db").iterdir())


def test_ids_are_unique_and_sort_by_time() -> None:
    ids = app.SystemIds()
    many = [ids.new("run") for _ in range(1000)]
    assert len(set(many)) == 1000
    assert all(len(one) == len("run_") + 20 for one in many)
    assert sorted(many, key=lambda one: one[:14]) == many
    assert (len(ids.secret()), len(ids.box())) == (52, 16)
    assert app.SystemClock().now().tzinfo is not None


def test_the_engine_is_configured_from_the_settings(tmp_path: Path) -> None:
    given = replace(settings(tmp_path), accept=("no-cgroup",), max_runs=3)
    config = app.config_of(given)
    assert (config.installation, config.mode, config.max_runs, config.accepted) == (
        "i" * 16,
        "shared",
        3,
        ("no-cgroup",),
    )
    assert (config.limits, config.model) == (given.limits, "scripted")


def test_the_process_is_closed_to_debuggers_and_says_what_is_wrong(tmp_path: Path) -> None:
    """It ends at once without its configuration; before that nobody of its account can read its memory."""
    script = (
        "import ctypes, resource, sys; from ringfence.host import app; dumpable = lambda: ctypes.CDLL(None).prctl(3); "
        "before = dumpable(); app._closed_to_debuggers(); "
        "print(before, dumpable(), resource.getrlimit(resource.RLIMIT_CORE)); app.main(['0', sys.argv[1]])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "none.json")], capture_output=True, text=True)
    walls, starting = done.stdout.splitlines()
    assert walls == "1 0 (0, 0)"  # PR_GET_DUMPABLE before (the control) and after
    assert starting.endswith("starting")
    what, remedy = done.stderr.splitlines()
    assert "none.json" in what
    assert remedy == "start the server again: ringfence serve"
    assert done.returncode == 2


def test_settings_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps({**settings(tmp_path).to_json(), "colour": "red"}))
    script = "import sys; from ringfence.host import app; app.main(['0', sys.argv[1]])"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert (done.returncode, "colour" in done.stderr) == (2, True)
    assert os.path.exists(path)


def test_the_first_known_error_of_a_group_is_what_is_said() -> None:
    inner = ExceptionGroup("i", [ValueError("x"), Conflict("another server answers")])
    assert str(app._first(ExceptionGroup("o", [KeyError("y"), inner]))) == "another server answers"
    assert app._first(ExceptionGroup("o", [KeyError("y")])) is None
    assert isinstance(app._first(ExceptionGroup("o", [Failed("f")])), Failed)
