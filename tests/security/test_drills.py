"""Drills D-1 to D-7: a scope of our own code broken on purpose in a copy of the package, on a real server; the second wall
holds, and with that wall taken away the same attempt works (prove/drills.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.prove import copied
from ringfence.prove.drill_breaks import BREAKS
from ringfence.prove.drills import DRILLS, Drills
from ringfence.prove.rows_drills import rows


@pytest.fixture(scope="module")
def drills() -> Drills:
    return Drills()


@pytest.mark.root
@pytest.mark.parametrize("name", list(DRILLS))
def test_the_second_wall_holds(drills: Drills, name: str) -> None:
    walled = drills.walled(name)
    assert walled.outcomes
    assert walled.done == []


@pytest.mark.root
@pytest.mark.parametrize("name", list(DRILLS))
def test_without_the_second_wall_the_attempt_works(drills: Drills, name: str) -> None:
    shown = drills.shown(name)
    assert shown.done == list(shown.outcomes)


@pytest.mark.root
def test_nothing_is_left_behind(drills: Drills) -> None:
    drills.played("D-1")
    assert drills.left == []


def test_every_drill_is_a_row() -> None:
    found = rows()
    assert [row.id for row in found] == [f"D-{n}" for n in range(1, 8)]
    assert {row.in_group for row in found} == {"drills"}


def test_the_breaks_fit_the_package_and_the_package_knows_none(tmp_path: Path) -> None:
    copied.copy(tmp_path, BREAKS)
    for name in BREAKS:
        text = (tmp_path / "ringfence" / name).read_text()
        compile(text, name, "exec")
        if name not in copied.HOSTILE:
            assert "_drill" in text
            assert "_drill" not in (copied.SOURCE / name).read_text()


def test_a_break_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        BREAKS["spawner/sources.py"]("nothing of the kind")
