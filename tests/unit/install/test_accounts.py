"""Slices of host ids: two installations never share one, and none is given away while something runs under it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from ringfence.host.install import accounts
from ringfence.host.kernel.errors import Unavailable


def made(home: Path) -> Path:
    home.mkdir()
    (home / "installation.json").write_text("{}")
    return home


def take(home: Path, base: Path) -> int:
    (base / "proc").mkdir(exist_ok=True)
    return accounts.take_slice(home, registry=base / "registry", usual=base / "usual", proc=base / "proc")


def test_the_slices_fill_the_range_and_never_meet() -> None:
    assert accounts.SLICES == 255
    assert accounts.ids_of(0) == (1879048192, 1880096767)
    ranges = [accounts.ids_of(n) for n in range(accounts.SLICES)]
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))
    assert ranges[-1][1] <= accounts.LAST


def test_each_home_has_its_own_and_keeps_it(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "b")
    assert take(first, tmp_path) == 1
    assert take(second, tmp_path) == 2
    assert take(first, tmp_path) == 1
    assert (tmp_path / "registry" / "2").read_text() == f"{second}\n"


def test_the_usual_home_has_slice_0(tmp_path: Path) -> None:
    made(tmp_path / "other")
    assert take(tmp_path / "other", tmp_path) == 1
    assert take(tmp_path / "usual", tmp_path) == 0
    assert take(tmp_path / "usual", tmp_path) == 0


def test_a_slice_whose_home_is_gone_is_taken_over(tmp_path: Path) -> None:
    gone = made(tmp_path / "gone")
    assert take(gone, tmp_path) == 1
    kept = made(tmp_path / "kept")
    assert take(kept, tmp_path) == 2
    (gone / "installation.json").unlink()
    os.utime(tmp_path / "registry" / "1", (0, 0))
    assert take(made(tmp_path / "new"), tmp_path) == 1


def test_a_state_that_is_being_made_or_taken_away_keeps_its_slice(tmp_path: Path) -> None:
    registry, young = tmp_path / "registry", tmp_path / "young"
    assert take(young, tmp_path) == 1  # and has no installation.json yet
    assert take(tmp_path / "second", tmp_path) == 2
    os.utime(registry / "1", (0, 0))
    if os.geteuid() == 0:
        accounts.keep(young, registry=registry)
        assert take(tmp_path / "third", tmp_path) == 3


def test_a_slice_that_something_runs_under_is_not(tmp_path: Path) -> None:
    busy = accounts.ids_of(1)[1]
    (tmp_path / "proc" / "42").mkdir(parents=True)
    (tmp_path / "proc" / "42" / "status").write_text(f"Uid:\t{busy}\t{busy}\t{busy}\t{busy}\n")
    assert take(made(tmp_path / "a"), tmp_path) == 2
    (tmp_path / "registry" / "1").write_text(f"{tmp_path / 'b'}\n")
    with pytest.raises(Unavailable, match="42") as raised:
        take(tmp_path / "b", tmp_path)
    assert raised.value.remedy == "kill -9 42"


def test_processes_are_found_by_any_of_their_ids(tmp_path: Path) -> None:
    for pid, uids in (("10", "0 0 0 0"), ("11", "1000 5 5 5"), ("12", "5 1000 5 5"), ("x", "7 7 7 7")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text("Name:\tx\nUid:\t" + "\t".join(uids.split()) + "\nGid:\t1\n")
    (tmp_path / "13").mkdir()  # ended while we look
    assert accounts.running_under((1000, 1007), tmp_path) == [11, 12]
    assert accounts.running_under((8, 999), tmp_path) == []


def test_all_slices_taken(tmp_path: Path) -> None:
    home, registry = made(tmp_path / "one"), tmp_path / "registry"
    registry.mkdir()
    for number in range(1, accounts.SLICES):
        (registry / str(number)).write_text(f"{home}/../one\n")
    with pytest.raises(Unavailable, match="255"):
        take(tmp_path / "more", tmp_path)
