"""What `prove` takes away, and when: ids last, the lock last, mounts first; never what may have just been begun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.bench.throwaway import Installation, state_base
from ringfence.host.install import accounts
from ringfence.prove import building, remains

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of its own: another prove would sweep what looks old, and this one what another has just begun."""
    path = Path(tempfile.mkdtemp(prefix="ringfence-strike-", dir=state_base()))
    path.chmod(0o711)
    monkeypatch.setattr(building, "state_base", lambda: path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def folder(base: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=building.PREFIX, dir=base))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_a_folder_that_lost_its_lock_is_taken_away_when_it_is_old(folder: Path) -> None:
    (folder / "state").mkdir()
    assert folder.name not in building.sweep()  # as if its prove was about to make the lock
    os.utime(folder, (0, 0))
    assert folder.name in building.sweep()
    assert not folder.exists()


def test_a_lock_that_is_held_is_left_alone() -> None:
    root, lock = building.claimed()
    os.utime(root, (0, 0))
    assert root.name not in building.sweep()
    os.close(lock)
    assert root.name in building.sweep()
    assert not root.exists()


def test_ids_are_given_back_when_nothing_is_looked_for_any_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another installation gets them, and its processes are what this one left behind."""
    home = folder / "state"
    number = accounts.take_slice(home)
    home.mkdir()
    (home / "installation.json").write_text(json.dumps({"id": "z" * 16, "ids": accounts.ids_of(number)}))
    entry, find, seen = accounts.REGISTRY / str(number), remains.find, []
    os.utime(entry, (0, 0))

    def watched(facts: remains.Facts, root: Path) -> list[str]:
        seen.append((root.exists(), accounts.take_slice(Path("/nonexistent/another"))))
        return find(facts, root)

    monkeypatch.setattr(remains, "find", watched)
    try:
        assert building.strike(Installation(home)) == []
    finally:
        accounts.forget(Path("/nonexistent/another"))
    ((there, others),) = seen
    assert not there
    assert others != number
    assert not entry.exists()


def test_what_is_mounted_in_it_is_unmounted_before_it_is_removed(folder: Path) -> None:
    place = folder / "state" / "mounted"
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
    remains.end_by_force(remains.Facts("", (0, 0)), folder)
    mounted = str(place) in Path("/proc/self/mountinfo").read_text()
    if mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
    assert not mounted
