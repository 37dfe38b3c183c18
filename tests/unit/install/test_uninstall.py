"""Whose a folder is, before any of it is taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.install import uninstall
from ringfence.host.kernel.errors import Refused, Unavailable


@pytest.fixture
def home(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "state"


def find(home: Path) -> uninstall.Found:
    return uninstall.find({"RINGFENCE_HOME": str(home)})


def test_a_folder_that_is_no_state_is_left_alone(home: Path) -> None:
    """Named by mistake: it has no id, and something in it that no state has."""
    home.mkdir()
    (home / "letters").write_text("mine")
    with pytest.raises(Refused, match="letters"):
        find(home)
    assert (home / "letters").read_text() == "mine"


def test_what_a_killed_purge_left_is_a_state(home: Path) -> None:
    for name in ("vault", "spawner"):
        (home / name).mkdir(parents=True)
    found = find(home)
    assert found.installation is None
    assert uninstall.purge(found, force=False)["left"] == []
    assert not home.exists()
    with pytest.raises(Unavailable):
        find(home)


def test_a_link_in_the_place_of_a_folder_is_not_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "letters").write_text("theirs")
    home.mkdir()
    (home / "boxes").symlink_to(tmp_path / "others")
    (home / "vault").mkdir()
    assert uninstall.purge(find(home), force=False)["left"] == []
    assert not home.exists()
    assert (tmp_path / "others" / "letters").read_text() == "theirs"
