"""C53: verbs about a box's whole tree when its disk is full, or the volume of copies is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, installation

pytestmark = pytest.mark.root
MIB = 1 << 20


@pytest.fixture(scope="module")
def small() -> Iterator[Installation]:
    with installation(settings='[limits]\ndisk = "64MiB"\ninodes = 2048\n') as made:
        yield made


def sh(server: Installation, who: str, script: str) -> str:
    return server.run("exec", who, "--", "sh", "-c", script).out.decode()


def test_with_a_full_disk_everything_goes_on(small: Installation) -> None:
    small.ok("user", "add", "ann")
    sh(small, "ann", "echo one > f; mkdir -p .cache/x; head -c 20M /dev/urandom > .cache/x/y")
    sh(small, "ann", "cat /dev/zero > fill; dd if=/dev/zero of=fill bs=4k oflag=append conv=notrunc; sync")
    assert small.box("ann")["disk_full"]
    copy = json.loads(small.ok("box", "snapshot", "ann", "--json").out)["snapshot"]
    changed = json.loads(small.ok("box", "reset", "ann", "--json").out)
    assert sh(small, "ann", "ls -A") == ""
    refused = small.run("box", "restore", "ann", copy["id"], "--json")
    if refused.code:  # as full as it was it need not fit into a new one, whose folders are laid out anew
        assert (refused.code, json.loads(refused.out)["error"]["code"]) == (5, "disk_full")
        assert sh(small, "ann", "ls -A") == ""  # nothing has changed
        small.ok("box", "limits", "ann", "--disk", "96MiB")
        small.ok("box", "restore", "ann", copy["id"])
    assert sh(small, "ann", "cat f") == "one\n" and changed["before"]["entries"] == copy["entries"]
    freed = json.loads(small.ok("box", "recover", "ann", "--free-space", "--json").out)
    assert (freed["found"], freed["removed"]) == ("freed", [".cache"]) and freed["freed_bytes"] >= 19 * MIB
    assert sh(small, "ann", "ls -A") == "f\nfill\n"
    assert json.loads(small.ok("box", "recover", "ann", "--fsck", "--json").out)["found"] in (
        "clean",
        "nothing",
        "limits",
    )
    small.ok("box", "archive", "ann")
    assert sh(small, "ann", "cat f") == "one\n"


def test_a_copy_that_is_more_than_the_box_may_have(small: Installation) -> None:
    small.ok("user", "add", "bob")
    small.ok("user", "add", "cat")
    small.ok("box", "limits", "bob", "--disk", "128MiB")
    sh(small, "bob", "head -c 80M /dev/urandom > large")
    sh(small, "cat", "echo theirs > g")
    refused = small.run("box", "clone", "bob", "cat", "--json")
    assert (refused.code, json.loads(refused.out)["error"]["code"]) == (5, "disk_full")
    assert sh(small, "cat", "cat g") == "theirs\n"


def test_a_full_volume_of_copies_is_said_and_nothing_is_lost(small: Installation) -> None:
    small.ok("user", "add", "dan")
    sh(small, "dan", "head -c 20M /dev/urandom > large")
    folder = Path(small.home) / "snapshots"
    owner = folder.stat()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size=8m,mode=700,uid={owner.st_uid},gid={owner.st_gid}", "none", folder],
        check=True,
    )
    try:
        for verb in (("snapshot",), ("reset",), ("archive",)):
            refused = small.run("box", *verb, "dan", "--json")
            assert (refused.code, json.loads(refused.out)["error"]["code"]) == (5, "disk_full"), verb
            assert list(folder.iterdir()) == []
        assert sh(small, "dan", "stat -c %s large") == f"{20 * MIB}\n"
        assert json.loads(small.ok("box", "snapshots", "dan", "--json").out) == {"snapshots": []}
    finally:
        subprocess.run(["umount", folder], check=True)
    small.ok("box", "snapshot", "dan")  # control
