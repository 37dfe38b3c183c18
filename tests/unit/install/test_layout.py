"""Where the state lies, by account and environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.host.install.layout import Layout, home_of
from ringfence.host.kernel.errors import Invalid


@pytest.mark.parametrize(
    ("environment", "uid", "wanted", "home"),
    [
        ({}, 0, None, "/var/lib/ringfence"),
        ({"HOME": "/root", "XDG_DATA_HOME": "/root/x"}, 0, None, "/var/lib/ringfence"),
        ({"RINGFENCE_HOME": "/srv/rf"}, 0, None, "/srv/rf"),
        ({"RINGFENCE_HOME": "/srv/rf"}, 5, "/srv/other", "/srv/other"),
        ({"HOME": "/home/ann"}, 5, None, "/home/ann/.local/share/ringfence"),
        ({"HOME": "/home/ann", "XDG_DATA_HOME": "/data/"}, 5, None, "/data/ringfence"),
        ({"HOME": "/home/ann", "XDG_DATA_HOME": "relative"}, 5, None, "/home/ann/.local/share/ringfence"),
        ({"HOME": "/home/ann", "XDG_DATA_HOME": "", "RINGFENCE_HOME": ""}, 5, None, "/home/ann/.local/share/ringfence"),
    ],
)
def test_home(environment: dict[str, str], uid: int, wanted: str | None, home: str) -> None:
    assert home_of(environment, uid, wanted) == Path(home)


@pytest.mark.parametrize(
    "text",
    ["relative", "/srv/../x", "/", "/srv", "/a\0b/c", "/srv/a\nb", "/srv/\udcff", "/srv/\x1b[31m", "/srv/" + 90 * "x"],
)
def test_no_place_for_a_state(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        home_of({}, 0, text)
    assert "RINGFENCE_HOME" in raised.value.remedy


def test_the_longest_home_has_room_for_its_socket() -> None:
    """sun_path holds 107 bytes; letters of several bytes count as such."""
    home = home_of({}, 0, "/srv/" + 89 * "x")
    assert len(os.fsencode(home / "run" / "api.sock")) == 107
    with pytest.raises(Invalid, match="limit is 94"):
        home_of({}, 0, "/srv/" + 45 * "é")


def test_nobody_knows_where() -> None:
    with pytest.raises(Invalid):
        home_of({}, 5)


def test_everything_lies_below_home() -> None:
    layout = Layout(Path("/srv/rf"))
    names = ("database", "master_key", "kernel_json", "spawner_config", "lock", "boxes", "runtime", "installation")
    assert all(layout.home in getattr(layout, name).parents for name in names)
