"""What `prove` does with settings: those of `serve --config` can be proven, and settings that are none are named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence.bench.throwaway import CommandFailed, ServerEnded
from ringfence.cli.prove_command import prove
from ringfence.host import app
from ringfence.host.install import prepare, prove_record
from ringfence.host.install.layout import Layout
from ringfence.host.kernel.errors import Unavailable
from ringfence.prove import suite
from ringfence.prove.registry import chosen, rows
from ringfence.prove.report import Report
from ringfence.prove.row import Result

Tried = list[dict[str, Any]]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    home = tmp_path / "state"
    home.mkdir(mode=0o711)
    monkeypatch.setenv("RINGFENCE_HOME", str(home))
    made = Layout(home)
    made.installation.write_text("{}")
    return made


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Tried:
    """What the suite was given. It holds everywhere, at once."""
    given: Tried = []

    def held(wanted: Any, *, done: Callable[[Result], None], settings: dict[str, Any], **_: object) -> Report:
        given.append(settings)
        return Report("bubblewrap", "root", 1.0, [Result(row, "held", "", "ran") for row in wanted], [])

    monkeypatch.setattr(suite, "prove", held)
    return given


def error(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    return found


def test_settings_that_are_none_are_named_with_the_remedy(
    state: Layout, tried: Tried, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove(None, "A01", None, True) == 0  # control
    capsys.readouterr()
    state.settings.write_text('disk = "tape"\n')
    assert prove(None, "A01", None, True) == 2
    told = error(capsys)
    assert told["code"] == "invalid" and "disk" in told["message"] and told["remedy"]
    other = tmp_path / "other.toml"
    assert prove(None, "A01", str(other), True) == 2
    assert str(other) in error(capsys)["message"]
    if os.geteuid() == 0:
        other.write_text("")
        other.chmod(0o666)
        assert prove(None, "A01", str(other), True) == 3
        assert error(capsys)["code"] == "refused"
    assert len(tried) == 1


REFUSED = """an earlier line
ringfence: disk is set to accounting: files are counted (no-disk-quota)
  set disk = "auto"
"""


@pytest.mark.parametrize(
    ("error", "what", "remedy"),
    [
        (ServerEnded(5, REFUSED), "disk is set to accounting: files are counted (no-disk-quota)", 'set disk = "auto"'),
        (ServerEnded(-9, "one\ntwo\n"), "the server ended with -9: one; two", "ringfence doctor"),
        (CommandFailed("('init',): exit 1\nringfence: no\n"), "('init',): exit 1; ringfence: no", "ringfence doctor"),
    ],
)
def test_a_server_that_refuses_is_told_in_its_own_words_on_one_line(
    state: Layout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    what: str,
    remedy: str,
) -> None:
    def refused(*_: object, **__: object) -> Report:
        raise error

    monkeypatch.setattr(suite, "prove", refused)
    assert prove(None, "A01", None, False) == 5
    assert capsys.readouterr().err.splitlines() == [f"ringfence: no throw-away server: {what}", f"  {remedy}"]
    error.add_note("left behind: cgroup x")
    assert prove(None, "A01", None, False) == 5
    assert capsys.readouterr().err.splitlines()[0].endswith(f"{what}; left behind: cgroup x")


def test_what_the_kernel_process_ends_with_is_told_with_its_remedy(
    state: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        app._end(Unavailable("2 tenants need proven walls", remedy="ringfence prove --config f"))
    refusal = ServerEnded(int(end.value.code or 0), capsys.readouterr().err)

    def refused(*_: object, **__: object) -> Report:
        raise refusal

    monkeypatch.setattr(suite, "prove", refused)
    assert prove(None, "A01", None, False) == 5
    told = capsys.readouterr().err.splitlines()
    assert told == ["ringfence: no throw-away server: 2 tenants need proven walls", "  ringfence prove --config f"]


def test_a_settings_file_without_a_name_is_no_folder(
    state: Layout, tried: Tried, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove(None, "A01", "", True) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "the name of the settings file is empty"
    assert not tried


def test_a_state_that_cannot_be_one_is_told_as_any_error(
    tried: Tried, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RINGFENCE_HOME", "relative")
    assert prove(None, "A01", None, False) == 2
    assert capsys.readouterr().err.startswith(
        "ringfence: the state directory 'relative' is no absolute path\n  export "
    )


def test_the_file_of_serve_is_what_is_tried_and_stamped(state: Layout, tried: Tried, tmp_path: Path) -> None:
    state.settings.write_text('disk = "image"\n')
    other = tmp_path / "other.toml"
    other.write_text('disk = "accounting"\naccept = ["no-disk-quota"]\n')
    assert prove(None, None, str(other), True) == 0
    assert (tried[0]["disk"], tried[0]["accept"]) == ("accounting", ["no-disk-quota"])
    record = prove_record.read(state)
    assert record is not None and len(record.rows) == len(chosen(rows(), None))
    assert prove_record.verdict(record, prove_record.current(prepare.read_settings(other, missing_ok=False))).open == ()
    own = prepare.read_settings(state.settings, missing_ok=False)
    assert prove_record.verdict(record, prove_record.current(own)).open == ("unproved",)


def test_without_a_state_nothing_is_recorded(tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_HOME", str(tmp_path / "none"))
    other = tmp_path / "other.toml"
    other.write_text('disk = "accounting"\n')
    assert prove(None, None, str(other), True) == 0 == prove(None, None, None, True)
    assert [given.get("disk") for given in tried] == ["accounting", None]
    assert not (tmp_path / "none").exists()
