"""The table of `sweep` in docs/operate.md has each kind of debris once, and the fields that the API answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from ringfence.host.kernel.life.debris import OF_STORE
from ringfence.host.web.shapes_sweep import LeftShape, SweepShape
from ringfence.spawner.protocol import DebrisKind
from tests.test_threats_paper import section, table

PAPER = (Path(__file__).parents[1] / "docs" / "operate.md").read_text()
SECTION = section(PAPER, "## Sweep: what was left behind")


def test_every_kind_has_its_row_and_no_other() -> None:
    named = [name for row in table(SECTION, 3) for name in re.findall(r"`([a-z]+)`", row[0])]
    assert sorted(named) == sorted((*get_args(DebrisKind), *OF_STORE))


def test_the_fields_are_those_of_the_api() -> None:
    [line] = re.findall(r"`(\{\"found.*?\})`", SECTION)
    assert set(re.findall(r'"(\w+)"', line)) == {*LeftShape.model_fields, *SweepShape.model_fields}
