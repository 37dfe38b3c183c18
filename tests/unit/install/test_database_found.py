"""Which database the verbs take beside a server: what its account wrote is looked at, and no more than that is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.install import database
from ringfence.host.install.layout import Layout
from ringfence.host.install.prepare import no_server
from ringfence.host.kernel.errors import Refused, Unavailable
from ringfence.host.kernel.settings import Settings

HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    home = tmp_path / "state"
    for folder in (home, home / "spawner", home / "run"):
        folder.mkdir(mode=0o755)
    (home / "installation.json").write_text(json.dumps({"id": "i" * 16, "ids": [0, 0], "created_at": ""}))
    return Layout(home)


@pytest.fixture
def served(layout: Layout) -> Iterator[Layout]:
    """As if a server ran: another process has the lock."""
    command = [sys.executable, "-c", HOLD, str(layout.lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline() == b"\n"
        yield layout


def found(layout: Layout) -> database.Place:
    return database.find({"RINGFENCE_HOME": str(layout.home)}, None)


def own(layout: Layout) -> str:
    return f"sqlite:///{layout.home}/db/ringfence.db"


def test_beside_a_server_it_is_the_servers_and_every_other_setting_the_files(served: Layout) -> None:
    """Root runs the interpreter of the settings, so the account of the server is not the one to name it."""
    told = replace(Settings(database="postgresql://db/x"), python="/home/of/anybody", home="/elsewhere")
    served.kernel_json.write_text(json.dumps(told.to_json()))
    place = found(served)
    assert place.settings.database == "postgresql://db/x"
    assert (place.settings.python, place.settings.home) == (Settings().python, str(served.home))


def test_without_a_server_it_is_the_settings(layout: Layout) -> None:
    layout.kernel_json.write_text(json.dumps(Settings(database="postgresql://db/x").to_json()))
    assert found(layout).settings.database == own(layout)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_text("5"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_bytes(b"\xff"),
    ],
    ids=["a FIFO", "a link", "a number", "deep", "no text"],
)
def test_a_file_that_is_none_neither_hangs_nor_ends_it(served: Layout, make: Callable[[Path], None]) -> None:
    with pytest.raises(Unavailable), no_server(served):
        pass  # control: it is a server's file that is looked at
    make(served.kernel_json)
    assert found(served).settings.database == own(served)


def test_a_state_without_a_place_for_the_lock_says_so(layout: Layout) -> None:
    layout.spawner.rmdir()
    with pytest.raises(Refused, match="lock cannot be opened: No such file"), no_server(layout):
        pass
