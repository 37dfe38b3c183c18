"""Volumes that can be full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import volumes


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """2 MiB."""
    with volumes.volume(tmp_path / "volume", 2) as place:
        yield place


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """128 MiB: four times the reserve, without which there is none; and it is there."""
    with volumes.volume(tmp_path / "volume", 128) as place:
        yield place
