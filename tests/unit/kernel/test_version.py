"""One version."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ringfence.host.kernel.version import VERSION


def test_the_version_is_that_of_the_package() -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["version"] == VERSION
