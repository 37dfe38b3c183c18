"""Whatever a guest sends: the link goes on or ends once; it never raises, and a command has an outcome."""

from __future__ import annotations

import asyncio
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.fuzz_wire import SEEDS, one_input, seeded
from tests.support.soaking import share

frames = st.one_of(st.sampled_from(SEEDS), st.binary(max_size=200), st.binary(max_size=60).map(lambda b: b + b"\n"))


@settings(max_examples=150, deadline=None)
@given(cuts=st.binary(min_size=4, max_size=4), sent=st.lists(frames, max_size=6))
def test_any_frames_in_any_splitting(cuts: bytes, sent: list[bytes]) -> None:
    asyncio.run(one_input(cuts + b"".join(sent)))


async def test_damaged_frames_from_a_seed() -> None:
    alive, ended = await seeded(seed=20, count=1500)
    assert alive > 200  # both happen: the target is neither blind nor always shut
    assert ended > 200


async def test_control_each_seed_alone_is_taken() -> None:
    for seed in SEEDS:
        assert await one_input(b"\xff\xff\xff\xff" + seed), seed


@pytest.mark.soak
async def test_g17_a_long_fuzz_leaves_memory_flat() -> None:
    await seeded(seed=1, count=20_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(2, 42):
        await seeded(seed=seed, count=share(20_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KiB
