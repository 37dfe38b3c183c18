"""The fuzz targets of the way out, from a few seeds here and for long in `make soak`; each target says what must hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import fuzz_dns, fuzz_head, fuzz_hello, fuzz_outward, fuzz_rules, fuzz_standins
from tests.fuzz.running import Target
from tests.support.soaking import SEED, share

SECONDS = 600  # of each target
TARGETS = {
    module.__name__.rpartition("_")[2]: module.TARGET
    for module in (fuzz_outward, fuzz_head, fuzz_rules, fuzz_hello, fuzz_dns, fuzz_standins)
}
each = pytest.mark.parametrize("name", TARGETS)


@each
def test_damaged_ones_from_a_seed(name: str) -> None:
    read, refused = TARGETS[name].seeded(seed=6, count=1000)
    assert read > 100 and refused > 100  # the target is neither blind nor always shut


@each
@given(more=st.binary(max_size=60), seed=st.integers(0, 999))
def test_any_bytes_alone_and_behind_good_ones(name: str, more: bytes, seed: int) -> None:
    target = TARGETS[name]
    target.one_input(more)
    target.one_input(target.mutated(random.Random(seed)) + more)


def test_control_a_finding_names_its_seed_and_its_input() -> None:
    def blind(data: bytes) -> bool:
        raise AssertionError("found")

    with pytest.raises(AssertionError) as found:
        Target(blind, lambda chance: b"input").seeded(3, 1)
    assert found.value.__notes__ == ["seed 3, input 0: b'input'"]


@pytest.mark.soak
@each
def test_for_long(name: str) -> None:
    tried = TARGETS[name].going(share(SECONDS), SEED)
    print(f"{name}: {tried} inputs from seed {SEED}")
