"""F50: a seeded simulation of everything that a kernel process lives with. A seed decides all of it, and says what went wrong.

A seed that fails is played again by `python -m tests.support.sim.runner FAULTS SEED 1` with PYTHONHASHSEED=0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.sim.runner import seeds
from tests.support.soaking import share

SEEDS, FAULTS, PARTS = 200, 4, 2  # some 0.27 s of a processor each: 27 s in two processes
SOAK_PARTS, SOAK_FAULTS, SOAK_PART = 20, 200, share(500)  # 10,000 seeds
CONTROLS, CONTROL_FAULTS = 120, 7  # the rarest of the walls that are taken away is missed in about 5 of 100 seeds


def wrong(verdicts: Iterable[dict[str, Any]]) -> list[str]:
    """In words that suffice to play it again."""
    return [
        f"seed {one['seed']}, {one['faults']} faults: {one['wrong']}\n" + "\n".join(one["trace"])
        for one in verdicts
        if one["wrong"]
    ]


def test_seeds() -> None:
    with ThreadPoolExecutor(PARTS) as pool:  # a process each
        parts = pool.map(lambda part: list(seeds(FAULTS, 1 + part * SEEDS // PARTS, SEEDS // PARTS)), range(PARTS))
        verdicts = [verdict for part in parts for verdict in part]
    assert not wrong(verdicts), "\n\n".join(wrong(verdicts)[:3])
    assert {one["seed"] for one in verdicts} == set(range(1, SEEDS + 1))
    text = "\n".join(line for one in verdicts for line in one["trace"])
    seen = {what: text.count(what) for what in _WHAT}
    assert all(seen.values()), f"some of it never happened: {seen}"


# Words of the trace, each for something that the seeds are for. A crash while an effect goes out comes to one of them
# in two hundred: that is what the kill loops are for, and the long form.
_WHAT = (
    "crash of", "at store.commit.before", "at store.commit.after", "fault: box", "fault: restored", "fault: loop",
    "fault: wire", "fault: wall clock", "goes on", "fault: store", "lost after", "lost before", "model: hangs", "model: truncated",
    "twice: run.start", "twice: cmd.spawn", "(steer)", "(reject)", "cancels", "(approval): allow", "(approval): deny", "(in_doubt): ",
)  # fmt: skip


def test_a_seed_is_the_same_each_time() -> None:
    """Whatever was played before it: so is it when only the one that failed is played again."""
    among_others = {one["seed"]: one["digest"] for one in seeds(FAULTS, 1, 6)}
    assert len(set(among_others.values())) == 6, "no two seeds are alike"
    for seed in (4, 6):
        [again] = seeds(FAULTS, seed, 1)
        assert again["digest"] == among_others[seed]


def found(broken: str) -> Counter[str]:
    """Invariants that the first seed names that finds anything."""
    for verdict in seeds(CONTROL_FAULTS, 1, CONTROLS, broken):
        if verdict["wrong"]:
            return Counter(line.partition(":")[0] for line in verdict["wrong"])
    return Counter()


def test_an_old_epoch_that_may_write_is_found() -> None:
    assert found("no_fence")["I5"]


def test_an_effect_that_goes_out_before_it_is_sent_is_found() -> None:
    assert found("no_sent")["I4"]


def test_a_key_that_is_forgotten_is_found() -> None:
    assert found("no_keys")["I2"]


def test_rows_of_the_audit_that_hang_on_nothing_are_found() -> None:
    assert found("no_links")["I2"]


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_many_seeds_with_many_faults(part: int) -> None:
    bad = wrong(seeds(SOAK_FAULTS, SEEDS + 1 + part * SOAK_PART, SOAK_PART))
    assert not bad, "\n\n".join(bad[:3])
