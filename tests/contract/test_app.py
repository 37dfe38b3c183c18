"""The composition root: bootstrap over a real store, ids and clock, and the process's own walls."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host import app, from_settings
from ringfence.host.engine.people import secret_hash
from ringfence.host.kernel.errors import Conflict, Failed, Unavailable
from ringfence.host.kernel.people import Scope
from ringfence.host.kernel.settings import Settings
from ringfence.host.store.store import open_store
from tests.support.store import newest


def settings(folder: Path) -> Settings:
    """Of a state with the key that signs the audit."""
    (folder / "vault").mkdir(exist_ok=True)
    key = folder / "vault" / "audit.key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
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


async def test_the_gate_keeps_a_second_tenant_out_and_the_audit_what_was_accepted(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    given = settings(tmp_path)
    await app.bootstrap(given)
    store = await open_store(given.database, app.SystemClock(), app.SystemIds())
    try:
        closed = replace(given, gate="no prove has run here", gate_remedy="ringfence prove --config f")
        await app.pass_gate(store, closed)  # one tenant
        await store.tenants.add("acme")
        with pytest.raises(Unavailable, match="2 tenants need proven walls: no prove") as raised:
            await app.pass_gate(store, closed)
        assert raised.value.remedy == "ringfence prove --config f"
        assert await newest(store.audit, 9) == []
        await app.pass_gate(store, replace(given, open=("C06",), accept_reason="a lab", accepted_by="ann (uid 7)"))
        [found] = await newest(store.audit, 9)
        assert found["action"] == "serve.accepted"
        assert found["details"] == {"ids": ["C06"], "reason": "a lab", "by": "ann (uid 7)"}
    finally:
        await store.close()


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
    config = from_settings.config_of(given)
    assert (config.installation, config.mode, config.max_runs, config.accepted) == (
        "i" * 16,
        "shared",
        3,
        ("no-cgroup",),
    )
    assert (config.limits, config.model) == (given.limits, "scripted")
    timed = replace(given, run_soft_seconds=60, run_hard_seconds=0, model_timeout_seconds=5)
    config = from_settings.config_of(timed)
    assert (config.soft_seconds, config.hard_seconds, config.model_timeout_seconds) == (60, 0, 5)


async def test_the_model_has_the_window_and_the_script_of_the_settings(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"when": "deploy", "answers": [{"text": "as the script says"}]}]')
    message: dict[str, Any] = {"role": "user", "text": "deploy", "tool_calls": [], "tool_call_id": None}
    tools = [{"name": "shell", "description": "", "parameters": {}}]
    for path, said in ((str(script), "as the script says"), ("", "is no model")):
        given = replace(settings(tmp_path), model_window=5000, script=path)
        model = from_settings.models_of(given)[from_settings.config_of(given).model]
        assert model.window == 5000
        assert said in (await model.generate([message], tools, lambda _: None)).text


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read"), (b"\xff", "cannot be read"), (b"{}", "a list")]
)
def test_a_server_with_a_bad_script_does_not_start(tmp_path: Path, content: bytes | None, said: str) -> None:
    script, kernel = tmp_path / "script.json", tmp_path / "kernel.json"
    if content is not None:
        script.write_bytes(content)
    kernel.write_text(json.dumps(replace(settings(tmp_path), script=str(script)).to_json()))
    ours, spawner = socket.socketpair()
    with ours, spawner:
        code = "import sys; from ringfence.host import app; app.main(sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", code, str(ours.fileno()), str(kernel)],
            pass_fds=[ours.fileno()],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stdout.count("serving")) == (2, 0)
    assert said in done.stderr and str(script) in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "kept"), [("", "(1, 1)"), ("resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); ", "(0, 0)")]
)
def test_the_process_is_closed_to_debuggers_and_says_what_is_wrong(tmp_path: Path, given: str, kept: str) -> None:
    """It ends at once without its configuration; before that nobody of its account can read its memory."""
    script = (
        "import ctypes, resource, sys; from ringfence.host import app; dumpable = lambda: ctypes.CDLL(None).prctl(3); "
        f"before = dumpable(); {given}app._closed_to_debuggers(); "
        "print(before, dumpable(), resource.getrlimit(resource.RLIMIT_CORE)); app.main(['0', sys.argv[1]])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "none.json")], capture_output=True, text=True)
    walls, starting = done.stdout.splitlines()
    assert walls == f"1 0 {kept}"  # PR_GET_DUMPABLE before (the control) and after
    assert starting.endswith("starting")
    what, remedy = done.stderr.splitlines()
    assert "none.json" in what
    assert remedy == "  start the server again: ringfence serve"
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


def test_what_was_made_at_the_start_is_not_walked_again() -> None:
    """In a process of its own: it is of the whole process."""
    code = """
import gc
from ringfence.host import app
before = gc.get_threshold()
app.settle_memory()
assert gc.get_freeze_count() > 50_000, gc.get_freeze_count()
assert gc.get_threshold() > before
assert gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
