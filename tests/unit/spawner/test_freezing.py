"""When it is looked whether a box stands still, by files that read as the kernel's do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ringfence.spawner import freezing
from ringfence.spawner.tasks import Wait


def group(folder: Path, events: str) -> str:
    (folder / "cgroup.freeze").write_text("0")
    (folder / "cgroup.events").write_text(events)
    return str(folder)


def test_the_first_looks_wait_for_nothing_and_the_later_ones_for_longer_each_time(tmp_path: Path) -> None:
    steps = freezing.turn(2, group(tmp_path, "populated 1\nfrozen 0\n"), frozen=True)
    waits: list[float] = []
    for _ in range(freezing.AT_ONCE + 8):
        wait = next(steps)
        assert isinstance(wait, Wait)
        waits.append(wait.until - time.monotonic())
    assert max(waits[: freezing.AT_ONCE]) <= 0, "another box's step comes in between, and nothing else"
    assert all(wait > 0 for wait in waits[freezing.AT_ONCE :])
    assert max(waits) <= 0.02
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    with pytest.raises(StopIteration):
        next(steps)
    assert (tmp_path / "cgroup.freeze").read_text() == "1"


def test_what_stands_still_already_is_not_waited_for(tmp_path: Path) -> None:
    steps = freezing.turn(2, group(tmp_path, "populated 1\nfrozen 1\n"), frozen=True)
    with pytest.raises(StopIteration):
        next(steps)
