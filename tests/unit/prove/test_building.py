"""What striking takes away though no server was there to do it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ringfence.bench.throwaway import Installation
from ringfence.prove import building, remains


@pytest.mark.root
@pytest.mark.parametrize("held", [False, True])
def test_cgroups_of_a_server_that_refused_to_start(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    """Control: one with something in it is no empty one; it stays, and is told."""
    monkeypatch.setattr(remains, "PATIENCE", 0.0)
    root, lock = building.claimed()
    made = Installation(root / "state", site=root / "site", apart=True)
    name = f"strike{os.getpid()}"
    made.home.mkdir()
    (made.home / "installation.json").write_text(json.dumps({"id": name, "ids": [0, 0]}))
    tops = [remains.CGROUPS / name for name in ("", "memory", "unified")]
    cgroups = [top / f"ringfence-{name}" for top in tops if (top / "cgroup.procs").exists()]
    assert cgroups
    for path in cgroups:
        (path / "server").mkdir(parents=True)
    if held:
        monkeypatch.setattr(Path, "rmdir", _refused_of(name))
    try:
        left = building.strike(made)
        assert sorted(left) == ([f"cgroup {path}" for path in sorted(cgroups)] if held else [])
        assert [path.exists() for path in cgroups] == [held] * len(cgroups) and not root.exists()
    finally:
        monkeypatch.undo()
        remains.take_cgroups(name)
        os.close(lock)
    assert not any(path.exists() for path in cgroups)


def _refused_of(name: str) -> object:
    """rmdir(2) of a cgroup that has a process in it."""
    remove = Path.rmdir

    def rmdir(path: Path) -> None:
        if f"ringfence-{name}" in str(path):
            raise OSError(16, "Device or resource busy")
        remove(path)

    return rmdir
