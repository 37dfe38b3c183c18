"""The frozen schema and the page's table are what wire.messages says."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from ringfence.wire.messages import GENERATION, METHODS

TOP = Path(__file__).resolve().parents[3]


@pytest.fixture(name="script")
def _script() -> ModuleType:
    loader = SourceFileLoader("wire_schema", str(TOP / "scripts" / "wire_schema"))
    spec = importlib.util.spec_from_loader("wire_schema", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_schema_and_page_are_current(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0, capsys.readouterr().out


def test_control_a_page_that_is_not_current_is_noticed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, schema = tmp_path / "wire.md", tmp_path / "gen.json"
    page.write_text(script.PAGE.read_text("utf-8").replace("`cmd.spawn`", "`cmd.spwan`"), "utf-8")
    schema.write_text("{}", "utf-8")
    for name, value in (("TOP", tmp_path), ("PAGE", page), ("SCHEMA", schema)):
        monkeypatch.setattr(script, name, value)
    assert script.main(["--check"]) == 1
    assert capsys.readouterr().out.count("not current") == 2
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0


def test_every_row_is_strict_and_says_its_bounds() -> None:
    frozen = json.loads((TOP / "src/ringfence/wire/schema" / f"gen-{GENERATION}.json").read_text("utf-8"))
    assert set(frozen["methods"]) == set(METHODS)
    for name, row in frozen["methods"].items():
        for shape in (row["params"], row["result"]):
            if shape is not None:
                assert shape["additionalProperties"] is False, name
        assert row["max_bytes"] >= 1024
        assert row["per_second"] > 0
