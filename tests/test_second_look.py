"""CI tries the few tests that failed once more (docs/decisions/0043): which names a run leaves for that, and when none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.parametrize("what", ["a word", "[x]"])
def test_fails(what):
    assert what == "[x]"

def test_holds():
    pass

@pytest.fixture
def broken():
    raise OSError("no")

def test_of_a_broken_fixture(broken):
    pass
"""
FAILED = ["test_it.py::test_fails[a word]", "test_it.py::test_of_a_broken_fixture"]


def run(folder: Path, text: str, *arguments: str) -> tuple[str, Path]:
    shutil.copy(Path(__file__).parent / "conftest.py", folder)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (folder / "test_it.py").write_text(text)
    names = folder / "failed"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "RINGFENCE_TESTS_FAILED": str(names)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout, names


def test_what_failed_is_named_and_can_be_run_again(tmp_path: Path) -> None:
    _, names = run(tmp_path, TESTS)
    assert names.read_text().splitlines() == FAILED
    (tmp_path / "again").write_text(names.read_text())
    said, names = run(tmp_path, TESTS, "@again")
    assert "1 failed, 1 error" in said
    assert names.read_text().splitlines() == FAILED


def test_a_run_that_was_cut_short_names_nothing(tmp_path: Path) -> None:
    _, names = run(tmp_path, TESTS + "\ndef test_stops():\n    raise KeyboardInterrupt\n")
    assert not names.exists()
    _, names = run(tmp_path, TESTS + "\nimport nothing_of_this_name\n")
    assert not names.exists()
