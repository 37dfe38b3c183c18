"""`ringfence box snapshot` and its like, as processes of their own against the real web."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.web_rig import Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


def test_copies(served: Web, tmp_path: Path) -> None:
    made = json.loads(served.cli("box", "snapshot", "bob", "--name", "good", "--json").stdout)
    assert set(made["snapshot"]) == {"id", "name", "kind", "created_at", "entries", "bytes", "stored_bytes", "image"}
    assert made["left_out"] == {"fifo": 2}
    told = served.cli("box", "snapshot", "bob")
    assert b"not in the copy: 2 fifo" in told.stderr and b"stored_bytes" in told.stdout
    listed = json.loads(served.cli("box", "snapshots", "bob", "--json").stdout)["snapshots"]
    assert [each["name"] for each in listed] == ["good", ""]
    assert served.cli("box", "snapshots", "bob").stdout.startswith(b"ID")
    changed = json.loads(served.cli("box", "restore", "bob", "good", "--json").stdout)
    assert (changed["before"]["kind"], changed["box"]["observed"]) == ("before", "stopped")
    assert json.loads(served.cli("box", "restore", "bob", "good", "--no-keep", "--json").stdout)["before"] is None
    assert b"no copy was made" in served.cli("box", "reset", "bob", "--keep-files").stdout
    assert served.cli("box", "clone", "bob", "alice", "--snapshot", "good").returncode == 0
    assert json.loads(served.cli("box", "archive", "bob", "--json").stdout)["observed"] == "stopped"
    fsck = json.loads(served.cli("box", "recover", "bob", "--fsck", "--json").stdout)
    assert (fsck["action"], fsck["found"], fsck["freed_bytes"], fsck["removed"]) == ("fsck", "clean", 0, [])
    target = tmp_path / "out.tar"
    assert served.cli("box", "recover", "bob", "--export", str(target)).returncode == 0
    assert target.read_bytes() == b"a tar"
    assert served.cli("box", "snapshot-rm", "bob", "good").returncode == 0
    gone = served.cli("box", "restore", "bob", "good", "--json")
    assert (gone.returncode, json.loads(gone.stdout)["error"]["code"]) == (4, "not_found")


def test_words_that_make_no_sense(served: Web) -> None:
    for words in (
        ("recover", "bob"),
        ("recover", "bob", "--fsck", "--free-space"),
        ("clone", "bob"),
        ("restore", "bob"),
    ):
        assert served.cli("box", *words).returncode == 2
