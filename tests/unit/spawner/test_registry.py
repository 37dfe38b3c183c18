"""Ids: in blocks, never twice, on disk before they are used; foreign and damaged records refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.spawner import config, paths
from ringfence.spawner.errors import NotFound, Refused, StartRefused, Unavailable
from ringfence.spawner.protocol import BoxKind
from ringfence.spawner.registry import Registry
from tests.unit.spawner.test_config import GOOD

A, B, C = "a" * 16, "b" * 16, "c" * 16


class State:
    def __init__(self, home: Path) -> None:
        home.chmod(0o711)
        for name, mode in (("boxes", 0o711), ("spawner", 0o700)):
            (home / name).mkdir()
            (home / name).chmod(mode)
        self.home = home
        self.config = config.parse(json.dumps(GOOD))

    def open(self) -> Registry:
        return Registry(self.config, paths.open_state(str(self.home)))

    def record(self, name: str, changes: dict[str, object]) -> None:
        path = self.home / "boxes" / name / "box.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def empty(self, name: str) -> None:
        """The part of a removal that runs as the box."""
        for part in paths.TREES:
            (self.home / "boxes" / name / "tree" / part).rmdir()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    yield State(tmp_path)


pytestmark = pytest.mark.root


def test_blocks_of_eight_survive_a_restart_and_are_never_reused(state: State) -> None:
    first, created = state.open().provision(A, "home")
    assert created and (first.uid, first.ids) == (1000008, 8)
    registry = state.open()
    assert registry.provision(A, "home") == (first, False)
    assert registry.provision(B, "home")[0].uid == 1000016
    state.empty(A)
    registry.forget(registry.get(A), clean=True)
    assert registry.provision(C, "home")[0].uid == 1000024
    assert registry.names() == [B, C]


def test_disposable_ids_come_back_only_after_a_clean_sweep(state: State) -> None:
    registry = state.open()
    first, _ = registry.provision(A, "run")
    second, _ = registry.provision(B, "probe")
    assert (first.ids, second.uid) == (1, first.uid + 1)
    state.empty(A)
    state.empty(B)
    registry.forget(first, clean=False)
    registry.forget(second, clean=True)
    given = [registry.provision(str(n).rjust(16, "q"), "run")[0].uid for n in range(2, 8)]
    given.append(registry.provision("y" * 16, "run")[0].uid)
    assert first.uid not in given and given[-1] == second.uid
    assert registry.provision("x" * 16, "scratch")[0].uid == first.uid + 8


class Died(BaseException):
    """The spawner was killed here."""


@pytest.mark.parametrize("kind", ["home", "run"])
def test_a_removal_killed_at_any_step_is_finished_by_the_next_and_no_id_is_given_twice(
    state: State, monkeypatch: pytest.MonkeyPatch, kind: BoxKind
) -> None:
    """M12, M08. Every system call of the removal that changes a name is the last one once."""
    left = [0]

    def dying(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Died
            real(*arguments, **named)

        return call

    for step in range(40):
        registry = state.open()
        entry, _ = registry.provision(A, kind)
        (state.home / "boxes" / A / "ctl" / ".machine-id.new").touch()
        (state.home / "boxes" / A / ".live.json.new").touch()
        state.empty(A)
        with monkeypatch.context() as patch:
            left[0] = step
            for name in ("unlink", "rmdir", "rename"):
                patch.setattr(os, name, dying(getattr(os, name)))
            try:
                registry.forget(entry, clean=True)
            except Died:
                pass
            else:
                assert not (state.home / "boxes" / A).exists() and step > 5
                return
        again = state.open()
        try:
            known = [again.get(A).uid]
        except NotFound:
            known = []
        others = [again.provision(f"{letter}" * 16, "run")[0].uid for letter in "cdefghijk"]
        assert len({*known, *others}) == len(known) + len(others)
        if known:
            again.forget(again.get(A), clean=True)
        else:
            again.clear(A)
        assert not (state.home / "boxes" / A).exists()
        for letter in "cdefghijk":
            state.empty(letter * 16)
            again.forget(again.get(letter * 16), clean=True)
    pytest.fail("a removal has fewer steps than that")


def test_the_range_ends(state: State) -> None:
    state.config = replace(state.config, ids=(1000008, 1000016))
    registry = state.open()
    registry.provision(A, "home")
    with pytest.raises(Unavailable, match="spent"):
        registry.provision(B, "home")


def test_layout_owners_and_modes(state: State) -> None:
    registry = state.open()
    uid = registry.provision(A, "home")[0].uid
    box = state.home / "boxes" / A
    wanted = {".": (0, 0o711), "ctl": (0, 0o711), "tree": (uid, 0o700), "tree/home": (uid, 0o700)}
    wanted |= {"tree/workspace": (uid, 0o700), "tree/tmp": (uid, 0o1777), "box.json": (0, 0o644)}
    for name, (owner, mode) in wanted.items():
        status = (box / name).stat()
        assert (status.st_uid, status.st_mode & 0o7777) == (owner, mode), name


@pytest.mark.parametrize("left", ["nothing", "record", "bare tree"])
def test_a_half_made_box_is_completed(state: State, left: str) -> None:
    registry = state.open()
    box = state.home / "boxes" / A
    if left == "nothing":
        box.mkdir()
        box.chmod(0o711)
    else:
        registry.provision(A, "home")
        (box / "ctl").rmdir()
        for name in ("home", "workspace", "tmp"):
            (box / "tree" / name).rmdir()
        if left == "record":
            (box / "tree").rmdir()
        else:
            os.chown(box / "tree", 0, 0)
    entry, _ = registry.provision(A, "home")
    assert (box / "tree" / "home").stat().st_uid == entry.uid and (box / "ctl").is_dir()


@pytest.mark.parametrize(
    "change",
    [
        {"installation": "z" * 16},
        {"box": B},
        {"uid": 0},
        {"uid": 1000000},
        {"uid": 2000000},
        {"uid": "1000008"},
        {"ids": 9},
        {"ids": 0},
        {"kind": "admin"},
        {"more": 1},
    ],
    ids=str,
)
def test_records_that_are_not_ours(state: State, change: dict[str, object]) -> None:
    registry = state.open()
    registry.provision(A, "home")
    registry.get(A)
    state.record(A, change)
    with pytest.raises(Refused):
        registry.get(A)


def test_records_that_others_could_write(state: State) -> None:
    registry = state.open()
    entry, _ = registry.provision(A, "home")
    record = state.home / "boxes" / A / "box.json"
    record.chmod(0o666)
    with pytest.raises(Refused, match="mode 0666"):
        registry.get(A)
    record.chmod(0o644)
    os.chown(record, entry.uid, entry.uid)
    with pytest.raises(Refused, match="owner"):
        registry.get(A)


def test_unknown_and_changed_kind(state: State) -> None:
    registry = state.open()
    with pytest.raises(NotFound):
        registry.get(A)
    registry.provision(A, "home")
    with pytest.raises(Refused, match="kind home"):
        registry.provision(A, "run")


@pytest.mark.parametrize("damage", ["link", "writable", "foreign", "missing"])
def test_state_directories_that_cannot_be_trusted(state: State, damage: str) -> None:
    home = state.home
    if damage == "link":
        home = state.home.parent / f"{state.home.name}-link"
        home.symlink_to(state.home)
    elif damage == "writable":
        home.chmod(0o777)
    elif damage == "foreign":
        os.chown(home, 12345, 12345)
    else:
        (home / "spawner").rmdir()
    with pytest.raises(StartRefused):
        paths.open_state(str(home))
