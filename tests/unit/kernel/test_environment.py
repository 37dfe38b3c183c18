"""The base table of a command."""

from __future__ import annotations

import os

from ringfence.host.kernel.environment import BASE, HOME, command_environment


def test_the_path_looks_into_home_first_and_then_ours_and_the_systems() -> None:
    path = BASE["PATH"].split(":")
    assert path[:2] == [f"{HOME}/.local/bin", "/opt/ringfence/bin"]
    assert {"/usr/local/bin", "/usr/bin", "/bin"} <= set(path)
    assert all(folder.startswith("/") for folder in path)


def test_what_package_managers_install_ends_up_on_the_path() -> None:
    for name in ("GOBIN", "UV_TOOL_BIN_DIR", "UV_PYTHON_BIN_DIR"):
        assert BASE[name] in BASE["PATH"].split(":")
    for name in ("npm_config_prefix", "CARGO_INSTALL_ROOT"):
        assert f"{BASE[name]}/bin" in BASE["PATH"].split(":")
    assert (BASE.get("PIP_USER"), BASE["PIP_BREAK_SYSTEM_PACKAGES"]) == (None, "1")


def test_nothing_of_this_process_is_in_it() -> None:
    os.environ["RINGFENCE_CANARY"] = "leak"
    try:
        got = command_environment({})
    finally:
        del os.environ["RINGFENCE_CANARY"]
    assert set(got) == set(BASE)
    assert not any(b"leak" in value for value in got.values())
    assert "PYTHONSAFEPATH" not in got  # it would break scripts that import their neighbours


def test_the_request_wins_and_may_carry_any_bytes() -> None:
    got = command_environment({"TERM": b"xterm", "RAW": b"\xff\xfe"})
    assert (got["TERM"], got["RAW"], got["HOME"]) == (b"xterm", b"\xff\xfe", HOME.encode())
    assert "RAW" not in BASE
