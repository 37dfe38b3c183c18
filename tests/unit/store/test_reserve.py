"""`low` and the reserve's file agree for each thread that asks: whoever is told that the disk is full finds new work refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringfence.host.store import reserve
from ringfence.host.store.reserve import NAME, FileReserve

PATIENCE = 30.0


class Slow(FileReserve):
    """Stands still at one place, the first time that it comes there, while somebody else begins."""

    other: Callable[[], object] | None = None
    at = ""

    def _size(self) -> int:
        size = super()._size()
        self._stand("_size")
        return size

    def _lower(self, why: str) -> None:
        self._stand("_lower")
        super()._lower(why)

    def _stand(self, where: str) -> None:
        if where == self.at and self.other is not None:
            self.begun, self.other = threading.Thread(target=self.other), None
            self.begun.start()
            self.begun.join(0.2)  # enough for one that waits for nobody; else it goes on after us


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(reserve, "BYTES", 4096)
    monkeypatch.setattr(reserve, "ROOM", 4096)
    dialect: Any = SimpleNamespace(one_kernel=True, url=SimpleNamespace(database=str(tmp_path / "ringfence.db")))
    made = Slow(dialect)
    assert made._keep()
    return made


def test_two_that_find_the_volume_full(kept: Slow) -> None:
    """The second one finds no file: it is not told before the first has said so."""
    seen: list[bool] = []

    def finds() -> None:
        kept.release()
        seen.append(kept.low)

    kept.at, kept.other = "_lower", finds
    finds()
    kept.begun.join(PATIENCE)
    assert seen == [True, True]


def test_a_look_that_began_before_the_volume_was_full(kept: Slow, tmp_path: Path) -> None:
    """It saw the file, which is gone when it goes on."""
    kept.at, kept.other = "_size", kept.release
    assert kept._keep()
    kept.begun.join(PATIENCE)
    assert (kept.low, kept.state, (tmp_path / NAME).exists()) == (True, "released", False)
    assert kept._keep()
    assert (kept.low, (tmp_path / NAME).exists()) == (False, True), "control"
